"""The papers' experiments; docs/papers.md gets their figures and pictures.

    python -m experiments [--quick] [--again] [--list] [--keep FILE] [--no-page]
                          [PAPER | EXPERIMENT …]

PAPER is a number of reference.yaml: `python -m experiments 004 000`. An experiment that has a
result of this commit is left out (--again: not), so a run that was stopped continues; within a
simulation, too, from the settings of it that --keep added to a file (of one commit). What two
simulations have in common runs once. --quick takes a few minutes for all; its results are marked.
Exit status 1: an experiment failed; the results of the others are kept.

Simulations run at a low priority beside what mostly waits, emulated devices above all; what is
measured runs alone after that. In a quick run three that wait run at a time, and only what compares
the time of processors runs alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.pictures import draw
from benchmarks.report import ROOT, commit, end_in_order, machine
from corekit.cli.progress import Bar
from experiments import results
from experiments.experiment import QUICK, Settings
from experiments.page import experiment_of, page
from experiments.references import Paper, papers
from experiments.several import FAILED, Several, plan

DOCS = ROOT / "docs"


def main() -> int:
    """Run, draw, keep and write after each experiment; the exit status."""
    options = _options()
    names = _chosen(options.names, papers())
    if options.list:
        for name in names:
            one = experiment_of(name)
            print(f"{name:24} {one.evidence:12} {one.summary}")
        return 0
    end_in_order()
    pending = [name for name in names if options.again or not _is_new(options, name)]
    for name in sorted(set(names) - set(pending)):
        print(f"{name}: has a result of this commit", flush=True)
    failed = _one(pending[0], options) if len(pending) == 1 else _several(pending, options)
    if not options.no_page:
        (options.docs / "papers.md").write_text(_page(options.docs), encoding="utf-8")
        print(f"written to {options.docs / 'papers.md'}")
    return 1 if failed else 0


def _one(name: str, options: argparse.Namespace) -> list[str]:
    """Run an experiment here; its name when it failed."""
    try:
        print(f"{name}: {_run(name, options):.0f} s", flush=True)
    except Exception as error:  # whatever a benchmark raises
        print(f"{FAILED.format(name)}{error}", file=sys.stderr, flush=True)
        return [name]
    return []


def _several(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Run experiments in processes of their own; the names of those that failed."""
    with tempfile.TemporaryDirectory(prefix="experiments-") as folder:
        keep = options.keep.resolve() if options.keep else Path(folder) / "simulations"
        words = ["--workers", str(options.workers), "--keep", str(keep)]
        words += ["--quick"] * options.quick
        run = Several(docs=options.docs, words=words)
        asyncio.run(run.run(plan(names, quick=options.quick)))
    return run.failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PAPER | EXPERIMENT")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes each")
    parser.add_argument("--again", action="store_true", help="run what has a result of this commit")
    parser.add_argument("--list", action="store_true", help="only name the experiments")
    parser.add_argument("--workers", type=int, default=2, help="processes of a simulation")
    parser.add_argument("--keep", type=Path, help="a file to continue simulations from")
    parser.add_argument("--no-page", action="store_true", help="leave papers.md as it is")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of papers.md and papers/")
    return parser.parse_args()


def _chosen(names: Sequence[str], known: Sequence[Paper]) -> list[str]:
    """The experiments that are meant, each once. Exits with 2 for an unknown name."""
    by_paper = {paper.number: paper.experiments for paper in known}
    every = list(dict.fromkeys(name for found in by_paper.values() for name in found))
    chosen: dict[str, None] = {}
    for name in names or every:
        if name not in by_paper and name not in every:
            text = f"{name!r} is unknown; papers are {', '.join(by_paper)}; see --list"
            print(text, file=sys.stderr)
            sys.exit(2)
        chosen |= dict.fromkeys(by_paper.get(name, (name,)))
    return list(chosen)


def _is_new(options: argparse.Namespace, name: str) -> bool:
    kept = results.read(results.file_in(options.docs)).get(name)
    return kept is not None and kept.commit == commit() and kept.quick <= options.quick


def _run(name: str, options: argparse.Namespace) -> float:
    """Run an experiment and keep its result; the seconds that it took."""
    bar, began_s, computed_s = Bar(100, quiet=False), time.monotonic(), _processor_s()
    bar.draw(0, f" % of {name}")
    settings = replace(
        QUICK if options.quick else Settings(),
        workers=options.workers,
        keep=options.keep,
        advance=lambda part: bar.draw(int(100 * part), f" % of {name}"),
    )
    try:
        found = experiment_of(name).run(settings)
    finally:
        bar.clear()
    took_s = time.monotonic() - began_s
    for picture in found.pictures:
        draw(picture, options.docs / "papers")
    described = machine()
    kept = results.kept(
        found,
        commit=commit(),
        machine=f"{described['cores']} × {described['cpu']}",
        when=datetime.now(UTC).date().isoformat(),
        took_s=round(took_s, 1),
        processor_s=round(_processor_s() - computed_s, 1),
        quick=options.quick,
    )
    file = results.file_in(options.docs)
    results.write(file, {**results.read(file), name: kept})
    return took_s


def _processor_s() -> float:
    """Of this process and of its ended children."""
    return sum(os.times()[:4])


def _page(docs: Path) -> str:
    return page(papers(), results.read(results.file_in(docs)))


if __name__ == "__main__":
    sys.exit(main())

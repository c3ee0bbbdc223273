"""`docs/papers.md`: each figure of the papers beside ours."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from experiments.experiment import Experiment
from experiments.references import Paper, Quantity, Shown
from experiments.results import Kept
from simulator.workloads.measures import number_text

_HEAD = """\
# The papers, rerun

Written by `make papers` from `experiments/`: each figure and table of the papers that this system
comes from, beside ours. *Measured* is on the machine that ran it, *simulated* by the production
cores on virtual time, *emulated* through the whole system on devices that take the paper's times;
*arithmetic* follows from stated numbers. Nothing here is the time of a GPU. ± is half of the 95 %
interval over seeds. What is accepted of ours is stated beside it; what is outside is marked.
"""
ACCEPTED, OUTSIDE, SHOWN, OPEN = "accepted", "**outside**", "shown", "not run"


@cache
def experiment_of(name: str) -> Experiment:
    """The object `EXPERIMENT` of a module of this package."""
    found: Experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    return found


def page(papers: Sequence[Paper], results: Mapping[str, Kept]) -> str:
    """The whole page."""
    parts = [_HEAD, *_summary(papers, results)]
    for paper in papers:
        parts += _paper(paper, results)
    return "\n".join(parts) + "\n"


def verdict(quantity: Quantity, kept: Kept | None) -> str:
    """The mark of a number of ours."""
    if kept is None or quantity.key not in kept.figures:
        return OPEN
    holds = quantity.holds(kept.figures[quantity.key][0])
    return SHOWN if holds is None else ACCEPTED if holds else OUTSIDE


def _summary(papers: Sequence[Paper], results: Mapping[str, Kept]) -> Iterator[str]:
    yield "| paper | figures | numbers accepted | outside | shown without a claim | not run |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for paper in papers:
        found = Counter(
            verdict(quantity, results.get(shown.experiment))
            for shown in paper.figures
            for quantity in shown.quantities
        )
        counts = " | ".join(str(found[one]) for one in (ACCEPTED, OUTSIDE, SHOWN, OPEN))
        yield f"| [{paper.title}](#{_anchor(paper)}) | {len(paper.figures)} | {counts} |"
    yield ""


def _anchor(paper: Paper) -> str:
    kept = "".join(one for one in _heading(paper).lower() if one.isalnum() or one in " -")
    return kept.replace(" ", "-")


def _heading(paper: Paper) -> str:
    return f"{paper.number}: {paper.title}" if paper.authors else paper.title


def _paper(paper: Paper, results: Mapping[str, Kept]) -> Iterator[str]:
    yield f"## {_heading(paper)}\n"
    if paper.authors:
        yield f"{paper.authors}.\n"
    yield f"**Claim.** {paper.claims}\n"
    yield f"**Ours.** {paper.ours}\n"
    for shown in paper.figures:
        yield from _figure(shown, results.get(shown.experiment))


def _figure(shown: Shown, kept: Kept | None) -> Iterator[str]:
    yield f"### {shown.name}: {shown.content}\n"
    if shown.experiment:
        yield f"{_origin(shown.experiment, kept)}\n"
        yield "| quantity | paper | ours | accepted | |"
        yield "| --- | --- | --- | --- | --- |"
        yield from (_row(quantity, kept) for quantity in shown.quantities)
        yield ""
    if shown.note:
        yield f"{shown.note}\n"
    for note in kept.notes if kept else ():
        yield f"{note}\n"
    if kept:
        yield from (f"![{shown.content}](papers/{name}.svg)" for name in shown.pictures)
        if shown.pictures:
            yield ""


def _origin(name: str, kept: Kept | None) -> str:
    origin = f"*{experiment_of(name).evidence}*, `python -m experiments {name}`"
    if kept is None:
        return f"{origin}: not run yet."
    seeds = f", {kept.seeds} seeds" if kept.seeds > 1 else ""
    quick = ", **quick form**" if kept.quick else ""
    cost = f", {kept.processor_s:.0f} s of processors" if kept.processor_s else ""
    return f"{origin}: commit {kept.commit}, {kept.when}, {kept.machine}{seeds}{cost}{quick}."


def _row(quantity: Quantity, kept: Kept | None) -> str:
    paper = "" if quantity.paper is None else _with_unit(quantity.paper, quantity.unit)
    cells = (quantity.name, paper, _ours(quantity, kept), quantity.accept, verdict(quantity, kept))
    return f"| {' | '.join(cells)} |"


def _with_unit(value: float | str, unit: str) -> str:
    return value if isinstance(value, str) else f"{number_text(value)} {unit}".rstrip()


def _ours(quantity: Quantity, kept: Kept | None) -> str:
    if kept is None or quantity.key not in kept.figures:
        return ""
    mean, low, high = kept.figures[quantity.key]
    spread = f" ±{number_text((high - low) / 2)}" if high > low else ""
    return f"{number_text(mean)}{spread} {quantity.unit}".rstrip()

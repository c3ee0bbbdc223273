"""The command line of the check."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import tools.gpu_check
from benchmarks import report
from tools.gpu_check import page, runner
from tools.gpu_check.machine import Machine, machine
from tools.gpu_check.part import KINDS, PARTS, Part, missing_modules, parts_in

WITHIN_S = 540.0
_IMPOSSIBLE, _INTERRUPTED = 7, 130  #: docs/reference/exit-codes.md
_PAGES = report.ROOT / "docs" / "gpu-runs"
_WORK = report.ROOT / "build" / "gpu-check"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tools.gpu_check",
        description=tools.gpu_check.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--kind", choices=KINDS, default="cuda", help="of the device [cuda]")
    add("--only", nargs="+", metavar="NAME", default=[], help="these parts")
    add("--dry-run", action="store_true", help="list the parts and their modules")
    add("--out", type=Path, help="folder for both files [docs/gpu-runs; build for other kinds]")
    add("--work", type=Path, help="folder for results of parts and logs [build/gpu-check/KIND]")
    add(
        "--resume",
        nargs="?",
        const=True,
        default=None,
        metavar="RUN.json",
        help="keep what passed at this commit: in the work folder, or in an earlier run's file",
    )
    add("--within", type=float, default=WITHIN_S, help=f"seconds for all parts [{WITHIN_S:g}]")
    add("--quick", action="store_true", help="small sizes: does every part's code run?")
    add("--wheels", type=Path, metavar="FOLDER", help="install these first, into the work folder")
    add("--commit", help="of the sources, where git is missing")
    add("--json", action="store_true", help="print the JSON file too")
    add("--parts", type=Path, default=PARTS, help="folder of the parts [those of the sources]")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    made = parser()
    options = made.parse_args(arguments)
    if options.within <= 0:
        made.error("--within: more than 0 seconds")
    try:
        parts = parts_in(options.parts)
    except (OSError, ValueError, SyntaxError) as error:
        made.error(str(error))
    unknown = [name for name in options.only if name not in parts]
    if unknown or not parts:
        made.error(f"unknown: {', '.join(unknown)}; parts are {', '.join(parts) or 'missing'}")
    chosen = {name: p for name, p in parts.items() if not options.only or name in options.only}
    here = machine()
    if options.dry_run:
        _list(chosen, options.kind, here)
        return 0
    if options.kind == "cuda" and not here.cards:
        lines = ["gpu_check: no NVIDIA GPU on this machine", *(f"  {m}" for m in here.missing)]
        absent = sorted({m for part in chosen.values() for m in missing_modules(part)})
        lines += [f"  library: {m} is not installed" for m in absent]
        lines.append("  without a card: --dry-run lists the parts, --kind cpu runs a rehearsal")
        print("\n".join(lines), file=sys.stderr)
        return _IMPOSSIBLE
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options, chosen, here)
    except (OSError, ValueError, TypeError, KeyError) as error:
        made.error(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:  # before the first part
        return _INTERRUPTED


def _run(options: argparse.Namespace, parts: Mapping[str, Part], here: Machine) -> int:
    work = options.work or _WORK / options.kind
    work.mkdir(parents=True, exist_ok=True)
    paths = (_installed(options.wheels, work),) if options.wheels else ()
    plan = runner.Plan(
        parts=parts,
        folder=options.parts.absolute(),
        work=work.absolute(),
        kind=options.kind,
        commit=options.commit or report.commit(),
        within_s=options.within,
        quick=options.quick,
        paths=paths,
    )
    if isinstance(options.resume, str):
        _take(Path(options.resume), plan)
    kept = plan.kept() if options.resume else {}
    found: list[runner.Result] = []
    interrupted = False
    try:
        # one by one: those that are there before an interruption stay
        for result in runner.results(plan, kept, _show):
            found += [result]
    except KeyboardInterrupt:
        interrupted = True
        _show("interrupted: --resume continues with the parts that are left")
    run = page.Run(
        kind=options.kind,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=plan.commit,
        command=shlex.join(["python", "-m", "tools.gpu_check", *sys.argv[1:]]),
        machine=here,
        computer=report.machine(),
        quick=options.quick,
        interrupted=interrupted,
        parts=found,
        titles={name: part.title for name, part in parts.items()},
    )
    data, text = page.write(run, options.out or (_PAGES if options.kind == "cuda" else work))
    if options.json:
        print(json.dumps(asdict(run)))
    _show(f"written: {text} and {data.name}")
    return _INTERRUPTED if interrupted else 0 if run.complete else 1


def _take(path: Path, plan: runner.Plan) -> None:
    """Put the results of an earlier run's file into the work folder."""
    for one in json.loads(path.read_text(encoding="utf-8"))["parts"]:
        runner.write(runner.Result(**one), plan.work)


def _installed(wheels: Path, work: Path) -> Path:
    """The folder with the packages of these wheels."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise ValueError(f"--wheels {wheels}: it holds no wheel")
    site = work.absolute() / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-compile", "--upgrade", "--target", str(site)]
    done = subprocess.run([*command, *map(str, found)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"pip cannot install the wheels of {wheels}: {done.stderr.strip()}")
    return site


def _list(parts: Mapping[str, Part], kind: str, here: Machine) -> None:
    for name, part in parts.items():
        print(f"{name}: {part.title}")
        print(f"    kinds {', '.join(part.kinds)}; at most {part.limit_s:g} s")
        missing = missing_modules(part)
        modules = [f"{m} (not installed)" if m in missing else m for m in part.modules]
        print(f"    modules {', '.join(modules) or 'none'}")
    if kind == "cuda":
        cards = [f"{c.name}, {c.memory_mib} MiB" for c in here.cards]
        print("\n".join(["here: " + ("; ".join(cards) or "no NVIDIA GPU"), *here.missing]))


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

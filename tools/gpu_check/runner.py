"""The run: one process per part, in order, each with a limit; a JSON file holds each result."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from tools.gpu_check.part import Part, missing_modules

_ENDING_S = 10.0  #: for a part's daemons, after SIGTERM
PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
MISSING = "not installed"  #: modules of the part
UNRUN = "no time"  #: the run's own limit was reached


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of one part."""

    name: str
    status: str
    why: str = ""
    seconds: float = 0.0
    commit: str = ""
    quick: bool = False
    figures: list[dict[str, Any]] = field(default_factory=list)  #: of `benchmarks.report`
    notes: list[str] = field(default_factory=list)
    log: str = ""  #: the end of its output, where it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run."""

    parts: Mapping[str, Part]
    folder: Path  #: of the parts' modules
    work: Path  #: for results and logs
    kind: str
    commit: str
    within_s: float  #: of all parts together
    quick: bool = False
    paths: tuple[Path, ...] = ()  #: of Python, before all others

    def kept(self) -> dict[str, Result]:
        """Results of earlier runs that need no repetition: passed, of this commit and extent."""
        return {
            name: result
            for name in self.parts
            if (result := read(self.work / f"{name}.json")) is not None
            and result.status in (PASSED, LEFT_OUT)
            and (result.commit, result.quick) == (self.commit, self.quick)
        }


def read(path: Path) -> Result | None:
    """A stored result; None where there is none or it is damaged."""
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write(result: Result, work: Path) -> None:
    """Store a result for `--resume`."""
    path = work / f"{result.name}.json"
    path.with_suffix(".tmp").write_text(json.dumps(asdict(result), indent=2), encoding="utf-8")
    path.with_suffix(".tmp").replace(path)


def results(
    plan: Plan, kept: Mapping[str, Result], show: Callable[[str], None]
) -> Iterator[Result]:
    """Run the parts; yields each result when it is there."""
    plan.work.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + plan.within_s
    for number, (name, part) in enumerate(plan.parts.items(), 1):
        head = f"[{number}/{len(plan.parts)}] {name}"
        if name in kept:
            show(f"{head}: {kept[name].status}, kept from an earlier run")
            yield kept[name]
            continue
        show(f"{head}: {part.title} …")
        result = _result(plan, name, part, end_s - time.monotonic())
        result.commit, result.quick = plan.commit, plan.quick
        write(result, plan.work)
        missed = sum(figure.get("met") is False for figure in result.figures)
        targets = f", {missed} target(s) missed" if missed else ""
        why = f": {result.why}" if result.why else ""
        show(f"{head}: {result.status} in {result.seconds:.1f} s{targets}{why}")
        yield result


def _result(plan: Plan, name: str, part: Part, left_s: float) -> Result:
    if plan.kind not in part.kinds:
        why = f"for devices of kind {', '.join(part.kinds)}"
        return Result(name=name, status=LEFT_OUT, why=why)
    with _importing(plan.paths):
        missing = missing_modules(part)
    if missing:
        return Result(name=name, status=MISSING, why=f"{', '.join(missing)}")
    if left_s <= 0:
        return Result(name=name, status=UNRUN, why="all time of the run was used; --resume")
    limit_s, began_s = min(part.limit_s, left_s), time.monotonic()
    answer, log = plan.work / f"{name}.answer.json", plan.work / f"{name}.log"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tools.gpu_check.process", str(plan.folder / f"{name}.py")]
    command += ["--kind", plan.kind, "--result", str(answer), *["--quick"] * plan.quick]
    with (
        tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder,
        log.open("wb") as output,
    ):
        command += ["--folder", folder]
        status = _ended(command, limit_s, output.fileno(), _environment(plan))
    seconds = time.monotonic() - began_s
    if status is None and limit_s < part.limit_s:
        why = f"stopped after {limit_s:.0f} s, the rest of the run's time; --resume"
        return Result(name=name, status=UNRUN, why=why, seconds=seconds)
    found: dict[str, Any] = {"status": FAILED, "why": f"it ended with status {status}"}
    if status is None:
        found["why"] = f"it ran past its limit of {limit_s:g} s"
    elif status == 0:
        found = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink(missing_ok=True)
    tail = log.read_text(errors="replace")[-4000:] if found["status"] == FAILED else ""
    return Result(name=name, seconds=seconds, log=tail, **found)


def _environment(plan: Plan) -> dict[str, str]:
    paths = [*map(str, plan.paths), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextlib.contextmanager
def _importing(paths: tuple[Path, ...]) -> Iterator[None]:
    """Modules in `paths` count as installed."""
    before = list(sys.path)
    sys.path[:0] = map(str, paths)
    try:
        yield
    finally:
        sys.path[:] = before


def _ended(
    command: list[str], limit_s: float, output: int, environment: dict[str, str]
) -> int | None:
    """The exit status of a process group; None when it ran past the limit."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)

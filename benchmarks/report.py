"""The one shape of a benchmark's answer: `--json` prints it; without the flag a table."""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import signal
import subprocess
import sys
import timeit
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The interpreter that has the packages of the peers, which this project does not need itself.
PEERS_PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)
_COMPARISONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric; the baseline is what it is compared with, measured in the same run."""

    metric: str
    value: float
    unit: str
    baseline: str | None = None  #: what the baseline is, in words
    baseline_value: float | None = None
    ratio: float | None = None  #: of a metric in the unit "ratio" its value
    target: str | None = None  #: of the value: ">= 0.5", "-2…3"
    met: bool | None = None  #: by the value, unless given

    def __post_init__(self) -> None:
        if self.ratio is None and self.unit == "ratio" and self.baseline is not None:
            object.__setattr__(self, "ratio", self.value)
        if self.met is None and self.target is not None:
            object.__setattr__(self, "met", is_met(self.target, self.value))


def compared(
    metric: str, value: float, unit: str, baseline: str, baseline_value: float, **more: Any
) -> Figure:
    """A figure beside its limit, which was measured in the same unit."""
    return Figure(metric, value, unit, baseline, baseline_value, value / baseline_value, **more)


def is_met(target: str, value: float) -> bool:
    """Whether a value reaches a target: ">= 0.5", or between the ends of "-2…3"."""
    if "…" in target:
        low, high = map(float, target.split("…"))
        return low <= value <= high
    sign, limit = target.split()
    return bool(_COMPARISONS[sign](value, float(limit)))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flag that every benchmark has; from now on SIGTERM ends it in order."""
    end_in_order()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def end_in_order() -> None:
    """Let the first SIGTERM unwind the program, so that it stops what it started (status 143)."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def finished(command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a benchmark; when it takes too long, or this program ends, it stops what it started.

    Raises subprocess.TimeoutExpired.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def show(
    benchmark: str, figures: Sequence[Figure], *, as_json: bool, notes: Sequence[str] = ()
) -> None:
    """Print the figures with the commit and the machine they belong to.

    `notes`: paragraphs in Markdown that the page has below the figures.
    """
    if as_json:
        results = [{k: v for k, v in asdict(f).items() if v is not None} for f in figures]
        answer = {"benchmark": benchmark, "commit": commit(), "machine": machine()}
        print(json.dumps({**answer, "results": results, "notes": list(notes)}))
        return
    for figure in figures:
        beside = f"  ({figure.baseline}: {figure.baseline_value:.4g})" if figure.baseline else ""
        wanted = f"  target {figure.target}: {'met' if figure.met else 'missed'}"
        target = wanted if figure.target else ""
        print(f"{figure.metric:36} {figure.value:12.4g} {figure.unit}{beside}{target}")


def row(figure: dict[str, Any]) -> list[str]:
    """The cells of one figure, as JSON has it: metric, value, baseline, ratio, target, met."""
    baseline = figure.get("baseline", "")
    if baseline and "baseline_value" in figure:
        baseline = f"{baseline}: {figure['baseline_value']:.4g}"
    ratio = f"{figure['ratio']:.3g}" if "ratio" in figure else ""
    met = "" if figure.get("met") is None else "yes" if figure["met"] else "no"
    unit = "" if figure["unit"] == "ratio" else f" {figure['unit']}"
    return [
        figure["metric"],
        f"{figure['value']:.4g}{unit}",
        baseline,
        ratio,
        figure.get("target", ""),
        met,
    ]


def commit() -> str:
    """The checked-out commit, with `+` where the tree differs from it; "" outside git.

    Pages do not count: a run writes its first figures before the last ones are measured.
    """
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!docs")
        return f"{head}+" if changed else head
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def addition_ns() -> float:
    """The shortest time of one addition in a loop: a machine may run at a part of its speed."""
    loop = timeit.Timer(
        "for number in numbers: total += number", "numbers, total = range(99_999), 0"
    )
    return min(loop.repeat(5, 1)) * 1e9 / 99_999


def machine() -> dict[str, Any]:
    """What a figure depends on."""
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else ""
    return {
        "cpu": model or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }

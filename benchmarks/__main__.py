"""The short benchmarks, one after the other; docs/reference/benchmarks.md gets their figures.

`python -m benchmarks [--output FILE] [NAME …]`, some twenty minutes for all; those of other names
keep their sections in the file. It exits with 1 when a benchmark failed. A missed target is a
figure like any other.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, addition_ns, commit, end_in_order, finished, machine, row

OUTPUT = ROOT / "docs" / "reference/benchmarks.md"
#: What each of them is asked, so that all are done in a few minutes on two cores.
SHORT: dict[str, tuple[str, ...]] = {
    "dispatch": ("--jobs", "60", "--burst", "200"),
    "advance": ("--jobs", "20", "--cases", "busy_2s,busy_500ms"),
    "loads_ahead": ("--jobs", "20"),
    "release_latency": ("--jobs", "10", "--published-jobs", "2"),
    "hardless": ("--scale", "1", "--minutes", "0.25,1.5,0.25", "--plot", "docs/pictures"),
    "kaas": ("--seconds", "20"),
    "endpoint": (),
    "console": (),
    "top": (),
    "history": (),
    "tracing": (),
    "scheduler.cycles": ("--rounds", "3"),
    "scheduler.decision": ("--cycles", "1000", "--plot", "docs/pictures/decision.svg"),
    "scheduler.admission": (),
    "scheduler.fleet": (),
    "scheduler.job_cost": (),
    "scheduler.handover": ("--rounds", "3"),
    "scheduler.recovery": (),
    "scheduler.records": (),
    "scale.rate": (),
    "scale.hour": ("--minutes", "15"),
    "remote_gpu.transport": ("--rounds", "3"),
    "remote_gpu.relays": ("--rounds", "5"),
    "remote_gpu.operations": (),
    "remote_gpu.sharing": ("--seconds", "45"),
    "remote_gpu.batching": (),
    "remote_gpu.warm": (),
    "remote_gpu.lifetimes": (),
    "remote_gpu.affinity": (),
    "remote_gpu.card": (),
    "remote_gpu.sequence_search": (),
    "simulator": (),
    "workflows": ("--chains", "5"),
    "goodput": ("--seeds", "3"),
    "quotes": (),
    "scheduler.peers": (),
    "remote_gpu.peers": ("--rounds", "2"),
    "remote_gpu.search_curve": ("--runs", "2", "--plot", "docs/pictures/search-curve.svg"),
}
NOTE_WIDTH = 150  #: characters of a line
LIMIT_S = 900.0  #: one benchmark; it hangs if it takes longer
_HEAD = """\
# Figures

Written by `python -m benchmarks`, which replaces the sections of the benchmarks that it ran.

Each figure is compared with a floor or a baseline measured in the same run on the same machine.
Times depend on the machine's other load and on its speed of the day (the nanoseconds of one
addition in a loop), ratios much less.
"""
_TITLE = "## "


def main() -> int:
    """Run, print, write after each benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SHORT))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in SHORT]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(SHORT)}")
    end_in_order()
    chosen = options.names or list(SHORT)
    failed = []
    for number, name in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {name} …", flush=True)
        when = _when()
        answer = _run(name)
        if isinstance(answer, str):
            failed.append(name)
            print(f"    failed: {answer}", flush=True)
        else:
            for figure in answer["results"]:
                print("    " + " | ".join(row(figure)), flush=True)
        _write(options.output, name, _section(name, when, answer))
    print(f"written to {options.output}")
    return 1 if failed else 0


def _write(output: Path, name: str, section: str) -> None:
    """Replace the section of that name; the file's sections have the order of `SHORT`."""
    sections = {**_sections(output), name: section}
    ordered = [sections[one] for one in SHORT if one in sections]
    output.write_text("\n".join([_HEAD, *ordered]))


def _sections(output: Path) -> dict[str, str]:
    """The sections of a file by their benchmark's name."""
    if not output.exists():
        return {}
    _, *sections = f"\n{output.read_text()}".split(f"\n{_TITLE}")
    return {one.partition("\n")[0]: f"{_TITLE}{one.rstrip()}\n" for one in sections}


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{name}", "--json", *SHORT[name]]


def _run(name: str) -> dict[str, Any] | str:
    """The benchmark's answer, or why there is none."""
    try:
        done = finished(_command(name), LIMIT_S)
        answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    said = done.stderr.strip().splitlines()
    if not isinstance(answer, dict):
        return (said or [f"exit status {done.returncode}"])[-1]
    return answer | {"skipped": [line for line in said if "skipped" in line]}


def _when() -> str:
    """The commit, the date, the machine, its load of one minute and its speed before a run."""
    date = datetime.now(UTC).date().isoformat()
    place = "{cpu}, {cores} cores, Python {python}".format(**machine())
    load, speed = os.getloadavg()[0], f"{addition_ns():.0f} ns an addition"
    return f"commit `{commit()}`, {date}, {place}, load {load:.1f}, {speed}"


def _section(name: str, when: str, answer: dict[str, Any] | str) -> str:
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *SHORT[name]])
    lines = [f"{_TITLE}{name}", "", f"`{command}`", "", f"At {when}.", ""]
    if isinstance(answer, str):
        return "\n".join([*lines, f"Failed: {answer}", ""])
    lines += ["| metric | value | baseline | ratio | target | met |", "| --- " * 6 + "|"]
    lines += [f"| {' | '.join(row(figure)).rstrip(' |')} |" for figure in answer["results"]]
    notes = [_wrapped(one) for one in answer.get("notes", ())]
    lines += [line for one in (*answer["skipped"], *notes) for line in ("", one)]
    return "\n".join([*lines, ""])


def _wrapped(note: str) -> str:
    """A paragraph in lines; a link is never divided."""
    return textwrap.fill(note, NOTE_WIDTH, break_on_hyphens=False, break_long_words=False)


if __name__ == "__main__":
    sys.exit(main())

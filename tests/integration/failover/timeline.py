"""The times of a take-over, from the fault on: what a gap without a grant consists of."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Seconds from a fault to each step of the recovery; `granted_s` is the length of the gap."""

    fault: str
    taking_over_s: float  #: the standby has decided
    serving_s: float  #: its epoch is in the log
    host_s: float  #: a host has its full state from it
    client_s: float  #: a client is welcomed
    granted_s: float  #: and has its first grant


STEPS = ("taking_over_s", "serving_s", "host_s", "client_s", "granted_s")


class Moments:
    """The first wall-clock time of something in each epoch."""

    def __init__(self) -> None:
        self._first_s: dict[int, float] = {}

    def note(self, epoch: int) -> None:
        self._first_s.setdefault(epoch, time.time())

    def has(self, epoch: int) -> bool:
        return any(one >= epoch for one in self._first_s)

    def first(self, epoch: int) -> float:
        """The time in this epoch, or in the first later one."""
        return min(at_s for one, at_s in self._first_s.items() if one >= epoch)


def logged(log: Path, event: str, since_s: float) -> float:
    """The time of an event in a daemon's log, the first one since."""
    for line in log.read_text().splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        at_s = datetime.fromisoformat(entry["time"]).timestamp()
        if entry.get("event") == event and at_s >= since_s - 0.001:  # it is rounded down
            return at_s
    raise AssertionError(f"{log} has no {event!r}")


def summary(gaps: Iterable[Gap]) -> dict[str, dict[str, float]]:
    """Median and longest time of each fault, and the longest time of each step."""
    by_fault: dict[str, list[Gap]] = {}
    for gap in gaps:
        by_fault.setdefault(gap.fault, []).append(gap)
    return {fault: _figures(found) for fault, found in by_fault.items()}


def _figures(gaps: list[Gap]) -> dict[str, float]:
    times = [gap.granted_s for gap in gaps]
    steps = {f"longest_{step}": max(getattr(gap, step) for gap in gaps) for step in STEPS[:-1]}
    figures = {"median_s": statistics.median(times), "longest_s": max(times), **steps}
    return {"rounds": len(gaps), **{name: round(value, 2) for name, value in figures.items()}}


def table(lines: Iterable[str]) -> str:
    """A Markdown table of rounds as JSON lines: by engine, network and fault."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for line in lines:
        one = json.loads(line)
        found.setdefault((one["engine"], one["network"], one["fault"]), []).append(one)
    rows = [
        "| engine | cuts | fault | rounds | median | longest | take-over, longest | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for names, rounds in sorted(found.items()):
        times = [one["granted_s"] for one in rounds]
        over_s, load = (max(one[name] for one in rounds) for name in ("taking_over_s", "load"))
        figures = f"{len(times)} | {statistics.median(times):.2f} s | {max(times):.2f} s"
        rows.append(f"| {' | '.join(names)} | {figures} | {over_s:.2f} s | {load:.1f} |")
    return "\n".join(rows) + "\n"

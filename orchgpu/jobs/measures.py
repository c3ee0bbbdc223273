"""Moments of jobs and the measures of them, by the names of HARDLESS (Werner, Schirmer 2022). Pure.

RStart  uploaded            NStart  received by an orchestrator   EStart  computation starts
REnd    finished            NEnd    its result is seen            EEnd    computation ends

RLat = REnd − RStart        DLat = EStart − RStart                ELat = EEnd − EStart
RSuccess = number of successes                  RFast = successes per second of the last 10 s
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

MOMENTS = ("RStart", "NStart", "EStart", "EEnd", "NEnd", "REnd")
#: Latency → its first and its last moment.
LATENCIES: Mapping[str, tuple[str, str]] = {
    "RLat": ("RStart", "REnd"),
    "DLat": ("RStart", "EStart"),
    "ELat": ("EStart", "EEnd"),
}
#: RFast counts the successes of so long, in unscaled seconds.
RFAST_WINDOW_S = 10.0


def moments_of(
    uploaded_s: float, steps: Mapping[str, float], computation: Mapping[str, float]
) -> dict[str, float | None]:
    """The six moments of a job, wall clock; None for one that did not happen.

    `steps`: times of its record by step; `computation`: times of its result, EStart and EEnd.
    """
    return {
        "RStart": uploaded_s,
        "NStart": steps.get("RECEIVED"),
        "EStart": computation.get("EStart"),
        "EEnd": computation.get("EEnd"),
        "NEnd": steps.get("COMMITTED"),
        "REnd": steps.get("ENDED"),
    }


def latencies(moments: Mapping[str, float | None]) -> dict[str, float | None]:
    """RLat, DLat and ELat in seconds; None where one of their moments is missing."""
    found: dict[str, float | None] = {}
    for name, (first, last) in LATENCIES.items():
        start_s, end_s = moments.get(first), moments.get(last)
        found[name] = None if start_s is None or end_s is None else end_s - start_s
    return found


def out_of_order(moments: Mapping[str, float | None]) -> tuple[str, ...]:
    """The moments that are earlier than one before them in `MOMENTS`."""
    wrong, latest_s = [], -math.inf
    for name in MOMENTS:
        at_s = moments.get(name)
        if at_s is not None and at_s < latest_s:
            wrong.append(name)
        latest_s = max(latest_s, -math.inf if at_s is None else at_s)
    return tuple(wrong)


def rfast(ends_s: Sequence[float], at_s: float, window_s: float = RFAST_WINDOW_S) -> float:
    """Successes per second in the window that ends at `at_s`. `ends_s`: sorted."""
    within = bisect.bisect_right(ends_s, at_s) - bisect.bisect_right(ends_s, at_s - window_s)
    return within / window_s


def rfast_curve(
    ends_s: Sequence[float],
    start_s: float,
    end_s: float,
    *,
    step_s: float = 1.0,
    window_s: float = RFAST_WINDOW_S,
) -> list[tuple[float, float]]:
    """RFast at regular moments of an interval whose windows lie within it."""
    ordered = sorted(ends_s)
    count = max(0, math.floor((end_s - start_s - window_s) / step_s) + 1)
    moments_s = [start_s + window_s + number * step_s for number in range(count)]
    return [(at_s, rfast(ordered, at_s, window_s)) for at_s in moments_s]


def rfast_max(ends_s: Sequence[float], window_s: float = RFAST_WINDOW_S) -> float:
    """The largest RFast at any moment: just after some success."""
    ordered = sorted(ends_s)
    return max((rfast(ordered, at_s, window_s) for at_s in ordered), default=0.0)


def count_over_time(starts_s: Sequence[float], ends_s: Sequence[float]) -> list[tuple[float, int]]:
    """The number of open intervals after each of their ends and starts: a queue, busy slots."""
    changes = sorted([(at_s, 1) for at_s in starts_s] + [(at_s, -1) for at_s in ends_s])
    curve: list[tuple[float, int]] = []
    open_now = 0
    for at_s, change in changes:
        open_now += change
        if curve and curve[-1][0] == at_s:
            curve[-1] = (at_s, open_now)
        else:
            curve.append((at_s, open_now))
    return curve

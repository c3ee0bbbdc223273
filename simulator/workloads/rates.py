"""Rates and counts over time, of simulated and of measured runs, by the names of HARDLESS. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

from orchgpu.jobs.measures import MOMENTS, RFAST_WINDOW_S


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

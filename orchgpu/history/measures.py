"""Measures of spans of time: use of devices, and their time divided among sharers. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union of spans, in order and without overlaps."""
    union: list[Span] = []
    for start_s, end_s in sorted(spans):
        if union and start_s <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end_s))
        elif end_s > start_s:
            union.append((start_s, end_s))
    return union


def clipped(span: Span, window: Span) -> Span | None:
    """The part of a span in a window; None when they do not overlap."""
    start_s, end_s = max(span[0], window[0]), min(span[1], window[1])
    return (start_s, end_s) if end_s > start_s else None


def total_s(spans: Iterable[Span]) -> float:
    return sum(end_s - start_s for start_s, end_s in spans)


def per_step_s(spans: Sequence[Span], edges_s: Sequence[float]) -> list[float]:
    """Seconds of all spans together in each step between two edges."""
    origin_s = edges_s[0]  # sums of moments since then keep their digits
    starts = sorted(start_s - origin_s for start_s, _ in spans)
    ends = sorted(end_s - origin_s for _, end_s in spans)
    before_start = [0.0, *accumulate(starts)]
    before_end = [0.0, *accumulate(ends)]

    def until(at_s: float) -> float:
        begun, over = bisect.bisect_left(starts, at_s), bisect.bisect_left(ends, at_s)
        return begun * at_s - before_start[begun] - over * at_s + before_end[over]

    sums = [until(edge_s - origin_s) for edge_s in edges_s]
    return [max(0.0, later - earlier) for earlier, later in pairwise(sums)]


def divided_s(spans: Mapping[str, Span]) -> dict[str, float]:
    """The time of one device by lease: leases that hold it together share that time equally."""
    edges_s = sorted({edge for span in spans.values() for edge in span})
    starts: dict[float, list[str]] = {}
    ends: dict[float, list[str]] = {}
    for lease, (start_s, end_s) in spans.items():
        if end_s > start_s:
            starts.setdefault(start_s, []).append(lease)
            ends.setdefault(end_s, []).append(lease)
    found = dict.fromkeys(spans, 0.0)
    live: dict[str, None] = {}
    for here_s, next_s in pairwise(edges_s):
        for lease in ends.get(here_s, ()):
            del live[lease]
        live.update(dict.fromkeys(starts.get(here_s, ())))
        for lease in live:
            found[lease] += (next_s - here_s) / len(live)
    return found


def quantile(values: Sequence[float], part: float) -> float | None:
    """The smallest value that at least this part of them does not exceed; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = -int(-part * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered), max(1, rank)) - 1]


def steps(since_s: float, until_s: float, step_s: float) -> list[float]:
    """The edges of steps that cover a window, from its begin."""
    count = max(1, -int(-(until_s - since_s) // step_s))
    return [since_s + number * step_s for number in range(count + 1)]

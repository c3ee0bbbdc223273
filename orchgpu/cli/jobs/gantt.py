"""The rows of a job's Gantt, by its intervals."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.cli.gantt import Row
from orchgpu.jobs.intervals import LANES, NAMES, Interval


def gantt_rows(found: Sequence[Interval], now_s: float) -> list[Row]:
    """One row per lane and name; an interval that lasts is drawn until now."""
    rows = []
    for lane in LANES:
        for name in NAMES[lane]:
            own = [one for one in found if (one.lane, one.name) == (lane, name)]
            if own:
                rows.append(_row(lane, name, own, now_s))
    return rows


def _row(lane: str, name: str, own: Sequence[Interval], now_s: float) -> Row:
    bars = tuple(
        (one.start_s, max(one.start_s, now_s) if one.end_s is None else one.end_s) for one in own
    )
    return Row(lane=lane, name=name, bars=bars, lasts=any(one.end_s is None for one in own))

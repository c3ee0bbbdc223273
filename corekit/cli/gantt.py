"""A Gantt as lines of text: one row per name, an axis in seconds, the length of each row."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.cli.chart import BLOCKS, Glyphs, Segment, axis_line
from corekit.cli.text import cells, cut, padded
from corekit.units import format_duration
from corekit.values import Value

#: The fewest columns of the axis: on less room the lengths are left out, then the axis.
_AXIS_WIDTH_MIN = 8
_GAP = 2


class Row(Value):
    """One row: its bars, and the lane that it belongs to."""

    lane: str
    name: str
    bars: tuple[tuple[float, float], ...]  #: start and end in seconds, of any clock
    lasts: bool = False  #: its last bar ends now, and not because something ended


def gantt_lines(rows: Sequence[Row], width: int, glyphs: Glyphs = BLOCKS) -> list[str]:
    """Lines of at most `width` columns; none without bars."""
    if not any(row.bars for row in rows):
        return []
    start_s = min(bar[0] for row in rows for bar in row.bars)
    end_s = max(bar[1] for row in rows for bar in row.bars)
    names = [_names(rows, at) for at in range(len(rows))]
    lengths = [_length(row) for row in rows]
    left = max(cells(name) for name in names) + _GAP
    right = max(len(length) for length in lengths) + _GAP
    if width - left - right < _AXIS_WIDTH_MIN:
        right = 0
    axis = width - left - right
    if axis < _AXIS_WIDTH_MIN:
        table = zip(names, lengths, strict=True)
        return [cut(f"{padded(name, left)}{length}", width) for name, length in table]
    lines = [f"{' ' * left}{_head(end_s - start_s, axis)}"]
    for row, name, length in zip(rows, names, lengths, strict=True):
        drawn = axis_line(_segments(row, start_s, end_s), axis, glyphs)
        end = f"{length:>{right}}" if right else ""
        lines.append(f"{padded(name, left)}{drawn:<{axis}}{end}".rstrip())
    return lines


def _names(rows: Sequence[Row], at: int) -> str:
    lane = max(cells(row.lane) for row in rows)
    first = at == 0 or rows[at - 1].lane != rows[at].lane
    return f"{padded(rows[at].lane if first else '', lane)}  {rows[at].name}"


def _length(row: Row) -> str:
    length_s = sum(end_s - start_s for start_s, end_s in row.bars)
    times = f" in {len(row.bars)}" if len(row.bars) > 1 else ""
    return f"{format_duration(length_s)}{times}{' so far' if row.lasts else ''}"


def _head(length_s: float, width: int) -> str:
    end = format_duration(length_s)
    return f"0{end:>{width - 1}}"


def _segments(row: Row, start_s: float, end_s: float) -> list[Segment]:
    length_s = max(end_s - start_s, 1e-9)
    return [
        Segment(start=(start - start_s) / length_s, end=(end - start_s) / length_s)
        for start, end in row.bars
    ]

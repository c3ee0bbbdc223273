"""Bars of block characters: a share as a bar, an interval on an axis; ASCII where blocks lack.

A block character fills eighths of a cell from the left; from the right there are a half and an
eighth only. Every interval has a mark, however short it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from corekit.values import Value

#: Eighths of a cell from the left: 0 to 8.
_LEFT = " ▏▎▍▌▋▊▉█"
_HALF_RIGHT, _EIGHTH_RIGHT = "▐", "▕"


class Segment(Value):
    """An interval on an axis from 0 to 1."""

    start: float
    end: float


class Glyphs(Value):
    """The characters of a chart."""

    left: str = _LEFT  #: from an empty cell to a full one, filled from the left
    right: str = f" {_EIGHTH_RIGHT}{_HALF_RIGHT}█"  #: the same from the right
    empty: str = "·"  #: a cell of a bar that is not filled


BLOCKS = Glyphs()
ASCII = Glyphs(left=" |=#", right=" |=#", empty=".")


def glyphs_of(encoding: str | None) -> Glyphs:
    """Block characters where the encoding of the output has them, else ASCII; None: of no bytes."""
    try:
        (BLOCKS.left + BLOCKS.right + BLOCKS.empty).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def bar(share: float, width: int, glyphs: Glyphs = BLOCKS) -> str:
    """A bar of this width, filled to a share from 0 to 1; a share above 0 has a mark."""
    share = min(1.0, max(0.0, share))
    whole, part = divmod(share * width, 1.0)
    full = int(whole)
    if share > 0 and full == 0:
        part = max(part, 1e-9)
    last = _part(glyphs.left, part) if full < width and part > 0 else ""
    last = last if last != glyphs.left[0] else ""
    return glyphs.left[-1] * full + last + glyphs.empty * (width - full - len(last))


def axis_line(segments: Sequence[Segment], width: int, glyphs: Glyphs = BLOCKS) -> str:
    """The segments on an axis of this width; where two share a cell, the fuller mark is shown."""
    cells = [(0.0, " ")] * width
    for segment in segments:
        for at, share, mark in _marks(segment, width, glyphs):
            if share > cells[at][0]:
                cells[at] = (share, mark)
    return "".join(mark for _, mark in cells).rstrip()


def _marks(segment: Segment, width: int, glyphs: Glyphs) -> list[tuple[int, float, str]]:
    start = min(max(segment.start, 0.0), 1.0) * width
    end = max(start, min(max(segment.end, 0.0), 1.0) * width)
    first = min(width - 1, math.floor(start))
    last = min(width - 1, max(first, math.ceil(end) - 1))
    marks = []
    for at in range(first, last + 1):
        share = max(1e-9, min(end, at + 1.0) - max(start, float(at)))
        from_right = at == first and start > at and end >= at + 1
        marks.append((at, share, _part(glyphs.right if from_right else glyphs.left, share)))
    return marks


def _part(characters: str, share: float) -> str:
    """The nearest mark for a share above 0 of one cell: never the empty one."""
    steps = len(characters) - 1
    return characters[min(steps, max(1, round(share * steps)))]

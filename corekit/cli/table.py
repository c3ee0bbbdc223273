"""Tables as wide as the terminal: columns are shortened, then dropped, in a declared order.

At a pipe, and in a file, a table has every column in full. rich's tables shorten all columns alike:
they drop none, and know no prefix by which an id is still unique. Its import takes 53 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from corekit.cli.text import Keep, cells, cut, first

#: Between two columns.
GAP = 2
#: The fewest characters of a shortened id: a prefix that people recognise and may type.
ID_CHARACTERS_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, and how it shrinks on a terminal that is too narrow for all of them."""

    name: str
    shrink_order: int = 0  #: 1 is shortened first; 0: never
    width_min: int = 0  #: the fewest columns of the terminal after shortening
    keep: Keep = "start"  #: the part of a shortened text that stays
    drop_order: int = 0  #: 1 is dropped first, once all were shortened; 0: never
    ids: bool = False  #: shortened to prefixes that are still unique in the table, without a mark


@dataclass(frozen=True, slots=True)
class Fitted:
    """The columns that are shown, with the width of each."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    picked: tuple[int, ...]  #: their indices among all

    def line(self, row: Sequence[str]) -> list[str]:
        """The shown texts of one row, none wider than its column."""
        shown = zip((row[i] for i in self.picked), self.columns, self.widths, strict=True)
        return [
            first(text, width) if column.ids else cut(text, width, column.keep)
            for text, column, width in shown
        ]


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Fitted:
    """The table for a terminal of this width; None: as wide as its content."""
    full = [
        max(cells(text) for text in (column.name, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    ]
    shown = dict(enumerate(full))
    if width is not None:
        minimum = {i: _width_min(columns[i], [row[i] for row in rows]) for i in shown}
        shown = _narrowed(columns, shown, minimum, width)
    return Fitted(tuple(columns[i] for i in shown), tuple(shown.values()), tuple(shown))


def _narrowed(
    columns: Sequence[Column], full: dict[int, int], minimum: dict[int, int], width: int
) -> dict[int, int]:
    """Shorten columns; while the rest does not fit, drop one column and start again."""
    full = dict(full)
    dropping = _in_order({i: columns[i].drop_order for i in full})
    while True:
        shown = _shortened(columns, full, minimum, width)
        if _over(shown, width) <= 0:
            return shown
        if not dropping:
            return _squeezed(shown, width)
        del full[dropping.pop(0)]


def _shortened(
    columns: Sequence[Column], full: dict[int, int], minimum: dict[int, int], width: int
) -> dict[int, int]:
    shown = dict(full)
    for i in _in_order({i: columns[i].shrink_order for i in full}):
        spare = max(0, shown[i] - minimum[i])
        shown[i] -= min(spare, max(0, _over(shown, width)))
    return shown


def _in_order(turns: dict[int, int]) -> list[int]:
    return sorted((i for i, turn in turns.items() if turn), key=turns.__getitem__)


def _squeezed(shown: dict[int, int], width: int) -> dict[int, int]:
    """For a terminal narrower than all minimum widths: the widest column shrinks each time."""
    shown = dict(shown)
    while _over(shown, width) > 0 and max(shown.values()) > 1:
        shown[max(shown, key=lambda i: shown[i])] -= 1
    return shown


def _over(shown: dict[int, int], width: int) -> int:
    return sum(shown.values()) + GAP * (len(shown) - 1) - width


def _width_min(column: Column, texts: Sequence[str]) -> int:
    if not column.ids:
        return max(column.width_min, 1)
    return max(ID_CHARACTERS_MIN, unique_prefix(texts))


def unique_prefix(ids: Sequence[str]) -> int:
    """The number of characters after which all different ids differ."""
    ordered = sorted(set(ids))
    longest = 0
    for one, other in itertools.pairwise(ordered):
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        longest = max(longest, sum(1 for _ in same))
    return longest + 1

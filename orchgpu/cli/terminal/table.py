"""Tables as wide as the terminal: columns are shortened, then leave, in the order they state.

At a pipe, and in a file, a table has every column in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from orchgpu.cli.terminal.text import Keep, cells, cut, first

#: Between two columns.
GAP = 2
#: An id is shortened to no fewer characters: a prefix that people recognise and may type.
ID_LEAST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, and what it gives up on a terminal that is too narrow for all of them."""

    name: str
    gives: int = 0  #: its turn to be shortened, 1 first; 0: never
    least: int = 0  #: it is shortened to no fewer columns of the terminal
    keep: Keep = "start"  #: the part of a shortened text that stays
    leaves: int = 0  #: its turn to go altogether, after all were shortened, 1 first; 0: never
    ids: bool = False  #: shortened to prefixes that are still unique in the table, without a mark


@dataclass(frozen=True, slots=True)
class Fitted:
    """Which columns are shown, and how wide each is."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    picked: tuple[int, ...]  #: their places among all

    def line(self, row: Sequence[str]) -> list[str]:
        """The shown texts of one row, none wider than its column."""
        shown = zip((row[i] for i in self.picked), self.columns, self.widths, strict=True)
        return [
            first(text, width) if column.ids else cut(text, width, column.keep)
            for text, column, width in shown
        ]


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Fitted:
    """The table in so many columns of a terminal; None: as wide as it is."""
    full = [
        max(cells(text) for text in (column.name, *(row[i] for row in rows)))
        for i, column in enumerate(columns)
    ]
    shown = dict(enumerate(full))
    if width is not None:
        least = {i: _least(columns[i], [row[i] for row in rows]) for i in shown}
        shown = _narrowed(columns, shown, least, width)
    return Fitted(tuple(columns[i] for i in shown), tuple(shown.values()), tuple(shown))


def _narrowed(
    columns: Sequence[Column], full: dict[int, int], least: dict[int, int], width: int
) -> dict[int, int]:
    """One leaves, and those that stay are shortened no more than is needed then, until it fits."""
    full = dict(full)
    leaving = sorted((i for i in full if columns[i].leaves), key=lambda i: columns[i].leaves)
    while True:
        shown = _shortened(columns, full, least, width)
        if _over(shown, width) <= 0:
            return shown
        if not leaving:
            return _squeezed(shown, width)
        del full[leaving.pop(0)]


def _shortened(
    columns: Sequence[Column], full: dict[int, int], least: dict[int, int], width: int
) -> dict[int, int]:
    shown = dict(full)
    giving = sorted((i for i in full if columns[i].gives), key=lambda i: columns[i].gives)
    for i in giving:
        spare = max(0, shown[i] - least[i])
        shown[i] -= min(spare, max(0, _over(shown, width)))
    return shown


def _squeezed(shown: dict[int, int], width: int) -> dict[int, int]:
    """For a terminal that is too narrow for the least of it: the widest column gives each time."""
    shown = dict(shown)
    while _over(shown, width) > 0 and max(shown.values()) > 1:
        shown[max(shown, key=lambda i: shown[i])] -= 1
    return shown


def _over(shown: dict[int, int], width: int) -> int:
    return sum(shown.values()) + GAP * (len(shown) - 1) - width


def _least(column: Column, texts: Sequence[str]) -> int:
    if not column.ids:
        return max(column.least, 1)
    return max(ID_LEAST, unique_prefix(texts))


def unique_prefix(ids: Sequence[str]) -> int:
    """Characters by which all different ids of some differ."""
    ordered = sorted(set(ids))
    longest = 0
    for one, other in itertools.pairwise(ordered):
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        longest = max(longest, sum(1 for _ in same))
    return longest + 1

"""Items of a log: the run that wrote them, and lines of a journal, whole or in pieces.

    run SP following SP bytes        run: 16 hex digits; following: how many pieces follow

An entry of the journal is atomic, but may be longer than an item. Its line is then cut into pieces
of consecutive numbers, of which the last one has `following` 0: it commits the line. Pieces without
their last one were never answered, and a reader drops them when another run continues behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpu_scheduler.daemon.log.port import LogDamage

#: Characters of a run's id.
RUN_LENGTH = 16
#: Longest beginning of an item: a line of a terabyte has fewer pieces.
_HEAD_BYTES_MAX = RUN_LENGTH + 12


class Item(NamedTuple):
    """A decoded item."""

    run: str
    following: int  #: pieces of the same line that follow
    body: bytes


def encode_items(line: bytes, run: str, item_bytes_max: int) -> list[bytes]:
    """The items of one line."""
    step = item_bytes_max - _HEAD_BYTES_MAX
    if len(line) <= step:
        return [b"%s 0 %s" % (run.encode(), line)]
    starts = range(0, len(line), step)
    return [
        b"%s %d %s" % (run.encode(), len(starts) - 1 - number, line[start : start + step])
        for number, start in enumerate(starts)
    ]


def decode_item(data: bytes) -> Item | None:
    """The item; None when it is not one."""
    fields = data.split(b" ", 2)
    if len(fields) != 3 or len(fields[0]) != RUN_LENGTH or not fields[1].isdigit():
        return None
    return Item(fields[0].decode(errors="replace"), int(fields[1]), fields[2])


class Pieces:
    """Joins the pieces of lines, in the order of their numbers."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._found: list[Item] = []
        self.dropped = 0  #: pieces of lines that were never committed

    @property
    def begun(self) -> bool:
        """Whether a line is incomplete."""
        return bool(self._found)

    def add(self, seq: int, data: bytes) -> Iterator[tuple[str, bytes]]:
        """The run and bytes of the line that this item completes. Raises LogDamage."""
        item = decode_item(data)
        if item is None:
            raise LogDamage(self._where, seq, "it is not an item of a journal")
        if self._found and self._found[-1].run != item.run:
            self.dropped += len(self._found)
            self._found.clear()
        if self._found and self._found[-1].following != item.following + 1:
            raise LogDamage(self._where, seq, "it is not the next piece of its line")
        self._found.append(item)
        if item.following == 0:
            line = b"".join(piece.body for piece in self._found)
            self._found.clear()
            yield item.run, line

"""Ring: the newest events of a stream by number, for all its readers.

A reader has a number, that of the event it has seen last, and asks the ring for the next one. So a
slow reader costs no memory, one that returns continues at its number, and one that is so late that
its next event is gone learns that. Numbers are of one run of the program; what names that run, and
with it the text of a position, is the server's.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """The newest events by number, without a hole; memory is bounded by their number and bytes."""

    def __init__(self, most: int, bytes_max: int = 0) -> None:
        """At most `most` events, with `bytes_max` bytes; 0: their bytes are not counted."""
        self._most = most
        self._bytes_max = bytes_max
        self._events: dict[int, tuple[T, int]] = {}
        self._bytes = 0
        self._last = 0
        self._lost = 0  # the newest event that is not in the ring

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._last

    def append(self, event: T, size: int = 0) -> int:
        """Add an event of `size` bytes, whose number is returned; the oldest make room for it."""
        self._last += 1
        self._events[self._last] = (event, size)
        self._bytes += size
        while len(self._events) > self._most or 0 < self._bytes_max < self._bytes:
            self._lost += 1
            self._bytes -= self._events.pop(self._lost)[1]
        return self._last

    def next_after(self, number: int) -> T | None:
        """The event after that number; None: there is none yet, or it is lost."""
        found = self._events.get(number + 1)
        return None if found is None else found[0]

    def lost_after(self, number: int) -> bool:
        """True when an event after that number is no longer in the ring."""
        return number < self._lost

    def interrupt(self) -> None:
        """Empty the ring, because events are not collected for a while: a hole begins here."""
        self._events.clear()
        self._bytes = 0
        self._last += 1
        self._lost = self._last

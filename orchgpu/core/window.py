"""How many jobs of a function one replica takes in advance of devices: its receive window.

As wide as the devices want (`full`), halved whenever the scheduler refuses an attempt for a limit
(EXHAUSTED: so many wait already), one wider with each attempt that it takes and with each look at
the devices since which it refused none: messages that cannot get on stay in SQS, where they cost
nobody anything.
"""

from __future__ import annotations


class Window:
    """Never below 1: something must find out that the scheduler takes attempts again."""

    def __init__(self, full: int) -> None:
        self._full = max(1, full)
        self._open = self._full
        self._was_refused = False  # since the last look

    @property
    def size(self) -> int:
        """Jobs that may be in hand without a device."""
        return self._open

    def resize(self, full: int) -> None:
        """A look at the devices: there may be more or fewer."""
        narrowed, self._full = self._open < self._full, max(1, full)
        if narrowed and self._was_refused:
            self._open = min(self._open, self._full)
        else:
            self._open = min(self._open + 1, self._full) if narrowed else self._full
        self._was_refused = False

    def refused(self) -> None:
        """The scheduler is at a limit."""
        self._open = max(1, self._open // 2)
        self._was_refused = True

    def admitted(self) -> None:
        """The scheduler took an attempt, whatever it answered."""
        self._open = min(self._full, self._open + 1)

"""The receive window: the number of a function's jobs that one replica takes without devices.

Its full size depends on the number of devices. It is halved whenever the scheduler refuses an
attempt at a limit (EXHAUSTED), and grows by one with each accepted attempt and with each count of
the devices since the last refusal: jobs that would only wait stay in SQS, where they cost nothing.
"""

from __future__ import annotations


class Window:
    """At least 1 job: one attempt has to show that the scheduler accepts again."""

    def __init__(self, full: int) -> None:
        self._full = max(1, full)
        self._open = self._full
        self._was_refused = False  # since the last count

    @property
    def size(self) -> int:
        """Jobs that may be in hand without a device."""
        return self._open

    def resize(self, full: int) -> None:
        """Set the full size after a count of the devices."""
        narrowed, self._full = self._open < self._full, max(1, full)
        if narrowed and self._was_refused:
            self._open = min(self._open, self._full)
        else:
            self._open = min(self._open + 1, self._full) if narrowed else self._full
        self._was_refused = False

    def refused(self) -> None:
        """The scheduler refused an attempt at a limit."""
        self._open = max(1, self._open // 2)
        self._was_refused = True

    def admitted(self) -> None:
        """The scheduler accepted an attempt, whatever its outcome."""
        self._open = min(self._full, self._open + 1)

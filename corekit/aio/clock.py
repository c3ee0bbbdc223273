"""The two clocks: monotonic for every deadline, wall only for people and for files.

Under the virtual-time loop both follow the loop, so a test of an hour takes milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The clocks that a daemon may use."""

    def monotonic_s(self) -> float:
        """Never goes back; comparable only inside this process."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch; may jump; never used for a deadline."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class LoopClock:
    """The running event loop's time as both clocks (virtual time in tests and the simulator)."""

    def __init__(self, wall_at_zero_s: float = 1_700_000_000.0) -> None:
        self._wall_at_zero_s = wall_at_zero_s

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return self._wall_at_zero_s + self.monotonic_s()

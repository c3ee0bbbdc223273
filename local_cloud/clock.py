"""The clock of the model."""

from __future__ import annotations

from corekit.aio.clock import Clock


class CloudClock:
    """Seconds since the epoch that never decrease while the process runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_s = clock.wall_s() - clock.monotonic_s()

    def now_s(self) -> float:
        """Wall time at start plus monotonic time since."""
        return self._zero_s + self._clock.monotonic_s()

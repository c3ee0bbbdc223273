"""The time that the model is given by the programs around it."""

from __future__ import annotations

from corekit.aio.clock import Clock


class CloudClock:
    """Time as the model wants it: seconds since the epoch that never go back while we run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_s = clock.wall_s() - clock.monotonic_s()

    def now_s(self) -> float:
        """Wall time at start plus monotonic time since."""
        return self._zero_s + self._clock.monotonic_s()

"""Plumbing of both programs of this package: the model's clock, signals."""

from __future__ import annotations

import asyncio

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery, until_first
from corekit.errors import AppError, ErrorCode


async def until_stopped(stop: asyncio.Event, nursery: Nursery) -> None:
    """Wait for the signal. Raises INTERNAL when a task of the nursery failed before."""
    try:
        await until_first(stop.wait(), nursery.failed())
    except Exception as error:
        text = "a background task failed; see the log"
        raise AppError(ErrorCode.INTERNAL, text) from error


class CloudClock:
    """Seconds since the epoch that never decrease while the process runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_s = clock.wall_s() - clock.monotonic_s()

    def now_s(self) -> float:
        """Wall time at start plus monotonic time since."""
        return self._zero_s + self._clock.monotonic_s()

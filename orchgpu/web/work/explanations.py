"""Reasons why requests wait, asked for the visible part of the queue only and kept for moments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.verdicts import Explanation

#: For each one the scheduler evaluates every device.
EXPLAINED_MAX = 20
#: An explanation is asked for again after this long.
KEPT_S = 3.0


class Explanations:
    """The newest explanations, by attempt."""

    def __init__(self, client: SchedulerClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._kept: dict[AttemptId, tuple[float, Explanation]] = {}
        self._asking = asyncio.Lock()  #: many browsers that look at one queue ask once

    async def of(self, attempts: Sequence[AttemptId]) -> dict[AttemptId, Explanation]:
        """The explanations of the first `EXPLAINED_MAX` attempts that still wait."""
        async with self._asking:
            now_s = self._clock.monotonic_s()
            self._kept = {a: one for a, one in self._kept.items() if now_s < one[0] + KEPT_S}
            missing = [a for a in attempts[:EXPLAINED_MAX] if a not in self._kept]
            for attempt, found in zip(
                missing, await asyncio.gather(*map(self._ask, missing)), strict=True
            ):
                if found is not None:
                    self._kept[attempt] = (now_s, found)
            return {a: self._kept[a][1] for a in attempts if a in self._kept}

    async def _ask(self, attempt: AttemptId) -> Explanation | None:
        try:
            return (await self._client.explain(attempt=attempt)).explanation
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None  # granted or withdrawn by now
            raise

"""What a start needs of other programs is waited for: they may start later, or be away for a while.

An orchestrator that ended because the cloud was away would have to be started again by somebody;
meanwhile every job would wait silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from corekit.budget import Budget
from corekit.errors import AppError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Stopped(Exception):
    """The signal to stop came before the start was over."""


class StartupRetry:
    """Repeats what failed for now, with pauses from `reconnect_base_s` up to `reconnect_s_max`."""

    def __init__(self, stop: asyncio.Event, budget: Budget) -> None:
        self._stop = stop
        self._budget = budget

    async def until_done(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """The value of `call`, tried again after every failure that may pass; each is logged.

        Raises what can not pass by itself (no credentials, access denied) at once, and Stopped.
        """
        pause_s = self._budget.reconnect_base_s
        while True:
            try:
                return await self._or_stopped(call())
            except AppError as error:
                if not error.retryable:
                    raise
                logger.warning(
                    "%s cannot be reached; the next try is in %.1f s: %s",
                    what,
                    pause_s,
                    error.message,
                    extra={"event": "start_waits"},
                )
            await self._or_stopped(asyncio.sleep(pause_s))
            pause_s = min(2 * pause_s, self._budget.reconnect_s_max)

    async def _or_stopped(self, work: Awaitable[_T]) -> _T:
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

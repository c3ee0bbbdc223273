"""A connection to the scheduler that reports when something may have changed.

A push wakes the reader, who reads the state again; a state is also read again after a while without
pushes, and after each reconnection, so a lost push delays a change and hides none.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from corekit.aio.environment import budget_from_environment
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import PushWord, SchedulerClient
from gpu_scheduler.client.pushes import Connected, Disconnected
from orchgpu.cli.scheduler import ANSWER_WITHIN_S

#: The shortest time between two reads: a burst of pushes is one change.
GATHER_S = 0.25


class Feed:
    """`async with Feed("127.0.0.1:4700") as feed: ... await feed.changed(2.0)`."""

    def __init__(self, address: str) -> None:
        self.client = SchedulerClient(
            address,
            budget=budget_from_environment(),
            on_push=self._pushed,
            deadline_s=ANSWER_WITHIN_S,
        )
        self.address = address
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._subscribed = False

    async def __aenter__(self) -> Feed:
        """Raises UNAVAILABLE when the scheduler does not answer."""
        await self.client.__aenter__()
        try:
            await self.client.wait_connected(ANSWER_WITHIN_S)
        except BaseException:
            await self.client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def subscribe(self) -> None:
        """Ask for every push, once per connection; call it before each read."""
        if not self._subscribed:
            self._subscribed = True
            try:
                await self._watch()
            except BaseException:
                self._subscribed = False
                raise

    async def _watch(self) -> None:
        try:
            await self.client.watch(records=True)
        except AppError as error:
            if error.code is not ErrorCode.INVALID:
                raise
            await self.client.watch()  # an older scheduler pushes changes of leases only

    async def changed(self, within_s: float, gather_s: float = GATHER_S) -> None:
        """Return when something may have changed since the last call.

        That is after `gather_s` at the earliest, `within_s` later at the latest; `wake` ends both.
        """
        if not await _set_within(self._woken, gather_s):
            await _set_within(self._changed, within_s)
        self._changed.clear()
        self._woken.clear()

    def wake(self) -> None:
        """Let `changed` return now."""
        self._woken.set()
        self._changed.set()

    def _pushed(self, word: PushWord) -> None:
        if isinstance(word, Connected | Disconnected):
            self._subscribed = False
        self._changed.set()


async def _set_within(event: asyncio.Event, within_s: float) -> bool:
    """Wait for the event; False when it is not set in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True

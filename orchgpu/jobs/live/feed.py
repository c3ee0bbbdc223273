"""A connection to the scheduler that reports changes, and keeps the newest job records current.

Changes are those of the event stream where its HTTP endpoint is known: after a lost connection it
continues at its last position, and nothing is read again. Otherwise they are the pushes of the
socket endpoint; then everything is read again after each reconnection. Whatever is not in either
(the use of devices) is read again after a while without changes, so a lost push hides none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Self

from corekit.aio.environment import budget_from_environment
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import Connected, Disconnected, PushWord, SchedulerClient
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol import watch as words
from orchgpu.jobs.live.records import LiveRecords
from orchgpu.jobs.records import newest_records
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S

#: The shortest time between two reads: a burst of pushes is one change.
GATHER_S = 0.25
#: The event stream is used when it begins within this time; its endpoint may not be reachable.
STREAM_WITHIN_S = 2.0
#: The newest job records that are kept.
JOBS_MAX = 1000

#: A change, or a word about the connection that brings them.
Change = PushWord | words.WatchEvent


class Feed:
    """`async with Feed("127.0.0.1:4700") as feed: ... await feed.changed(2.0)`.

    `http`: the scheduler's HTTP endpoints; None: they are not known. `on_change` gets every change
    in the order of arrival and must return at once. `records`: changes of job records are wanted.
    `connected`: the block begins once the scheduler answered; without, it begins at once.
    """

    def __init__(
        self,
        address: str,
        http: str | None = None,
        *,
        on_change: Callable[[Change], None] = lambda _: None,
        records: bool = True,
        access: Access | None = None,
        budget: Budget | None = None,
        deadline_s: float | None = ANSWER_WITHIN_S,
        connected: bool = True,
    ) -> None:
        """`deadline_s` of each call; None: as long as a restart of the scheduler takes."""
        self._budget = budget or budget_from_environment()
        self.client = SchedulerClient(
            address,
            budget=self._budget,
            on_push=self._pushed,
            access=access,
            deadline_s=deadline_s,
        )
        self._http = http
        self._access = access
        self._on_change = on_change
        self._records = records
        self._connected = connected
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._connection = 0  # number of the connection, and of the last loss
        self._watched = -1  # connection whose pushes were asked for
        self._following: asyncio.Task[None] | None = None  # the event stream
        self._stands = asyncio.Event()  # its state is complete: what is read now is as new
        self._lost: AppError | None = None

    async def __aenter__(self) -> Self:
        """Raises UNAVAILABLE when the scheduler does not answer and must be `connected`."""
        await self.client.__aenter__()
        try:
            if self._connected:
                await self.client.wait_connected(ANSWER_WITHIN_S)
            if self._http is not None:
                self._following = asyncio.create_task(self._follow(self._http), name="events")
                if not await _set_within(self._stands, STREAM_WITHIN_S):
                    await self._follow_no_more()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._follow_no_more()
        await self.client.__aexit__(None, None, None)

    async def subscribe(self) -> bool:
        """Ask for every change, once per connection; call it before each read.

        True: of a new connection, so changes before it may be missing. Raises UNAVAILABLE while
        the event stream is lost.
        """
        if self._following is not None:
            await self._stream_stands(self._following)
        is_new = False
        while self._following is None and self._watched != self._connection:
            connection, is_new = self._connection, True
            # may wait for the next connection
            await self.client.ask(ops.Watch(all=True, records=self._records))
            self._watched = connection
        return is_new

    async def _stream_stands(self, following: asyncio.Task[None]) -> None:
        if following.done():
            following.result()  # an error that is not the scheduler's
        if self._lost is None and not await _set_within(self._stands, ANSWER_WITHIN_S):
            text = f"no events from the HTTP endpoint at {self._http}"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        if self._lost is not None:
            raise self._lost

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
            self._connection += 1
        self._on_change(word)
        self._changed.set()

    async def _follow(self, http: str) -> None:
        # aiohttp takes 0.2 s to import, and most commands do without it
        from gpu_scheduler.client.events import watched

        access = self._access or find_access()
        stream = watched(http, access, budget=self._budget, level=logging.DEBUG)
        try:
            async with contextlib.aclosing(stream) as events:
                async for one in events:
                    if one.event is not None:
                        self._streamed(one.event)
        except AppError as error:  # the key may not read it, or was revoked
            self._lost = error
            self._stands.clear()
            self._changed.set()

    def _streamed(self, event: words.WatchEvent) -> None:
        self._lost = None
        match event:
            case words.Started() | words.Reset():
                self._stands.clear()
            case words.Current() | words.Resumed():
                self._stands.set()
            case words.Lost():
                text = f"the scheduler's event stream is lost: {event.why}"
                self._lost = AppError(ErrorCode.UNAVAILABLE, text)
            case words.Beat():
                return
        self._on_change(event)
        self._changed.set()

    async def _follow_no_more(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])


class JobsFeed(Feed):
    """The same with the newest `jobs_max` job records."""

    def __init__(self, address: str, http: str | None = None, jobs_max: int = JOBS_MAX) -> None:
        self._live = LiveRecords(jobs_max)
        super().__init__(address, http, on_change=self._live.take)

    async def subscribe(self) -> bool:
        is_new = await super().subscribe()
        if is_new:
            self._live.expire()
        return is_new

    async def newest_records(self) -> list[Record]:
        """The newest job records, of which only changes are transferred after the first reading."""
        await self.subscribe()
        while self._live.is_stale:
            reading, most = self._live.readings, self._live.most
            found = await newest_records(self.client, most, scanned_max=most)
            self._live.read(found, reading)
            await self.subscribe()  # it may be another connection by now
        return self._live.newest()


async def _set_within(event: asyncio.Event, within_s: float) -> bool:
    """Wait for the event; False when it is not set in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True

"""A connection to the scheduler that reports changes, and keeps the newest job records current.

Changes are those of the event stream where its HTTP endpoint is known: after a lost connection it
continues at its last position, and nothing is read again. Otherwise they are the pushes of the
socket endpoint; then the records are read again after each reconnection. Whatever is not in either
(the use of devices) is read again after a while without changes, so a lost push hides none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType

from corekit.aio.environment import budget_from_environment
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import PushWord, SchedulerClient
from gpu_scheduler.client.access import find_access
from gpu_scheduler.client.pushes import Connected, Disconnected
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import RecordPush
from orchgpu.cli.live.records import LiveRecords
from orchgpu.jobs.records import newest_records
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S

#: The shortest time between two reads: a burst of pushes is one change.
GATHER_S = 0.25
#: The event stream is used when it begins within this time; its endpoint may not be reachable.
STREAM_WITHIN_S = 2.0
#: The newest job records that are kept.
JOBS_MAX = 1000


class Feed:
    """`async with Feed("127.0.0.1:4700") as feed: ... await feed.changed(2.0)`.

    `http`: the scheduler's HTTP endpoints; None: they are not known.
    """

    def __init__(self, address: str, http: str | None = None, jobs_max: int = JOBS_MAX) -> None:
        self._budget = budget_from_environment()
        self.client = SchedulerClient(
            address,
            budget=self._budget,
            on_push=self._pushed,
            deadline_s=ANSWER_WITHIN_S,
        )
        self.address = address
        self._http = http
        self._records = LiveRecords(jobs_max)
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._connection = 0  # number of the connection, and of the last loss
        self._watched = -1  # connection whose pushes were asked for
        self._following: asyncio.Task[None] | None = None  # the event stream
        self._stands = asyncio.Event()  # its state is complete: what is read now is as new
        self._lost: AppError | None = None

    async def __aenter__(self) -> Feed:
        """Raises UNAVAILABLE when the scheduler does not answer."""
        await self.client.__aenter__()
        try:
            await self.client.wait_connected(ANSWER_WITHIN_S)
            if self._http is not None:
                self._following = asyncio.create_task(self._follow(self._http), name="events")
                if not await _set_within(self._stands, STREAM_WITHIN_S):
                    await self._follow_no_more()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._follow_no_more()
        await self.client.__aexit__(kind, error, trace)

    # ------------------------------------------------------------------ what changes

    async def subscribe(self) -> None:
        """Ask for every change, once per connection; call it before each read.

        Raises UNAVAILABLE while the event stream is lost.
        """
        if self._following is not None:
            await self._stream_stands(self._following)
        while self._following is None and self._watched != self._connection:
            connection = self._connection
            self._records.expire()
            await self.client.watch(records=True)  # may wait for the next connection
            self._watched = connection

    async def _stream_stands(self, following: asyncio.Task[None]) -> None:
        if following.done():
            following.result()  # an error that is not the scheduler's
        if self._lost is None and not await _set_within(self._stands, ANSWER_WITHIN_S):
            text = f"no events from the HTTP endpoint at {self._http}"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        if self._lost is not None:
            raise self._lost

    async def newest_records(self) -> list[Record]:
        """The newest job records, of which only changes are transferred after the first reading."""
        await self.subscribe()
        while self._records.is_stale:
            reading, most = self._records.readings, self._records.most
            found = await newest_records(self.client, most, scanned_max=most)
            self._records.read(found, reading)
            await self.subscribe()  # it may be another connection by now
        return self._records.newest()

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
        elif isinstance(word, RecordPush):
            self._records.change(word)
        self._changed.set()

    # ------------------------------------------------------------------ the event stream

    async def _follow(self, http: str) -> None:
        # aiohttp takes 0.2 s to import, and most commands do without it
        from gpu_scheduler.client.events import watched

        stream = watched(http, find_access(), budget=self._budget, level=logging.DEBUG)
        try:
            async with contextlib.aclosing(stream) as events:
                async for one in events:
                    self._take(one.event)
        except AppError as error:  # the key may not read it, or was revoked
            self._lost = error
            self._stands.clear()
            self._changed.set()

    def _take(self, event: words.WatchEvent | None) -> None:
        self._lost = None
        match event:
            case words.Started() | words.Reset():
                self._records.expire()
                self._stands.clear()
            case words.Current() | words.Resumed():
                self._stands.set()
            case RecordPush():
                self._records.change(event)
            case words.Lost():
                text = f"the scheduler's event stream is lost: {event.why}"
                self._lost = AppError(ErrorCode.UNAVAILABLE, text)
            case words.Beat():
                return
        self._changed.set()

    async def _follow_no_more(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])


async def _set_within(event: asyncio.Event, within_s: float) -> bool:
    """Wait for the event; False when it is not set in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True

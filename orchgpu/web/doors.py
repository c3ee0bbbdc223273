"""The scheduler, asked with the key of one browser, and the cloud, asked in threads.

Few calls of the cloud run at once, fewer for each key; the others wait in line.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import KeyRole, name_of
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.rights import KeyRights, rights_of
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S
from orchgpu.web.http.sessions import Places

T = TypeVar("T")


class SchedulerDoor(Value):
    """The way to the scheduler."""

    address: str
    access: Access  #: of the server itself: its CA also holds for browsers' keys
    budget: Budget

    @asynccontextmanager
    async def client(self, key: str | None) -> AsyncIterator[SchedulerClient]:
        """A client with a browser's key, for the length of the block."""
        access = replace(self.access, key=key, source=None)
        async with SchedulerClient(
            self.address, budget=self.budget, deadline_s=ANSWER_WITHIN_S, access=access
        ) as client:
            yield client

    async def ask(self, key: str | None, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
        """One question. Raises the scheduler's error, or UNAVAILABLE."""
        async with self.client(key) as client:
            return await question(client)

    async def viewer(self, key: str | None) -> KeyRights:
        """The rights of a key; None: without one. Raises DENIED for a wrong or missing key."""
        if key is not None and name_of(key) is None:
            text = "this is not a valid key; paste the one that `ssgmd keys add` printed"
            raise AppError(ErrorCode.DENIED, text, needs="key")
        async with self.client(key) as client:
            await client.ask(ops.Beat())  # a refused hello fails it at once
            welcome = client.welcome
        if key is None:
            return KeyRights(name="", role=KeyRole.OPERATOR)  # no keys: this machine is trusted
        least = KeyRights(name=name_of(key) or "", role=KeyRole.READER)
        return rights_of(client.session, welcome) or least  # without a role: the least rights


#: Calls at once; each browser's request is one.
AT_ONCE = 8
#: Calls at once of one key, or of one session where there are no keys.
AT_ONCE_OF_KEY = 2
#: Requests of one that may wait, those of its logs' streams too; above them its oldest is refused.
WAITING_OF_KEY_MAX = 64
#: The same for all together: the oldest is refused of the key that has most.
WAITING_MAX = 512


class CloudDoor:
    """`async with CloudDoor() as door: await door.ask(party, lambda cloud: cloud.functions())`."""

    def __init__(self) -> None:
        self._cloud = JobCloud(connections=AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cloud")
        self._running: Counter[str] = Counter()
        self._line: Places[asyncio.Future[None]] = Places(WAITING_OF_KEY_MAX, WAITING_MAX)

    async def __aenter__(self) -> CloudDoor:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._cloud.close()

    async def ask(self, party: str, question: Callable[[JobCloud], T]) -> T:
        """One piece of work of a party (`Session.party`).

        Raises its AppError; EXHAUSTED when newer requests of the party took its place in line.
        """
        await self._turn(party)
        loop = asyncio.get_running_loop()
        try:
            work = self._threads.submit(question, self._cloud)
        except BaseException:
            self._ended(party)
            raise
        # a cancelled request leaves its thread running: the turn ends with the thread
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended, party))
        return await asyncio.wrap_future(work)

    async def _turn(self, party: str) -> None:
        """Wait until the party may ask; its turn is counted then."""
        if self._running[party] < AT_ONCE_OF_KEY:
            self._running[party] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        gone = self._line.enter(party, turn)
        if gone is not None and not gone.done():
            text = "too many requests wait for the cloud; try again"
            gone.set_exception(AppError(ErrorCode.EXHAUSTED, text, retry_in_s=2.0))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._ended(party)  # it was given its turn at the same moment
            raise
        finally:
            self._line.leave(party, turn)

    def _ended(self, party: str) -> None:
        """The turn goes to the party's next request in line."""
        following = self._line.first(party)
        if following is None:
            self._running[party] -= 1
            if not self._running[party]:
                del self._running[party]
            return
        self._line.leave(party, following)
        if following.done():
            self._ended(party)
        else:
            following.set_result(None)

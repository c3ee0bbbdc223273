"""The cloud, asked in threads: a few calls at once, fewer for each key; the others wait in line."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from corekit.errors import AppError, ErrorCode
from orchgpu.jobs.cloud import JobCloud
from orchgpu.web.model.places import Places

T = TypeVar("T")

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

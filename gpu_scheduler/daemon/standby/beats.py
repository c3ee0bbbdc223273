"""The leader's part: an empty group while it is idle, and the end of its epoch when it stops.

By the beats a standby knows that the leader lives, and an idle leader that was overtaken notices:
its next beat loses its item, and it ends. So it answers reads for one beat at most. While nothing
is connected the beats are fewer, as each has a price; a take-over comes as soon after the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.protocol import changes as to

logger = logging.getLogger(__name__)


class BeatingJournal:
    """The journal of a leader with standbys."""

    def __init__(
        self,
        journal: Journal,
        budget: Budget,
        now_s: Callable[[], float],
        is_alone: Callable[[], bool],
    ) -> None:
        """`is_alone`: whether no session and no host is connected."""
        self._journal = journal
        self._budget = budget
        self._now_s = now_s
        self._is_alone = is_alone
        self._last_s = now_s()
        self._under_way = 0

    def append(self, changes: Sequence[to.Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`."""
        self._under_way += 1
        return self._settled(self._journal.append(changes))

    async def _settled(self, durable: Awaitable[None]) -> None:
        await durable
        self._under_way -= 1
        self._last_s = self._now_s()

    async def beats(self) -> None:
        """Append an empty group whenever nothing else was appended for a while. Endless.

        Never beside another append: while one is under way, decisions may be applied that are not
        appended yet, and a snapshot for this group would hold them. Raises the log's error.
        """
        while True:
            idle_s = self._now_s() - self._last_s
            often_s = self._budget.leader_beat_s
            beat_s = self._budget.leader_alone_beat_s if self._is_alone() else often_s
            if self._under_way == 0 and idle_s >= beat_s:
                await self.append(())
            else:  # looks again soon, for a new connection
                await asyncio.sleep(min(max(beat_s - idle_s, often_s / 10), often_s / 2))


class Handover:
    """The end of an epoch in order: its last entry lets a standby take over at once."""

    def __init__(self, journal: Journal, within_s: float) -> None:
        self._journal = journal
        self._within_s = within_s
        self.epoch: int | None = None  #: None: there is nothing to hand over

    async def at_exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Append the end of the epoch, when the driver has ended and this ssgmd stops in order."""
        del error, trace
        in_order = kind is None or issubclass(kind, asyncio.CancelledError)
        if self.epoch is None or not in_order:
            return
        fields = {"epoch": self.epoch}
        # the state may hold decisions of the stopped driver that were never appended
        self._journal.snapshot = None
        try:
            async with asyncio.timeout(self._within_s):
                ended = to.Entry(parts=(to.EpochEnded(epoch=self.epoch),))
                await self._journal.append([ended])
        except (AppError, TimeoutError) as failure:
            text = "a standby takes over after the silence only: %s"
            logger.warning(text, failure, extra={"event": "no_handover", **fields})
        else:
            logger.info("the epoch is ended", extra={"event": "handed_over", **fields})

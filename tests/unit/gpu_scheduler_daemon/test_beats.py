"""Signs of life of a leader, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import pytest

from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.standby.beats import BeatingJournal, Handover
from gpu_scheduler.protocol.changes import Entry, EpochEnded, Part, RecordForgotten

CHANGE = Entry(parts=(RecordForgotten(holder=JobId("j")),))


class Written:
    """A journal that takes `put_s` for each group."""

    def __init__(self, put_s: float = 0.0, fails: bool = False) -> None:
        self.groups: list[tuple[float, int]] = []
        self.ended: list[Entry] = []
        self.snapshot: Callable[[], Iterable[Part]] | None = lambda: ()
        self.may_compact: list[bool] = []
        self._put_s = put_s
        self._fails = fails

    def append(self, changes: Sequence[Entry]) -> Awaitable[None]:
        loop = asyncio.get_running_loop()
        self.groups.append((round(loop.time() - self.began_s, 3), len(changes)))
        self.ended += changes
        self.may_compact.append(self.snapshot is not None)
        return self._put()

    async def _put(self) -> None:
        await asyncio.sleep(self._put_s)
        if self._fails:
            raise AppError(ErrorCode.CONFLICT, "another one continues the log")

    async def beating(
        self, for_s: float, busy: Sequence[float] = (), alone: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Beat for a while; at the times of `busy`, groups of one change; alone between two."""
        loop = asyncio.get_running_loop()
        self.began_s = loop.time()
        journal = BeatingJournal(
            cast("Journal", self),
            Budget(),
            loop.time,
            lambda: alone[0] <= loop.time() - self.began_s < alone[1],
        )
        task = asyncio.ensure_future(journal.beats())
        for at_s in busy:
            await asyncio.sleep(self.began_s + at_s - loop.time())
            await journal.append((CHANGE,))
        await asyncio.sleep(self.began_s + for_s - loop.time())
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_an_idle_leader_beats() -> None:
    written = Written()
    run_virtual(written.beating(3.5))
    assert written.groups == [(1.0, 0), (2.0, 0), (3.0, 0)]


def test_a_leader_that_is_alone_beats_less_often_until_somebody_connects() -> None:
    written = Written()
    run_virtual(written.beating(9.2, alone=(1.5, 6.6)))
    assert written.groups == [(1.0, 0), (3.0, 0), (5.0, 0), (7.0, 0), (8.0, 0), (9.0, 0)]


def test_a_busy_leader_needs_no_beats() -> None:
    written = Written()
    run_virtual(written.beating(4.0, busy=[0.5, 1.4, 2.3, 3.2]))
    assert written.groups == [(0.5, 1), (1.4, 1), (2.3, 1), (3.2, 1)]


def test_no_beat_is_appended_beside_a_slow_group() -> None:
    """A snapshot for the beat would hold decisions that are not appended yet."""
    written = Written(put_s=5.0)
    run_virtual(written.beating(6.5, busy=[0.5]))
    assert written.groups == [(0.5, 1), (6.5, 0)]


def test_a_lost_beat_ends_the_leader() -> None:
    with pytest.raises(AppError, match="another one continues"):
        run_virtual(Written(fails=True).beating(2.0))


def exits(error: BaseException | None, epoch: int | None) -> list[Entry]:
    return exit_of(error, epoch).ended


def exit_of(error: BaseException | None, epoch: int | None) -> Written:
    written = Written()

    async def stopped() -> None:
        written.began_s = 0.0
        handover = Handover(cast("Journal", written), 1.0)
        handover.epoch = epoch
        await handover.at_exit(None if error is None else type(error), error, None)

    run_virtual(stopped())
    return written


def test_only_a_stop_in_order_ends_the_epoch() -> None:
    ended = [Entry(parts=(EpochEnded(epoch=4),))]
    assert exits(None, 4) == exits(asyncio.CancelledError(), 4) == ended
    assert exits(AppError(ErrorCode.CONFLICT, "overtaken"), 4) == []
    assert exits(None, None) == [], "it never led, or has no log"


def test_the_last_entry_has_no_snapshot() -> None:
    """The state may hold decisions of a group that the stopped driver never appended."""
    assert exit_of(None, 4).may_compact == [False]

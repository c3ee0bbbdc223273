"""Proven sessions that wait for the shares of their leases.

A session of a lease granted ahead, or of one whose data is being fetched, waits as long as the
lease does: until its shares are booked and free and its data is here, or the lease is over. Any
other waits for the end of the processes that occupy its shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Protocol

from corekit.budget import Budget
from corekit.ids import LeaseId
from remote_gpu.host.gateway.arrivals import Slots
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.table import LeasePhase
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, Meta
from remote_gpu.wire.proof import Hello

#: Of one lease: two starts of its attempt, and two whose loss is not seen yet. A newer one evicts
#: the oldest.
WAITING_MAX = 4


class WaitingReports(Protocol):
    """Reports to the scheduler; a session is named by its nonce."""

    def knocked(self, lease: LeaseId, nonce: str) -> None:
        """A session waits for a lease granted ahead."""

    def left(self, lease: LeaseId, nonce: str) -> None:
        """The last session that waited for a lease is gone, and none has opened."""


class WaitingSessions:
    """The sessions that wait on one host; lives in the event loop."""

    def __init__(self, leases: Leases, reports: WaitingReports, budget: Budget, limit: int) -> None:
        self._leases = leases
        self._reports = reports
        self._budget = budget
        self._slots = Slots(limit, WAITING_MAX)
        self._knocked: Counter[LeaseId] = Counter()  #: sessions that wait, by their leases

    def knocked(self) -> tuple[LeaseId, ...]:
        """The leases of which a session has knocked and waits."""
        return tuple(self._knocked)

    async def until_placed(self, peer: Peer, hello: Hello) -> None:
        """Wait until a session may open, its lease is over, or its time to wait is.

        Raises Refused(BUSY) for one that newer ones evict, and WireError or OSError for one whose
        client has gone.
        """
        lease = LeaseId(hello.lease)
        if self._is_decided(lease):
            return
        if not hello.waits:
            decided = functools.partial(self._is_decided, lease)
            await self._leases.until(decided, self._budget.worker_cut_s)
            return
        knocks: list[str] = []
        try:
            async with self._listening(peer) as end:
                with self._slots.held(hello.lease, functools.partial(_cancel, end)):
                    await self._wait(peer, lease, hello.session, end, knocks)
        finally:
            if knocks:
                self._waits_no_longer(lease, hello.session)

    def _waits_no_longer(self, lease: LeaseId, nonce: str) -> None:
        """Report that a session has gone, unless another one waits or it opens now."""
        self._knocked[lease] -= 1
        if not self._knocked[lease]:
            del self._knocked[lease]
            if not self._is_decided(lease):
                self._reports.left(lease, nonce)

    async def _wait(
        self,
        peer: Peer,
        lease: LeaseId,
        nonce: str,
        end: asyncio.Future[Meta],
        knocks: list[str],
    ) -> None:
        leases, beat_s = self._leases, self._budget.session_beat_s
        until_s, beat_at_s = self._cut_at_s(), leases.now_s()
        while not self._is_decided(lease):
            ahead, fetches = self._waits(lease)
            if ahead or fetches:
                until_s = self._cut_at_s()  # counts from the booking, and from the data's arrival
                if ahead and not knocks:
                    knocks.append(nonce)
                    self._knocked[lease] += 1
                    self._reports.knocked(lease, nonce)
            now_s = leases.now_s()
            if now_s >= until_s:
                return
            if now_s >= beat_at_s:
                beat_at_s = now_s + beat_s
                await peer.send({"waiting": {}}, self._budget.handshake_s)

            def changed(waits: tuple[bool, bool] = (ahead, fetches)) -> bool:
                return end.done() or self._is_decided(lease) or self._waits(lease) != waits

            await leases.until(changed, min(until_s, beat_at_s) - leases.now_s())
            if end.done():
                _raise_end(end)

    def _is_decided(self, lease: LeaseId) -> bool:
        entry = self._leases.table.find(lease)
        return entry is None or entry.phase is not LeasePhase.QUEUED

    def _waits(self, lease: LeaseId) -> tuple[bool, bool]:
        """Whether the lease waits for its shares, and for data that its host fetches."""
        entry = self._leases.table.find(lease)
        if entry is None:
            return False, False
        return entry.install.ahead, bool(self._leases.table.data.lacked(entry.install))

    def _cut_at_s(self) -> float:
        return self._leases.now_s() + self._budget.worker_cut_s

    @contextlib.asynccontextmanager
    async def _listening(self, peer: Peer) -> AsyncIterator[asyncio.Future[Meta]]:
        """The end of a client, which sends nothing while it waits."""
        end = asyncio.ensure_future(peer.receive(HANDSHAKE, None))
        end.add_done_callback(lambda _: self._leases.wake())
        try:
            yield end
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)


def _cancel(end: asyncio.Future[Meta]) -> None:
    end.cancel()


def _raise_end(end: asyncio.Future[Meta]) -> None:
    if end.cancelled():
        raise Refused(Refusal.BUSY, "evicted by newer sessions that wait")
    if (error := end.exception()) is not None:
        raise error
    raise WireError("a frame came before the welcome")

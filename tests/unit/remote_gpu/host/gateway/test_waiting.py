"""Sessions that wait at the gateway: how long, and of which clients."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.transport.handshake import Wait, new_nonce, open_connection
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.wire.connection import HostAccess
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import ConnectionRole
from tests.unit.remote_gpu.host.host_parts import D0, Reports, host_daemon, install

BEAT_S = 0.01
BEATS = 10

CUT_S = 5 * BEAT_S


@contextlib.asynccontextmanager
async def serving(folder: Path, cut_s: float) -> AsyncIterator[tuple[HostDaemon, Reports]]:
    """A gateway whose sessions wait for `cut_s` for the end of processes."""
    budget = Budget(worker_cut_s=cut_s, session_beat_s=BEAT_S, session_silence_s=30.0)
    async with asyncio.timeout(60), Nursery("test") as nursery:
        with host_daemon(folder, nursery, budget, {D0: 1000}) as (daemon, reports):
            nursery.start_eternal(daemon.parts.gateway.serve(), "gateway")
            yield daemon, reports


class Killed(Exception):
    """The end of a client in the middle of its wait."""


class Client:
    """A session's client, in a thread."""

    def __init__(self, daemon: HostDaemon, lease: Install, *, waits: bool) -> None:
        self.dies = False  #: at the next message that it waits
        self.heard = asyncio.Event()  #: that it waits, `BEATS` times
        self.ends = threading.Event()  #: set: a session that opens ends at once
        self.ends.set()
        self.opened = asyncio.Event()
        self._count = 0
        self._loop = asyncio.get_running_loop()
        gateway = daemon.parts.gateway.address
        self._access = HostAccess("h", gateway, lease.secret, ())
        self._lease = lease
        self._wait = Wait(until_s=None, on_waiting=self._waiting) if waits else None
        self.code = asyncio.create_task(asyncio.to_thread(self._open))

    def _waiting(self) -> None:
        self._count += 1
        if self.dies:
            raise Killed
        if self._count == BEATS:
            self._loop.call_soon_threadsafe(self.heard.set)

    def _open(self) -> str:
        try:
            stream, *_ = open_connection(
                self._access,
                role=ConnectionRole.SESSION,
                lease=self._lease.lease,
                fence=self._lease.fence,
                session=new_nonce(),
                timeout_s=50.0,
                cap_s=10.0,
                wait=self._wait,
            )
        except Refused as refused:
            return refused.code
        except Killed:
            return "killed"
        self._loop.call_soon_threadsafe(self.opened.set)
        self.ends.wait(50.0)
        stream.close()
        return "opened"


def ahead(lease: str, fence: int = 1) -> Install:
    return replace(install(lease, fence, memory_mib=1000), ahead=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_ahead", [True, False])
async def test_a_client_that_does_not_understand_waiting(tmp_path: Path, is_ahead: bool) -> None:
    async with serving(tmp_path, cut_s=CUT_S) as (daemon, reports):
        daemon.install(install("l1", memory_mib=1000))
        second = replace(ahead("l2", 2), ahead=is_ahead)
        daemon.install(second)
        assert await Client(daemon, second, waits=False).code == Refusal.NOT_READY
        assert reports.knocks == []


@pytest.mark.asyncio
async def test_a_session_of_an_ordinary_lease_waits_for_processes_only(tmp_path: Path) -> None:
    async with serving(tmp_path, cut_s=CUT_S) as (daemon, reports):
        daemon.install(install("l1", memory_mib=1000))
        second = replace(ahead("l2", 2), ahead=False)
        daemon.install(second)
        client = Client(daemon, second, waits=True)
        assert await client.code == Refusal.NOT_READY
        assert reports.knocks == []


@pytest.mark.asyncio
async def test_a_session_of_a_lease_ahead_waits_until_its_booking_and_a_cut(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, cut_s=CUT_S) as (daemon, reports):
        lease = ahead("l1")
        daemon.install(lease)
        client = Client(daemon, lease, waits=True)
        await client.heard.wait()  # longer than an ordinary one would wait
        assert not client.code.done()
        assert reports.knocks == ["l1"]
        daemon.install(replace(lease, ahead=False))
        assert await client.code == "opened"


@pytest.mark.asyncio
async def test_a_booked_lease_whose_shares_stay_occupied_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, cut_s=CUT_S) as (daemon, _):
        daemon.install(install("l1", memory_mib=1000))
        lease = ahead("l2", 2)
        daemon.install(lease)
        client = Client(daemon, lease, waits=True)
        await client.heard.wait()
        daemon.install(replace(lease, ahead=False))
        assert await client.code == Refusal.NOT_READY


@pytest.mark.asyncio
async def test_a_lease_that_is_booked_when_its_session_comes_may_lose_the_booking(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, cut_s=30.0) as (daemon, reports):
        daemon.install(install("l1", memory_mib=1000))
        lease = ahead("l2", 2)
        daemon.install(replace(lease, ahead=False))
        client = Client(daemon, lease, waits=True)
        await client.heard.wait()
        assert reports.knocks == []
        daemon.install(lease)
        await reports.knocked.wait()
        assert reports.knocks == ["l2"]
        daemon.end(lease.lease, 2, EndReason.WITHDRAWN)
        assert await client.code == Refusal.ENDED


@pytest.mark.asyncio
async def test_the_last_client_that_dies_while_it_waits_takes_its_knock_back(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, cut_s=30.0) as (daemon, reports):
        lease = ahead("l1")
        daemon.install(lease)
        clients = [Client(daemon, lease, waits=True) for _ in range(2)]
        for client in clients:
            await client.heard.wait()
        assert daemon.parts.gateway.waiting() == ("l1",)
        clients[0].dies = True
        assert await clients[0].code == "killed"
        last = Client(daemon, lease, waits=True)
        await last.heard.wait()
        assert reports.departures == []
        for client in (clients[1], last):
            client.dies = True
            assert await client.code == "killed"
        await reports.departed.wait()
        assert reports.departures == ["l1"]
        assert daemon.parts.gateway.waiting() == ()


@pytest.mark.asyncio
async def test_a_session_that_opens_takes_nothing_back(tmp_path: Path) -> None:
    async with serving(tmp_path, cut_s=30.0) as (daemon, reports):
        lease = ahead("l1")
        daemon.install(lease)
        client = Client(daemon, lease, waits=True)
        await client.heard.wait()
        client.ends.clear()
        daemon.install(replace(lease, ahead=False))
        await client.opened.wait()
        assert daemon.parts.gateway.waiting() == ("l1",), "its opening may not be reported yet"
        client.ends.set()
        assert await client.code == "opened"
        assert reports.departures == []


@pytest.mark.asyncio
async def test_a_session_whose_wait_for_processes_is_over_has_left(tmp_path: Path) -> None:
    async with serving(tmp_path, cut_s=CUT_S) as (daemon, reports):
        daemon.install(install("l1", memory_mib=1000))
        lease = ahead("l2", 2)
        daemon.install(lease)
        client = Client(daemon, lease, waits=True)
        await client.heard.wait()
        daemon.install(replace(lease, ahead=False))
        assert await client.code == Refusal.NOT_READY
        assert reports.departures == ["l2"]

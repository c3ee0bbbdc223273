"""The end of a lease that is not clean: its devices are SUSPECT until nothing of it is left."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import (
    DeviceKind,
    Door,
    EndReason,
    Health,
    LeaseLifetime,
    LeaseState,
    Share,
    Symptom,
)
from gpu_scheduler.protocol.host import Install, SessionState
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import LeaseTable
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import Worker, WorkerPool
from remote_gpu.worker import control

D0 = DeviceId("d0")


def install(number: int, kind: DeviceKind = DeviceKind.CPU) -> Install:
    share = Share(
        host=HostId("h"),
        device=D0,
        index=0,
        kind=kind,
        model="m",
        memory_mib=600,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )
    return Install(
        lease=LeaseId(f"l{number}"),
        fence=number,
        secret="ab" * 32,
        state=LeaseState.RESERVED,
        shares=(share,),
        tenant="t",
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        cap_s=None,
        connect_by_s=None,
    )


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


class Told:
    """The scheduler's end of the link."""

    def __init__(self) -> None:
        self.closed: list[tuple[LeaseId, EndReason | None]] = []
        self.cuts: list[LeaseId] = []

    def session(
        self,
        lease: LeaseId,
        state: SessionState,
        nonce: str,
        reason: EndReason | None = None,
        detail: str = "",
    ) -> None:
        self.closed.append((lease, reason))

    def cut(self, lease: LeaseId) -> None:
        self.cuts.append(lease)


@pytest.mark.asyncio
async def test_a_worker_that_cannot_be_killed(tmp_path: Path) -> None:
    """Nothing here can make a process unkillable: the daemon finds one that it has not killed."""
    log = LeaseLog(tmp_path / "leases.jsonl")
    process = sleeping()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    worker = Worker(process.pid, os.pidfd_open(process.pid), ours, 10.0)
    async with Nursery("test") as nursery:
        pool = WorkerPool({}, tmp_path, (), (), Budget(), nursery)
        daemon = HostDaemon(LeaseTable({D0: 1000}, 30.0), pool, Turns({}), log, Budget(), nursery)
        daemon.link = told = Told()
        daemon.install(install(1))
        daemon.install(install(2))  # waits for the other
        assert set(daemon.leased()) == {D0}
        daemon.table.end(LeaseId("l1"), EndReason.REVOKED)
        stuck = nursery.start(daemon._stuck(LeaseId("l1"), worker), "stuck")
        await daemon.until(lambda: bool(told.cuts), 30.0)
        assert told.closed == [("l2", EndReason.DEVICE_BAD)]
        assert told.cuts == ["l2"], "the stuck one is not cut"
        fault = daemon.faults()[D0]
        assert (fault.health, fault.symptom) == (Health.SUSPECT, Symptom.HUNG)
        assert str(process.pid) in fault.detail
        process.kill()
        await stuck
        assert daemon.faults() == {}
        process.communicate()
    log.close()
    theirs.close()


@pytest.mark.asyncio
async def test_a_worker_cannot_make_its_host_hold_descriptors() -> None:
    process = sleeping()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(process.pid, os.pidfd_open(process.pid), ours, 10.0)
    reading, writing = os.pipe()
    with theirs, os.fdopen(reading, "rb") as end:
        control.send(theirs, {"lane_ended": {}}, writing)
        os.close(writing)
        await asyncio.to_thread(end.read)  # ends when nobody has the other end any more
    process.kill()
    await worker.gone
    process.communicate()


@pytest.mark.asyncio
async def test_a_worker_is_gone_when_nothing_that_it_started_is_left() -> None:
    process = sleeping()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(process.pid, os.pidfd_open(process.pid), ours, 10.0)
    with theirs:  # as a program of it does
        process.kill()
        await asyncio.to_thread(process.communicate)
        assert not (await asyncio.wait({worker.gone}, timeout=0.05))[0]
        lane = asyncio.create_task(worker.lane(ours, 0, "cpu", b""))
        assert not (await asyncio.wait({lane}, timeout=0.01))[0]
        worker.kill()
    await worker.gone
    assert not await lane, "nothing of it was served"


async def seen(ready: Callable[[], bool]) -> None:
    """Poll: not everything that changes wakes who waits."""
    async with asyncio.timeout(60):
        for pause_s in itertools.repeat(0.01):
            if ready():
                return
            await asyncio.sleep(pause_s)


class Card:
    """The driver's figure, as a test says."""

    used_mib_now: int | None = None

    async def used_mib(self, device: DeviceId) -> int | None:
        assert device == D0
        return self.used_mib_now


@pytest.mark.asyncio
async def test_a_card_is_lent_again_when_its_memory_is_back(tmp_path: Path) -> None:
    log, budget = LeaseLog(tmp_path / "leases.jsonl"), replace(Budget(), worker_cut_s=0.01)
    async with Nursery("test") as nursery:
        pool = WorkerPool({}, tmp_path, (), (), budget, nursery)
        daemon = HostDaemon(LeaseTable({D0: 2000}, 30.0), pool, Turns({}), log, budget, nursery)
        daemon.link, daemon.memory = told, card = Told(), Card()
        for number in range(1, 5):
            daemon.install(install(number, DeviceKind.CUDA))  # three fit, the fourth waits
        card.used_mib_now = 2 * (600 + 512) + 512  # more than two leases with their processes need
        daemon.end(LeaseId("l1"), 1, EndReason.REVOKED)
        await seen(lambda: bool(daemon.faults()))
        fault = daemon.faults()[D0]
        assert (fault.health, fault.symptom) == (Health.SUSPECT, Symptom.MEMORY_HELD)
        assert fault.detail == "2736 MiB in use after the end of lease l1"
        assert (told.closed, told.cuts) == ([], []), "what is not clean is not cut; l4 waits"
        card.used_mib_now = 2 * (600 + 512)
        await seen(lambda: "l1" in told.cuts)
        assert daemon.faults() == {}
        assert daemon.table.find("l4").occupying
        card.used_mib_now = None  # what a driver does not tell is not clean
        daemon.end(LeaseId("l2"), 2, EndReason.REVOKED)
        await seen(lambda: bool(daemon.faults()))
        assert daemon.faults()[D0].detail == "its driver does not tell what lease l2 left in use"
        card.used_mib_now = 0
        await seen(lambda: "l2" in told.cuts)
    log.close()

"""A worker that cannot be killed: its devices are SUSPECT until it is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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
    Hold,
    LeaseState,
    Share,
    Symptom,
)
from gpu_scheduler.protocol.host import Install, SessionState
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import LeaseTable
from remote_gpu.host.pool import Worker, WorkerPool
from remote_gpu.host.turns import Turns

D0 = DeviceId("d0")


def install(number: int) -> Install:
    share = Share(
        host=HostId("h"), device=D0, index=0, kind=DeviceKind.CPU, model="cpu", memory_mib=600,
        compute_guarantee_pct=0, compute_limit_pct=100, exclusive=False,
    )  # fmt: skip
    return Install(
        lease=LeaseId(f"l{number}"), fence=number, secret="ab" * 32, state=LeaseState.RESERVED,
        shares=(share,), tenant="t", hold=Hold.SESSION, door=Door.GATEWAY, cap_s=None,
        connect_by_s=None,
    )  # fmt: skip


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


class Told:
    """The scheduler's end of the link."""

    def __init__(self) -> None:
        self.closed: list[tuple[LeaseId, EndReason | None]] = []
        self.cuts: list[LeaseId] = []

    def session(
        self, lease: LeaseId, state: SessionState, nonce: str,
        reason: EndReason | None = None, detail: str = "",
    ) -> None:  # fmt: skip
        self.closed.append((lease, reason))

    def cut(self, lease: LeaseId) -> None:
        self.cuts.append(lease)


@pytest.mark.asyncio
async def test_a_worker_that_cannot_be_killed(tmp_path: Path) -> None:
    """Nothing here can make a process unkillable: the daemon finds one that it has not killed."""
    log = LeaseLog(tmp_path / "leases.jsonl")
    process = sleeping()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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

"""A host's daemon whose scheduler and driver are played by a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.tracing.span import NoTracer
from gpu_scheduler.model import DeviceKind, EndReason
from gpu_scheduler.monitor.ports import DeviceProcess
from gpu_scheduler.protocol.host import Install, SessionChange, SessionState
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.data.files import DataFiles
from remote_gpu.host.data.sets import DataSets
from remote_gpu.host.devices.card_checks import CardChecks
from remote_gpu.host.gateway.gateway import Endpoints, GatewayLimits
from remote_gpu.host.gateway.lease_ports import PortSettings
from remote_gpu.host.gateway.listeners import Listeners
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.host.parts import Outside, Parts
from remote_gpu.host.reports.sessions import SchedulerLink
from remote_gpu.host.runs.runs import RunSettings
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.host.workers.worker import Worker
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.middleware.base import VisibleDevices
from remote_gpu.worker.settings import WorkerSettings
from tests.installs import install_of, share_of

D0 = DeviceId("d0")


def install(
    lease: str,
    fence: int = 1,
    kind: DeviceKind = DeviceKind.CPU,
    memory_mib: int = 1,
    secret: bytes = b"\xab" * 32,
) -> Install:
    """A lease of one shared device."""
    share = share_of(D0, kind=kind, memory_mib=memory_mib)
    return install_of(fence, share, lease=LeaseId(lease), secret=secret.hex())


def idle_process(code: str = "input()") -> subprocess.Popen[bytes]:
    """A process that waits."""
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


@contextlib.asynccontextmanager
async def idle_worker(
    nursery: Nursery | None = None, take_s: float = 30.0, code: str = "input()"
) -> AsyncIterator[tuple[Worker, socket.socket]]:
    """A worker whose process waits, and the end of its socket on which the test speaks for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with idle_process(code) as process:
        worker = Worker(process.pid, os.pidfd_open(process.pid), ours, take_s, nursery)
        try:
            yield worker, theirs
        finally:
            worker.kill()
            theirs.close()
            await worker.gone


class Reports:
    """The scheduler's end of the link."""

    def __init__(self) -> None:
        self.sessions: list[tuple[LeaseId, EndReason | None]] = []
        self.knocks: list[LeaseId] = []
        self.knocked = asyncio.Event()
        self.departures: list[LeaseId] = []
        self.departed = asyncio.Event()
        self.cuts: list[LeaseId] = []
        self.urgent = 0

    def session(self, change: SessionChange) -> None:
        if change.state is SessionState.KNOCKED:
            self.knocks.append(change.lease)
            self.knocked.set()
        elif change.state is SessionState.LEFT:
            self.departures.append(change.lease)
            self.departed.set()
        else:
            self.sessions.append((change.lease, change.reason))

    def report_soon(self) -> None:
        self.urgent += 1

    def door(self, lease: LeaseId, address: str) -> None:
        raise AssertionError("no lease of these tests has a port of its own")

    def cut(self, lease: LeaseId) -> None:
        self.cuts.append(lease)


class Card:
    """The driver's figure, set by a test."""

    used_mib_now: int | None = None
    processes_now: tuple[DeviceProcess, ...] = ()

    async def used_mib(self, device: DeviceId) -> int | None:
        assert device == D0
        return self.used_mib_now

    def processes(self) -> tuple[DeviceProcess, ...]:
        return self.processes_now


def run_settings(folder: Path) -> RunSettings:
    """Of a host that runs functions without isolation."""
    return RunSettings(
        host=HostId("h"),
        policy=IsolationPolicy(),
        files=HostFiles(),
        packages=folder / "packages",
        gateway_port=1,
    )


@contextlib.contextmanager
def host_daemon(
    folder: Path,
    nursery: Nursery,
    budget: Budget,
    memory_mib: Mapping[DeviceId, int],
    card: Card | None = None,
    limits: GatewayLimits | None = None,
) -> Iterator[tuple[HostDaemon, Reports]]:
    """A daemon that never started a worker; its gateway does not serve yet."""
    log, listeners = LeaseLog(folder / "leases.jsonl"), Listeners("127.0.0.1", 0)
    ports = PortSettings(listen="127.0.0.1", advertise="127.0.0.1")
    sandboxes = Sandboxes(IsolationPolicy(), folder / "kept")
    try:
        scheduler, leases = SchedulerLink(), Leases(LeaseTable(memory_mib, 30.0), log)
        scheduler.link = reports = Reports()
        outside = Outside(
            pool=WorkerPool(WorkerSettings(kept=folder), budget, nursery, sandboxes),
            turns=Turns({}),
            relays=Relays({}, folder / "servers", budget, nursery, VisibleDevices(), sandboxes),
            memory=card or Card(),
            cards=CardChecks(budget, nursery),
            endpoints=Endpoints(
                host=HostId("h"),
                listeners=listeners,
                ports=ports,
                limits=limits or GatewayLimits(),
            ),
            scheduler=scheduler,
            tracer=NoTracer(),
            sandboxes=sandboxes,
            runs=run_settings(folder),
        )
        files = DataFiles(folder / "data", folder / "data-views")
        data = DataSets(leases, files, 0, nursery, reports.report_soon)
        parts = Parts(leases, outside, budget, nursery, data=data)
        yield HostDaemon(parts), reports
    finally:
        listeners.close()
        log.close()

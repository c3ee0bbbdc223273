"""Wiring of gpud: pool, table, gateway, daemon, probe; all but the link to the scheduler."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corekit.aio.process import private_folder
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.gateway.gateway import Gateway
from remote_gpu.host.gateway.lease_ports import LeasePorts, PortSettings
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.gateway.tls import HostTls
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import LeaseTable
from remote_gpu.host.offer import KeptContents, Offer
from remote_gpu.host.probe import CPU_INDEX, CpuProbe, CpuSettings
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.cells import Sandboxes
from remote_gpu.host.workers.isolation import find_policy
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.middleware import VisibleDevices
from remote_gpu.worker.isolation.policy import Policy, Setting
from remote_gpu.worker.operation import BATCH_WAIT_S
from remote_gpu.worker.programs import Program

logger = logging.getLogger(__name__)

LEASE_LOG_NAME = "leases.jsonl"  #: in the state folder
KEPT_NAME = "kept"  #: in the state folder: what tenants sent by hash, and their compiled kernels
SOCKET_NAME = "gateway.sock"  #: in the state folder: the gateway for programs of this machine
SERVERS_NAME = "servers"  #: in the state folder: one folder for each server that runs


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What `gpud` was told."""

    host: HostId
    state: Path  #: folder for the lease log; made when absent
    cpu: CpuSettings
    budget: Budget
    listen_address: str = "127.0.0.1"
    listen_port: int = 0  #: 0 = any free one
    advertise_address: str = ""  #: as clients reach it; "" = the same
    door_ports: range = range(1)  #: for leases with a port of their own; 0 = any free one
    data: Mapping[str, Path] = field(default_factory=dict)  #: host-resident data by name
    operations: tuple[str, ...] = ()  #: to offer; empty = all that load
    programs: Mapping[str, Program] = field(default_factory=dict)  #: that `exec` may run
    batch_wait_s: float = BATCH_WAIT_S  #: how long calls of one model wait for each other
    middlewares: Mapping[str, Path] = field(default_factory=dict)  #: name → its server's program
    visible: VisibleDevices = field(default_factory=VisibleDevices)  #: what those servers could see
    tls: HostTls | None = None
    isolation: Setting = Setting.AUTO
    secret_files: tuple[Path, ...] = ()  #: beside `state`: none of them may be open to leases


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHost:
    """A host that serves; give `daemon.link` the scheduler's link to complete it."""

    daemon: HostDaemon
    cpu: CpuProbe
    policy: Policy  #: what isolates its leases
    offer: Offer  #: what it adds to its devices
    gateway: str  #: "address:port"
    nursery: Nursery


@contextlib.asynccontextmanager
async def running_host(settings: HostSettings) -> AsyncIterator[RunningHost]:
    """Everything a host is, open for the length of the block. Raises AppError."""
    os.sched_setaffinity(0, settings.cpu.cpus)  # gpud, its spawner and all workers
    async with contextlib.AsyncExitStack() as stack:
        log = _log(settings.state)
        stack.callback(log.close)
        policy = find_policy(
            settings.isolation,
            state=settings.state,
            kept=settings.state / KEPT_NAME,
            secret_files=settings.secret_files,
            data=settings.data,
            programs=settings.programs,
        )
        cells = _cells(policy, settings.state / KEPT_NAME)
        stack.callback(cells.close)
        nursery = await stack.enter_async_context(Nursery(f"gpud {settings.host}"))
        pool = WorkerPool(
            settings.data,
            (settings.state / KEPT_NAME).resolve(),
            settings.cpu.cpus,
            settings.operations,
            settings.budget,
            nursery,
            settings.tls,
            settings.programs,
            settings.batch_wait_s,
            cells,
            policy,
        )
        stack.push_async_callback(pool.close)
        await pool.open()
        probe = CpuProbe(settings.cpu, lambda: pool.pids)
        offer = Offer(pool, KeptContents(settings.state / KEPT_NAME))
        table = LeaseTable(
            {probe.device_id: settings.cpu.memory_mib}, settings.budget.session_silence_s
        )
        turns = Turns({CPU_INDEX: len(settings.cpu.cpus)})
        stack.callback(turns.close)
        daemon = HostDaemon(table, pool, turns, log, settings.budget, nursery)
        daemon.gateway = gateway = Gateway(
            settings.host, daemon, settings.budget, nursery, settings.tls
        )
        servers = settings.state.resolve() / SERVERS_NAME
        daemon.doors = Relays(
            settings.middlewares, servers, settings.budget, nursery, settings.visible, cells
        )
        address = _listen(gateway, settings)
        daemon.ports = LeasePorts(
            PortSettings(
                listen=settings.listen_address,
                advertise=settings.advertise_address or settings.listen_address,
                ports=settings.door_ports,
            ),
            daemon.serve_port,
            nursery,
        )
        stack.callback(daemon.ports.close_all)
        stack.callback(gateway.close)
        nursery.start_eternal(gateway.serve(), "gateway")
        nursery.start_eternal(daemon.keep_deadlines(), "deadlines")
        nursery.start_eternal(pool.watch(), "spawner")
        stack.push_async_callback(daemon.close)
        yield RunningHost(
            daemon=daemon, cpu=probe, policy=policy, offer=offer, gateway=address, nursery=nursery
        )


def _cells(policy: Policy, kept: Path) -> Sandboxes:
    """Raises INVALID when the state folder cannot be used."""
    try:
        return Sandboxes(policy, kept.resolve())
    except OSError as error:
        raise invalid(f"cannot use {kept}: {error.strerror or error}") from None


def _log(folder: Path) -> LeaseLog:
    """The lease log in the state folder. Raises INVALID when the folder cannot be used."""
    try:
        private_folder(folder)  # names of tenants are in it
        return LeaseLog(folder / LEASE_LOG_NAME)
    except OSError as error:
        text = f"cannot use {folder} as the state folder: {error.strerror or error}"
        raise invalid(text) from None


def _listen(gateway: Gateway, settings: HostSettings) -> str:
    try:
        address = gateway.listen(settings.listen_address, settings.listen_port)
    except OSError as error:
        where = f"{settings.listen_address}:{settings.listen_port}"
        raise AppError(ErrorCode.UNAVAILABLE, f"cannot listen on {where}: {error}") from None
    try:
        gateway.listen_local(settings.state.resolve() / SOCKET_NAME)
    except OSError as error:  # TCP serves programs of this machine as well
        logger.info("no socket for this machine's programs", extra={"why": str(error)})
    return address

"""Wiring of gpud, in order: pool, probe, listeners, daemon with its gateway, link."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from corekit.aio.process import DESCRIPTORS_MAX, private_folder
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import DeviceId, HostId
from corekit.net.addresses import parse_addresses
from corekit.tracing.setup import SECRETS, tracer_from
from corekit.tracing.span import Tracer
from gpu_scheduler.client.access import Access
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.monitor.probes import probe_of
from gpu_scheduler.names import HOST_CONTAINERS, HOST_IMAGES_NETWORK, HOST_RUNNER
from remote_gpu.host.containers.serving import open_containers
from remote_gpu.host.credentials.tls import HostTls
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.data.files import DataFiles
from remote_gpu.host.data.sets import DataSets
from remote_gpu.host.departure.departure import DrainTable
from remote_gpu.host.devices.card_checks import CardChecks
from remote_gpu.host.devices.emulation import EmulatedDevices, EmulatedProbe
from remote_gpu.host.devices.offer import KeptContents, Offer
from remote_gpu.host.devices.probe import (
    CPU_INDEX,
    CpuSettings,
    HostCpuProbe,
    HostProbe,
    machine_memory_mib,
)
from remote_gpu.host.digests import DIGESTS_NAME, Digests
from remote_gpu.host.environment import MPS_DIRECTORY
from remote_gpu.host.gateway.gateway import Endpoints, GatewayLimits
from remote_gpu.host.gateway.lease_ports import PortSettings
from remote_gpu.host.gateway.listeners import Listeners
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.host.options import HostOptions
from remote_gpu.host.parts import Outside, Parts
from remote_gpu.host.reports.metrics import host_lines
from remote_gpu.host.reports.sessions import SchedulerLink
from remote_gpu.host.runs.runs import RunSettings
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.isolation.apply import VIEWS_NAME
from remote_gpu.isolation.machine import find_policy
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.privileges import take
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.middleware.base import VisibleDevices
from remote_gpu.wire.uses import DATA, PROGRAMS, Uses
from remote_gpu.worker.programs.programs import ListedProgram
from remote_gpu.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

LEASE_LOG_NAME = "leases.jsonl"  #: in the state folder
KEPT_NAME = "kept"  #: in the state folder: tenants' contents by hash, and their compiled kernels
SOCKET_NAME = "gateway.sock"  #: in the state folder: the gateway for programs of this machine
DATA_NAME = "data"  #: in the state folder: declared data sets
SERVERS_NAME = "servers"  #: in the state folder: one folder for each server that runs
PACKAGES_NAME = "packages"  #: in the state folder: tenants' packages of functions, unpacked
#: Of the machine's memory, for Linux, gpud and workers: runs have the rest.
_RESERVE_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The options of `gpud`, and what was read of them and checked."""

    options: HostOptions
    cpu: CpuSettings
    budget: Budget
    access: Access = field(default_factory=Access)  #: to the scheduler
    listen: tuple[str, int] = ("127.0.0.1", 0)  #: port 0 = any free one
    advertise: tuple[str, int] = ("127.0.0.1", 0)  #: for clients; port 0 = the one it got
    drivers: Sequence[str] = ()  #: whose devices are lent beside the CPU; of `probes.PROBES`
    door_ports: range = range(1)  #: for leases with a port of their own; 0 = any free one
    data: Mapping[str, Path] = field(default_factory=dict)  #: host-resident data by name
    operations: tuple[str, ...] = ()  #: to offer; empty = all that load
    programs: Mapping[str, ListedProgram] = field(
        default_factory=dict
    )  #: programs that `exec` may run
    middlewares: Mapping[str, Path] = field(default_factory=dict)  #: name → its server's program
    visible: VisibleDevices = field(
        default_factory=VisibleDevices
    )  #: devices that those servers can see
    emulated: EmulatedDevices = field(default_factory=EmulatedDevices)
    tls: HostTls | None = None
    descriptors: int = DESCRIPTORS_MAX  #: that this process may have
    secret_files: tuple[Path, ...] = ()  #: secrets beside `state`; leases may read none of them

    @property
    def host(self) -> HostId:
        return HostId(self.options.host_id)

    @property
    def state(self) -> Path:
        """The folder for the lease log; created when absent."""
        return self.options.state


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHost:
    """A running host, with its link to the scheduler."""

    link: HostLink
    leases: DrainTable
    gateway: str  #: "address:port"
    nursery: Nursery
    metrics_lines: Callable[[], Iterator[str]]


@contextlib.asynccontextmanager
async def running_host(
    settings: HostSettings, registered: Callable[[], None]
) -> AsyncIterator[RunningHost]:
    """All parts of a host, open for the length of the block. Raises AppError.

    `registered` is called each time that the scheduler has registered this host.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, settings.cpu.cpus)  # gpud, its spawner and all workers
        log = _log(settings.state)
        stack.callback(log.close)
        policy = find_policy(
            settings.options.isolation,
            _files(settings),
            secret=(settings.state, *settings.secret_files),
            kept=settings.state / KEPT_NAME,
        )
        sandboxes = _sandboxes(policy, settings.state / KEPT_NAME)
        stack.callback(sandboxes.close)
        nursery = await stack.enter_async_context(Nursery(f"gpud {settings.host}"))
        pool = await _pool(settings, nursery, sandboxes, policy)
        stack.push_async_callback(pool.close)
        await pool.open()
        turns = _turns(settings)
        stack.callback(turns.close)
        cpu = HostCpuProbe(settings.cpu, lambda: pool.pids)
        table = LeaseTable(
            {cpu.device_id: settings.cpu.memory_mib}, settings.budget.session_silence_s
        )
        probe = await _probe([cpu, _emulated(settings, table, turns)], pool, settings)
        stack.push_async_callback(probe.close)
        scheduler = SchedulerLink()
        cards = CardChecks(settings.budget, nursery, scheduler.report_soon)
        await cards.first(await probe.devices())
        listeners = _listeners(settings)
        stack.callback(listeners.close)
        outside = Outside(
            pool=pool,
            turns=turns,
            relays=_relays(settings, nursery, sandboxes),
            memory=probe,
            cards=cards,
            endpoints=_endpoints(settings, listeners),
            scheduler=scheduler,
            tracer=_tracer(stack),
            sandboxes=sandboxes,
            runs=await _with_containers(settings, _runs(settings, policy, listeners), stack),
        )
        leases = Leases(table, log)
        parts = Parts(
            leases,
            outside,
            settings.budget,
            nursery,
            data=await _data_sets(settings, leases, nursery, scheduler),
            warm_workers=settings.options.warm_workers,
            on_excess=settings.options.on_memory_excess,
        )
        stack.push_async_callback(parts.runs.close)
        daemon = HostDaemon(parts, registered)
        link = _link(settings, daemon, outside, probe)
        scheduler.link = link
        _start(parts, pool, nursery)
        await stack.enter_async_context(link)
        stack.push_async_callback(daemon.close)  # first, while the link can report it
        yield _running(parts, link, nursery)


def _files(settings: HostSettings) -> HostFiles:
    programs = tuple(Path(program.command[0]) for program in settings.programs.values())
    return HostFiles(data=tuple(settings.data.values()), programs=programs)


def _link(
    settings: HostSettings, daemon: HostDaemon, outside: Outside, probe: HostProbe
) -> HostLink:
    return HostLink(
        settings.options.scheduler,
        host=settings.host,
        control=daemon,
        probe=probe,
        gateway=advertised(settings.advertise, outside.endpoints.listeners.address),
        budget=settings.budget,
        access=settings.access,
        middlewares=("builtin", *settings.middlewares),
        ephemeral=settings.options.ephemeral,
        waiting=daemon.parts.gateway.waiting,
        loads_ahead=settings.options.warm_workers,
        data=daemon.parts.data,
        data_space_mib=settings.options.data_space_mib,
        digests=_offered(outside),
    )


def _offered(outside: Outside) -> Uses:
    """The data sets and programs of this host, with the runner of functions where it may run."""
    offered = outside.pool.offered_digests
    if outside.runs.refused:
        return offered
    own = [HOST_RUNNER]
    if (containers := outside.runs.containers) is not None:
        own.append(HOST_CONTAINERS)
        if not containers.runtime.network_refused:
            own.append(HOST_IMAGES_NETWORK)
    programs = {**offered.get(PROGRAMS, {}), **dict.fromkeys(own, "")}
    return {**offered, PROGRAMS: programs}


async def _with_containers(
    settings: HostSettings, runs: RunSettings, stack: contextlib.AsyncExitStack
) -> RunSettings:
    """The settings of runs with this host's containers, or the reason why it has none, logged."""
    if runs.refused:
        return runs
    options, state = settings.options, settings.state.resolve()
    host, why = await open_containers(
        state, options.images_mib << 20, network=options.images_network
    )
    if host is not None:
        stack.push_async_callback(host.close)
    return replace(runs, containers=host, no_containers=why)


def _runs(settings: HostSettings, policy: IsolationPolicy, listeners: Listeners) -> RunSettings:
    """Raises INVALID when the folder of packages cannot be used."""
    refused = policy.runs_refused if settings.options.run else "its operator disabled it (--no-run)"
    if refused:
        about = {"event": "runs", "why": refused}
        logger.info("no function runs on this host", extra=about)
    packages = settings.state.resolve() / PACKAGES_NAME
    try:
        packages.mkdir(exist_ok=True)
        packages.chmod(0o711)  # passable, not readable: it lists tenants
    except OSError as error:
        raise invalid(f"cannot use {packages}: {error.strerror or error}") from None
    pipes = os.environ.get(MPS_DIRECTORY)
    shown = advertised(settings.advertise, listeners.address)
    return RunSettings(
        host=settings.host,
        policy=policy,
        files=replace(_files(settings), programs=(), pipes=(Path(pipes),) if pipes else ()),
        packages=packages,
        gateway_port=int(shown.rpartition(":")[2]),
        closed_ports=tuple(port for _, port in parse_addresses(settings.options.scheduler)),
        memory_mib=machine_memory_mib() - _RESERVE_MIB,
        refused=refused,
    )


def _start(parts: Parts, pool: WorkerPool, nursery: Nursery) -> None:
    nursery.start_loop(parts.gateway.serve, "gateway")
    nursery.start_loop(parts.leases.keep_deadlines, "deadlines")
    nursery.start_loop(parts.warm.watch, "warm workers")
    nursery.start_loop(pool.watch, "spawner")


def _tracer(stack: contextlib.AsyncExitStack) -> Tracer:
    tracer = tracer_from(os.environ, "gpud")
    take(SECRETS)
    if tracer.enabled:
        stack.push_async_callback(asyncio.to_thread, tracer.close)
    return tracer


def _running(parts: Parts, link: HostLink, nursery: Nursery) -> RunningHost:
    return RunningHost(
        link=link,
        leases=parts.leases,
        gateway=parts.gateway.address,
        nursery=nursery,
        metrics_lines=lambda: host_lines(link, parts),
    )


async def _pool(
    settings: HostSettings, nursery: Nursery, sandboxes: Sandboxes, policy: IsolationPolicy
) -> WorkerPool:
    tls = settings.tls
    workers = WorkerSettings(
        kept=(settings.state / KEPT_NAME).resolve(),
        options=settings.options.of_workers,
        data=dict(settings.data),
        operations=settings.operations,
        programs=dict(settings.programs),
        digests=await asyncio.to_thread(_digests, settings),
        policy=policy,
        cpus=tuple(settings.cpu.cpus),
        handshake_s=settings.budget.handshake_s,
        tls=None if tls is None else (tls.certificate, tls.key),
        emulation=settings.emulated.emulation,
        emulated=tuple(settings.emulated.by_id),
    )
    return WorkerPool(workers, settings.budget, nursery, sandboxes)


async def _data_sets(
    settings: HostSettings, leases: Leases, nursery: Nursery, scheduler: SchedulerLink
) -> DataSets:
    """Raises INVALID when the state folder cannot be used."""
    state, space_mib = settings.state.resolve(), settings.options.data_space_mib
    try:
        files = await asyncio.to_thread(DataFiles, state / DATA_NAME, state / VIEWS_NAME)
        return DataSets(
            leases,
            files,
            space_mib << 20,
            nursery,
            scheduler.report_soon,
            sources=settings.options.data_source,
        )
    except OSError as error:
        raise invalid(f"cannot use {state / DATA_NAME}: {error.strerror or error}") from None


def _digests(settings: HostSettings) -> dict[str, dict[str, str]]:
    files = {name: Path(program.command[0]) for name, program in settings.programs.items()}
    return Digests(settings.state / DIGESTS_NAME).of({DATA: settings.data, PROGRAMS: files})


def _relays(settings: HostSettings, nursery: Nursery, sandboxes: Sandboxes) -> Relays:
    servers = settings.state.resolve() / SERVERS_NAME
    return Relays(
        settings.middlewares, servers, settings.budget, nursery, settings.visible, sandboxes
    )


def _endpoints(settings: HostSettings, listeners: Listeners) -> Endpoints:
    ports = PortSettings(
        listen=settings.listen[0],
        advertise=settings.advertise[0],
        ports=settings.door_ports,
    )
    return Endpoints(
        host=settings.host,
        listeners=listeners,
        limits=GatewayLimits.of(settings.descriptors),
        ports=ports,
        tls=settings.tls,
    )


def _indices(settings: HostSettings) -> dict[DeviceId, int]:
    """The indices of emulated devices: the CPU is the first device that `HostProbe` sees."""
    return {device: index for index, device in enumerate(settings.emulated.by_id, CPU_INDEX + 1)}


def _turns(settings: HostSettings) -> Turns:
    indices, by_id = _indices(settings), settings.emulated.by_id
    widths = {index: by_id[device].slots for device, index in indices.items()}
    widths[CPU_INDEX] = len(settings.cpu.cpus)
    return Turns(widths, uninterruptible=tuple(indices.values()))


def _emulated(settings: HostSettings, table: LeaseTable, turns: Turns) -> EmulatedProbe:
    indices = _indices(settings)

    def running(device: DeviceId) -> int:
        return turns.running(indices[device])

    return EmulatedProbe(settings.emulated, table.used_mib, running)


async def _probe(probes: list[Probe], pool: WorkerPool, settings: HostSettings) -> HostProbe:
    for driver in settings.drivers:
        probe = probe_of(driver, settings.host, settings.budget.probe_answer_s)
        try:
            await probe.devices()
        except AppError as error:
            await probe.close()
            logger.info("no devices", extra={"driver": driver, "why": error.message})
        else:
            probes.append(probe)
    offer = Offer(pool, KeptContents(settings.state / KEPT_NAME))
    return HostProbe(probes, settings.budget.host_lost_s, offer)


def advertised(settings: tuple[str, int], gateway: str) -> str:
    """The gateway's "address:port" for clients; port 0 = that of `gateway`."""
    address, port = settings
    shown = f"[{address}]" if ":" in address else address
    return f"{shown}:{port or gateway.rpartition(':')[2]}"


def _sandboxes(policy: IsolationPolicy, kept: Path) -> Sandboxes:
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


def _listeners(settings: HostSettings) -> Listeners:
    try:
        listeners = Listeners(*settings.listen)
    except OSError as error:
        where = f"{settings.listen[0]}:{settings.listen[1]}"
        raise AppError(ErrorCode.UNAVAILABLE, f"cannot listen on {where}: {error}") from None
    try:
        listeners.add_local(settings.state.resolve() / SOCKET_NAME)
    except OSError as error:  # TCP serves programs of this machine as well
        logger.info("no socket for this machine's programs", extra={"why": str(error)})
    return listeners

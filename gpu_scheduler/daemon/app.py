"""Wiring of ssgmd: recover the journal, open the endpoints, drive the core."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.aio.admission import AdmissionLimits
from corekit.aio.clock import Clock, SystemClock
from corekit.aio.driver import Driver
from corekit.aio.process import private_folder, raise_descriptor_limit
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, JobId, LeaseId
from corekit.net.addresses import is_loopback, parse_address
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.state import State
from gpu_scheduler.daemon.access.authorizer import Authorizer, JobOwner
from gpu_scheduler.daemon.access.connection_admission import CONNECTIONS_MAX, ConnectionAdmission
from gpu_scheduler.daemon.access.iam_join import IamJoin
from gpu_scheduler.daemon.access.keys import NAME as KEYS_NAME
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import Secrets
from gpu_scheduler.daemon.access.tls import Certificate
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.endpoints.calls import Calls
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.http_endpoint import HttpEndpoint
from gpu_scheduler.daemon.endpoints.http_server import listen
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.endpoints.socket_endpoint import Connection
from gpu_scheduler.daemon.endpoints.watch import Hub, WatchedJournal
from gpu_scheduler.daemon.journal.journal import Disk, Journal
from gpu_scheduler.daemon.journal.repair import apply_all
from gpu_scheduler.daemon.metrics import CoreCounts, Metrics
from gpu_scheduler.model import Device
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol.changes import Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings of one run of `ssgmd`."""

    state: Path  #: folder of journal, lock and key; created when absent
    budget: Budget
    listen: str = "127.0.0.1:0"  #: address of the socket endpoint
    http: str = "127.0.0.1:0"  #: address of the HTTP endpoint
    capacity: tuple[Device, ...] | None = None  #: devices that may register later
    parameters: Parameters = field(default_factory=Parameters)  #: without overrides of `ssgm set`
    keys: Path | None = None  #: None: `keys.json` in the state folder, if it exists
    join_iam: Path | None = None  #: roles whose holders may join as hosts
    certificate: Certificate | None = None  #: of both endpoints; None: no TLS
    descriptors: int | None = None  #: files it may open; None: as many as the system permits

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.certificate is None else self.certificate.context


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDaemon:
    """A daemon that is serving."""

    socket: str  #: "address:port"
    http: str
    epoch: int
    nursery: Nursery
    journal: Journal
    reread: asyncio.Event  #: when set, keys and certificate are read again (SIGHUP)
    hub: Hub


class Performer:
    """Performs the core's actions; none of them waits."""

    def __init__(self, registry: ConnectionRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.driver: Driver[on.Event, Entry, do.Action] | None = None
        self._verbs: Mapping[type[do.Action], Callable[[Any], None]] = {
            do.Reply: registry.reply,
            do.ReplyError: registry.reply_error,
            do.PushToSession: registry.push,
            do.PushToHost: registry.push_to_host,
            do.WakeAt: self._wake_at,
        }

    def perform(self, action: do.Action) -> None:
        self._verbs[type(action)](action)

    def _wake_at(self, action: do.WakeAt) -> None:
        self.close()
        self._timer = self._loop.call_later(action.at_s - self._clock.monotonic_s(), self._tick)

    def _tick(self) -> None:
        self.submit(on.Ticked(at_s=self._clock.monotonic_s(), wall_s=self._clock.wall_s()))

    def submit(self, event: on.Event) -> None:
        """Hand an event to the core. Raises asyncio.QueueFull when its queue is full."""
        assert self.driver is not None, "the endpoints open after it"
        self.driver.submit(event)

    async def watch_room(self, journal: Journal, budget: Budget) -> None:
        """Submit an event whenever the journal's disk becomes full or has room again. Endless."""
        had_room = True
        while True:
            journal.sync_marker_if_due()
            if journal.has_room is not had_room:
                now = {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}
                with contextlib.suppress(asyncio.QueueFull):  # again at the next poll
                    self.submit(on.RoomChanged(has_room=not had_room, **now))
                    had_room = not had_room
            await asyncio.sleep(budget.room_poll_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextlib.asynccontextmanager
async def running_daemon(
    settings: DaemonSettings, disk: Disk | None = None
) -> AsyncIterator[RunningDaemon]:
    """A complete ssgmd for the length of the block. Raises AppError when it cannot start."""
    for address in (settings.listen, settings.http):
        parse_address(address)  # refused before any state is created
    clock, metrics = SystemClock(), Metrics()
    async with contextlib.AsyncExitStack() as stack:
        authorizer, journal, machine, registry = _locked(settings, disk, metrics, stack)
        performer = Performer(registry, clock)
        stack.callback(performer.close)
        nursery = await stack.enter_async_context(Nursery("ssgmd"))
        admission = _admission_of(settings)
        metrics.admission = admission
        http_endpoint = HttpEndpoint(metrics, journal, authorizer, admission)
        http = await _listen_http(http_endpoint, settings, admission, stack)
        logger.info("recovering", extra={"event": "recovering", "http": http})
        with _using(settings.state):  # in a thread, while health is answered
            await asyncio.to_thread(_recover, machine, journal)
        for event in _first_events(settings, clock):  # before the first request
            decision = machine.handle(event)
            await journal.append(decision.changes)
            for action in decision.actions:
                performer.perform(action)
        metrics.epoch = machine.state.epoch
        decoder = RequestDecoder(clock, journal, performer.submit, metrics, authorizer)
        hub = Hub(machine.state, clock, decoder, registry)
        driver = Driver(machine, WatchedJournal(journal, hub), performer.perform, nursery)
        performer.driver = driver
        nursery.start_eternal(driver.run(), "driver")
        nursery.start_eternal(performer.watch_room(journal, settings.budget), "room")
        nursery.start_eternal(hub.beats(settings.budget.client_beat_s), "watch")
        stack.callback(hub.end_all, "ssgmd stops")

        def connection() -> Connection:
            return Connection(decoder, registry, metrics, authorizer, admission)

        socket = await _listen_socket(connection, settings, stack)
        stack.callback(registry.close_all)
        reread = asyncio.Event()
        nursery.start_eternal(_reread(settings, authorizer, reread), "reread")
        http_endpoint.open(Calls(decoder, registry), hub, CoreCounts.of(machine.state))
        fields = {"event": "serving", "socket": socket, "http": http, "epoch": metrics.epoch}
        logger.info("ssgmd serves", extra=fields)
        yield RunningDaemon(
            socket=socket,
            http=http,
            epoch=metrics.epoch,
            nursery=nursery,
            journal=journal,
            reread=reread,
            hub=hub,
        )


def _locked(
    settings: DaemonSettings,
    disk: Disk | None,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> tuple[Authorizer, Journal, SchedulerMachine, ConnectionRegistry]:
    """Lock the state folder, read keys and secrets, and make the parts that are empty yet."""
    with _using(settings.state):
        private_folder(settings.state)
        journal = Journal.locked(settings.state, disk)
        stack.callback(journal.close)
        secret_of = Secrets.open(settings.state)  # under the lock: only its holder may make a key
    # ids of a new run must never repeat those of an earlier one: each run has its own seed
    ids = IdSource(secrets.token_hex(16))
    machine = SchedulerMachine(settings.budget, ids, settings.parameters, installed_policies())
    authorizer = Authorizer(
        settings.keys or settings.state / KEYS_NAME,
        lambda lease: _owner_of(machine.state, lease),
        lambda holder: _job_owner_of(machine.state, holder),
        None if settings.join_iam is None else IamJoin(settings.join_iam, SystemClock()),
    )
    _only_loopback_without_keys(settings, authorizer)
    return (
        authorizer,
        journal,
        machine,
        ConnectionRegistry(secret_of, metrics, Redaction(authorizer)),
    )


def _admission_of(settings: DaemonSettings) -> ConnectionAdmission:
    descriptors = settings.descriptors or raise_descriptor_limit()
    return ConnectionAdmission(
        AdmissionLimits.of(descriptors, CONNECTIONS_MAX), settings.budget.handshake_s
    )


def _recover(machine: SchedulerMachine, journal: Journal) -> None:
    entries = journal.recover()
    apply_all(machine, entries, journal.path)
    for name, why in machine.state.ignored.items():
        text = "%s: an override of a newer version is kept, but not in force: %s"
        logger.warning(text, name, why, extra={"event": "newer_version"})
    journal.snapshot = machine.parts
    logger.info("recovered", extra={"event": "recovered", "entries": len(entries)})


def _owner_of(state: State, lease: str) -> str | None:
    """The session that a live lease belongs to; None while its job has no owner."""
    entry = state.leases.get(LeaseId(lease))
    if entry is None:
        return None
    record = state.records.get(entry.lease.holder or JobId(""))
    return entry.session if record is None else record.owner


def _job_owner_of(state: State, holder: str) -> JobOwner | None:
    record = state.records.get(JobId(holder))
    if record is None:
        return None
    return JobOwner(record.owner, record.tenant, record.key)


def _only_loopback_without_keys(settings: DaemonSettings, authorizer: Authorizer) -> None:
    """Refuse to listen for other machines without keys. Raises DENIED, NOT_FOUND."""
    if settings.keys is not None and not authorizer.has_keys:
        text = f"the keys file {settings.keys} does not exist; create it with `ssgmd keys add`"
        raise AppError(ErrorCode.NOT_FOUND, text)
    if settings.join_iam is not None and not authorizer.has_keys:
        text = (
            "--join-iam needs a keys file: without keys, every program of this machine is a host;"
        )
        raise AppError(ErrorCode.DENIED, f"{text} create it with `ssgmd keys add`")
    outside = [a for a in (settings.listen, settings.http) if not is_loopback(parse_address(a)[0])]
    if authorizer.has_keys:
        if outside and settings.tls is None:
            text = "keys and secrets of leases cross the network unencrypted: no TLS certificate"
            if settings.join_iam is not None:
                raise AppError(
                    ErrorCode.DENIED, f"--join-iam needs --tls-cert and --tls-key: {text}"
                )
            logger.warning(text, extra={"event": "no_tls", "endpoints": outside})
        return
    if outside:
        text = f"{outside[0]} can be reached from other machines, and there are no keys yet; "
        text += "create them with `ssgmd keys add`, or listen on 127.0.0.1"
        raise AppError(ErrorCode.DENIED, text)
    logger.warning("no keys: only this machine is served", extra={"event": "no_keys"})


async def _reread(settings: DaemonSettings, authorizer: Authorizer, now: asyncio.Event) -> None:
    """Read changed keys and certificates again, without a restart. Endless."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.budget.keys_poll_s):
                await now.wait()
        now.clear()
        authorizer.reread_if_changed()
        if settings.certificate is not None:
            settings.certificate.reread_if_changed()


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Translate an OSError of the state folder: EXHAUSTED for a full disk, INVALID otherwise."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot use {folder} as the state folder: {error.strerror or error}"
        raise AppError(ErrorCode.EXHAUSTED if full else ErrorCode.INVALID, text) from error


def _first_events(settings: DaemonSettings, clock: Clock) -> Iterator[on.Event]:
    now = {"at_s": clock.monotonic_s(), "wall_s": clock.wall_s()}
    yield on.EpochBegan(run=secrets.token_hex(8), build=BUILD, **now)
    if settings.capacity is not None:
        yield on.CapacityDeclared(devices=settings.capacity, **now)


async def _listen_socket(
    connection: Callable[[], Connection],
    settings: DaemonSettings,
    stack: contextlib.AsyncExitStack,
) -> str:
    address = parse_address(settings.listen)
    loop = asyncio.get_running_loop()
    with _listening(settings.listen):
        server = await loop.create_server(connection, *address, ssl=settings.tls)
    stack.callback(server.close)
    return _address_of(server.sockets[0].getsockname())


async def _listen_http(
    endpoint: HttpEndpoint,
    settings: DaemonSettings,
    admission: ConnectionAdmission,
    stack: contextlib.AsyncExitStack,
) -> str:
    with _listening(settings.http):
        address = parse_address(settings.http)
        return _address_of(
            await listen(endpoint.application(), *address, settings.tls, admission, stack)
        )


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


def _address_of(name: tuple[str, int]) -> str:
    return f"{name[0]}:{name[1]}"

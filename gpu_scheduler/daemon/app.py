"""Wiring of ssgmd: recover the journal, open the endpoints, drive the core."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.aio.admission import AdmissionLimits
from corekit.aio.clock import Clock, SystemClock
from corekit.aio.driver import Driver
from corekit.aio.driver import Journal as DriverJournal
from corekit.aio.process import private_folder, raise_descriptor_limit
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import IdSource, JobId, LeaseId
from corekit.net.addresses import is_loopback, parse_address
from corekit.values import replace
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
from gpu_scheduler.daemon.access.sources import SecretSource
from gpu_scheduler.daemon.access.tls import Certificate
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.endpoints.calls import Calls
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.http_endpoint import HttpEndpoint
from gpu_scheduler.daemon.endpoints.http_server import listen
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.endpoints.socket_endpoint import Connection
from gpu_scheduler.daemon.endpoints.watch import Hub, WatchedJournal
from gpu_scheduler.daemon.journal.journal import Disk, Journal, lock_folder
from gpu_scheduler.daemon.journal.log_journal import LogJournal, LogSettings
from gpu_scheduler.daemon.journal.port import SchedulerJournal
from gpu_scheduler.daemon.journal.repair import apply_all
from gpu_scheduler.daemon.log.port import LogAddress
from gpu_scheduler.daemon.log.writer import RetryLimits
from gpu_scheduler.daemon.metrics import CoreCounts, Metrics
from gpu_scheduler.daemon.standby.beats import BeatingJournal, Handover
from gpu_scheduler.daemon.standby.endpoint import Entrance
from gpu_scheduler.daemon.standby.follower import Follower, check_master_key
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
    log: LogAddress | None = None  #: of the journal; None: in the state folder
    listen: str = "127.0.0.1:0"  #: address of the socket endpoint
    http: str = "127.0.0.1:0"  #: address of the HTTP endpoint
    advertise: str | None = None  #: of the socket endpoint, for clients; None: `listen`
    advertise_http: str | None = None  #: of the HTTP endpoint; None: `http`
    standby: bool = False  #: follows the log, and takes over when its writer is silent
    capacity: tuple[Device, ...] | None = None  #: devices that may register later
    parameters: Parameters = field(default_factory=Parameters)  #: without overrides of `ssgm set`
    #: None: `keys.json` in the state folder, if it exists.
    keys: SecretSource | None = None
    join_iam: Path | None = None  #: roles whose holders may join as hosts
    #: None: a file in the state folder, made for a new one.
    master_key: SecretSource | None = None
    certificate: Certificate | None = None  #: of both endpoints; None: no TLS
    descriptors: int | None = None  #: files it may open; None: as many as the system permits

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.certificate is None else self.certificate.context

    def check(self) -> None:
        """Raise INVALID for addresses or settings that do not fit together."""
        for address in (self.listen, self.http, self.advertise, self.advertise_http):
            if address is not None:
                parse_address(address)
        if not self.standby:
            return
        if self.log is None:
            text = "--standby needs a log that several machines reach, such as --log postgres://…"
            raise invalid(text)
        for name, address in (("listen", self.listen), ("http", self.http)):
            if parse_address(address)[1] == 0:
                raise invalid(f"--standby needs a fixed port in --{name}: clients know it")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDaemon:
    """A daemon that is serving."""

    socket: str  #: "address:port"
    http: str
    epoch: int
    nursery: Nursery
    journal: SchedulerJournal
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

    async def watch_room(self, journal: SchedulerJournal, budget: Budget) -> None:
        """Submit an event whenever the journal's disk becomes full or has room again. Endless."""
        had_room = True
        while True:
            journal.upkeep()
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
    settings: DaemonSettings,
    disk: Disk | None = None,
    standing_by: Callable[[Mapping[str, object]], None] = lambda _: None,
) -> AsyncIterator[RunningDaemon]:
    """A complete ssgmd for the length of the block. Raises AppError when it cannot start.

    A standby calls `standing_by` with its addresses, and the block begins once it has taken over.
    LogSuperseded and LogTrimmed mean for it that it begins again.
    """
    settings.check()  # before any state is created
    clock, metrics = SystemClock(), Metrics()
    async with contextlib.AsyncExitStack() as stack:
        parts = _locked(settings, disk, metrics, stack)
        authorizer, journal, machine = parts.authorizer, parts.journal, parts.machine
        performer = Performer(parts.registry, clock)
        stack.callback(performer.close)
        handover = Handover(journal, settings.budget.handover_s)
        stack.push_async_exit(handover.at_exit)  # when the driver has ended
        nursery = await stack.enter_async_context(Nursery("ssgmd"))
        admission = _admission_of(settings)
        metrics.admission = admission
        http_endpoint = HttpEndpoint(metrics, journal, authorizer, admission)
        http = await _listen_http(http_endpoint, settings, admission, stack)
        reread = asyncio.Event()
        nursery.start_eternal(_reread(settings, authorizer, reread), "reread")
        entrance = Entrance()
        if settings.standby:
            follower = Follower(parts.log, machine, settings.budget, clock, parts.fingerprint)
            entrance.refuse(lambda: follower.status, authorizer, admission)
            socket = await _listen_socket(entrance, settings, stack)
            http_endpoint.stand_by(lambda: follower.status)
            standing_by({"socket": socket, "http": http, "epoch": 0, "role": "standby"})
            await _stand_by(follower, machine, journal)
        else:
            logger.info("recovering", extra={"event": "recovering", "http": http})
            with _using(settings.state):  # in a thread, while health is answered
                await asyncio.to_thread(_recover, machine, journal)
            check_master_key(machine, parts.fingerprint)
        await _begin_epoch(parts, performer, _first_events(settings, clock, parts.fingerprint))
        metrics.epoch = machine.state.epoch
        decoder = RequestDecoder(clock, journal, performer.submit, metrics, authorizer)
        hub = Hub(machine.state, clock, decoder, parts.registry)
        appending = _beating(settings, journal, clock, nursery)
        driver = Driver(machine, WatchedJournal(appending, hub), performer.perform, nursery)
        performer.driver = driver
        handover.epoch = metrics.epoch if settings.log is not None else None
        nursery.start_eternal(driver.run(), "driver")
        nursery.start_eternal(performer.watch_room(journal, settings.budget), "room")
        nursery.start_eternal(hub.beats(settings.budget.client_beat_s), "watch")
        stack.callback(hub.end_all, "ssgmd stops")
        entrance.connection = lambda: Connection(
            decoder, parts.registry, metrics, authorizer, admission
        )
        if not settings.standby:
            socket = await _listen_socket(entrance, settings, stack)
        stack.callback(parts.registry.close_all)
        http_endpoint.open(Calls(decoder, parts.registry), hub, CoreCounts.of(machine.state))
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


async def _begin_epoch(parts: _Parts, performer: Performer, events: Iterator[on.Event]) -> None:
    """Handle the first events, before any request. Raises LogSuperseded when another one leads."""
    for event in events:
        decision = parts.machine.handle(event)
        await parts.journal.append(decision.changes)
        for action in decision.actions:
            performer.perform(action)


async def _stand_by(
    follower: Follower, machine: SchedulerMachine, journal: SchedulerJournal
) -> None:
    """Follow the log until this ssgmd may take over, and prepare to append to it."""
    logger.info("standing by", extra={"event": "standby"})
    await follower.follow()
    fields = {"event": "taking_over", "epoch": machine.state.epoch, "item": follower.status.item}
    logger.info("taking over", extra=fields)
    await asyncio.to_thread(follower.take_over)
    journal.snapshot = machine.parts


def _beating(
    settings: DaemonSettings, journal: SchedulerJournal, clock: Clock, nursery: Nursery
) -> DriverJournal[Entry]:
    """The journal of the driver; one in a log also gets signs of life."""
    if settings.log is None:
        return journal
    beating = BeatingJournal(journal, settings.budget.leader_beat_s, clock.monotonic_s)
    nursery.start_eternal(beating.beats(), "beats")
    return beating


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a daemon that exist before its journal is read."""

    authorizer: Authorizer
    journal: SchedulerJournal
    machine: SchedulerMachine
    registry: ConnectionRegistry
    fingerprint: str  #: of the master key

    @property
    def log(self) -> LogJournal:
        assert isinstance(self.journal, LogJournal), "settings.check"
        return self.journal


def _locked(
    settings: DaemonSettings,
    disk: Disk | None,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> _Parts:
    """Lock the state folder, read keys and secrets, and make the parts that are empty yet."""
    with _using(settings.state):
        private_folder(settings.state)
        journal, history = _journal_of(settings, disk, stack)
        # under the lock: only its holder may make a key
        secret_of = Secrets.open(settings.state, settings.master_key, history)
    # ids of a new run must never repeat those of an earlier one: each run has its own seed
    ids = IdSource(secrets.token_hex(16))
    machine = SchedulerMachine(settings.budget, ids, settings.parameters, installed_policies())
    if settings.keys is not None:
        settings.keys.refresh()
    authorizer = Authorizer(
        settings.keys or settings.state / KEYS_NAME,
        lambda lease: _owner_of(machine.state, lease),
        lambda holder: _job_owner_of(machine.state, holder),
        None if settings.join_iam is None else IamJoin(settings.join_iam, SystemClock()),
    )
    _only_loopback_without_keys(settings, authorizer)
    return _Parts(
        authorizer=authorizer,
        journal=journal,
        machine=machine,
        registry=ConnectionRegistry(secret_of, metrics, Redaction(authorizer)),
        fingerprint=secret_of.fingerprint,
    )


def _journal_of(
    settings: DaemonSettings, disk: Disk | None, stack: contextlib.AsyncExitStack
) -> tuple[SchedulerJournal, str | None]:
    """The journal, not read yet, under the lock of the state folder; the log if it is not empty."""
    if settings.log is None:
        journal = Journal.locked(settings.state, disk)
        stack.callback(journal.close)
        return journal, None
    stack.callback(os.close, lock_folder(settings.state))
    budget = settings.budget
    retry = RetryLimits(within_s=budget.log_retry_s)
    in_log = LogJournal(
        LogSettings(
            address=settings.log, state=settings.state, call_s=budget.log_call_s, retry=retry
        )
    )
    stack.callback(in_log.close)
    return in_log, None if in_log.is_empty else in_log.name


def _admission_of(settings: DaemonSettings) -> ConnectionAdmission:
    descriptors = settings.descriptors or raise_descriptor_limit()
    return ConnectionAdmission(
        AdmissionLimits.of(descriptors, CONNECTIONS_MAX), settings.budget.handshake_s
    )


def _recover(machine: SchedulerMachine, journal: SchedulerJournal) -> None:
    entries = journal.recover()
    apply_all(machine, entries, journal.name, journal.remedy)
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
        text = f"the keys file {settings.keys.name} does not exist; create it with `ssgmd keys add`"
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
    due_s, poll_s = 0.0, settings.budget.stored_keys_poll_s
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.budget.keys_poll_s):
                await now.wait()
        at_s = asyncio.get_running_loop().time()
        if settings.keys is not None and (now.is_set() or at_s >= due_s):
            due_s = at_s + poll_s
            await _refresh(settings.keys)
        now.clear()
        authorizer.reread_if_changed()
        if settings.certificate is not None:
            settings.certificate.reread_if_changed()


async def _refresh(keys: SecretSource) -> None:
    """Fetch the newest keys of a secret store, which may be out of reach for a while."""
    try:
        await asyncio.to_thread(keys.refresh)
    except AppError as error:
        logger.error("the keys in force stay: %s", error.message, extra={"event": "keys"})


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Translate an OSError of the state folder: EXHAUSTED for a full disk, INVALID otherwise."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot use {folder} as the state folder: {error.strerror or error}"
        raise AppError(ErrorCode.EXHAUSTED if full else ErrorCode.INVALID, text) from error


def _first_events(settings: DaemonSettings, clock: Clock, fingerprint: str) -> Iterator[on.Event]:
    now = {"at_s": clock.monotonic_s(), "wall_s": clock.wall_s()}
    began = on.EpochBegan(
        run=secrets.token_hex(8),
        build=BUILD,
        at_s=now["at_s"],
        wall_s=now["wall_s"],
    )
    if settings.log is not None:  # standbys follow
        began = replace(
            began,
            socket=_advertised(settings.advertise or settings.listen),
            http=_advertised(settings.advertise_http or settings.http),
            master_key=fingerprint,
        )
    yield began
    if settings.capacity is not None:
        yield on.CapacityDeclared(devices=settings.capacity, **now)


async def _listen_socket(
    connection: Callable[[], asyncio.Protocol],
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


def _advertised(address: str) -> str:
    """The address, if other machines can use it; "" otherwise."""
    host, port = parse_address(address)
    return "" if port == 0 or host in ("0.0.0.0", "::") else address


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


def _address_of(name: tuple[str, int]) -> str:
    return f"{name[0]}:{name[1]}"

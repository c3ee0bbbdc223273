"""Wiring of ssgmd: recover the journal, open the endpoints, drive the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from corekit.aio.admission import AdmissionLimits
from corekit.aio.clock import Clock, SystemClock
from corekit.aio.driver import Journal as DriverJournal
from corekit.aio.process import raise_descriptor_limit
from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from corekit.net.addresses import parse_address
from corekit.tracing.setup import tracer_from
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.connection_admission import CONNECTIONS_MAX, ConnectionAdmission
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.sources import SecretSource
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.endpoints.calls import Calls
from gpu_scheduler.daemon.endpoints.http_endpoint import HttpEndpoint
from gpu_scheduler.daemon.endpoints.listeners import listen_http, listen_socket
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.endpoints.socket_endpoint import SocketConnection
from gpu_scheduler.daemon.events.hub import Hub, WatchedJournal
from gpu_scheduler.daemon.journal.journal import Journal, Opener
from gpu_scheduler.daemon.journal.repair import apply_all
from gpu_scheduler.daemon.log.registry import open_log
from gpu_scheduler.daemon.metrics import CoreCounts, Metrics
from gpu_scheduler.daemon.parts import DaemonParts, locked_parts, using_folder
from gpu_scheduler.daemon.performer import Performer
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.daemon.standby.beats import BeatingJournal, Handover
from gpu_scheduler.daemon.standby.endpoint import Entrance
from gpu_scheduler.daemon.standby.follower import LogFollower, check_master_key
from gpu_scheduler.daemon.traces import SchedulerTraces, TracedJournal
from gpu_scheduler.daemon.waker import Waker
from gpu_scheduler.protocol.changes import Entry

logger = logging.getLogger(__name__)


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


@contextlib.asynccontextmanager
async def running_daemon(
    settings: DaemonSettings,
    opener: Opener = open_log,
    standing_by: Callable[[Mapping[str, object]], None] = lambda _: None,
) -> AsyncIterator[RunningDaemon]:
    """A complete ssgmd for the length of the block. Raises AppError when it cannot start.

    A standby calls `standing_by` with its addresses, and the block begins once it has taken over.
    LogSuperseded and LogTrimmed mean for it that it begins again.
    """
    settings.check()  # before any state is created
    clock, metrics = SystemClock(), Metrics()
    async with contextlib.AsyncExitStack() as stack:
        parts = locked_parts(settings, opener, metrics, stack)
        authorizer, journal, machine = parts.authorizer, parts.journal, parts.machine
        waker = None if settings.wake is None else Waker(settings.wake, settings.budget)
        performer = Performer(parts.registry, clock, waker)
        stack.callback(performer.close)
        handover = Handover(journal, settings.budget.handover_s)
        stack.push_async_exit(handover.at_exit)  # when the driver has ended
        nursery = await stack.enter_async_context(Nursery("ssgmd"))
        admission = _admission_of(settings)
        metrics.admission = admission
        http_endpoint = HttpEndpoint(metrics, journal, authorizer, admission)
        http = await listen_http(http_endpoint, settings, admission, stack)
        reread = asyncio.Event()
        nursery.start_loop(partial(_reread, settings, authorizer, reread), "reread")
        entrance = Entrance()
        if settings.standby:
            follower = LogFollower(journal, machine, settings.budget, clock, parts.fingerprint)
            entrance.refuse(lambda: follower.status, authorizer, admission)
            socket = await listen_socket(entrance, settings, stack)
            http_endpoint.stand_by(lambda: follower.status)
            standing_by({"socket": socket, "http": http, "epoch": 0, "role": "standby"})
            await _stand_by(follower, machine, journal)
        else:
            logger.info("recovering", extra={"event": "recovering", "http": http})
            with using_folder(settings.state):  # in a thread, while health is answered
                await asyncio.to_thread(_recover, machine, journal)
            check_master_key(machine, parts.fingerprint)
        first = _first_events(settings, clock, parts.fingerprint)
        await begin_epoch(machine, journal, performer, first)
        metrics.epoch = machine.state.epoch
        decoder = RequestDecoder(clock, journal, performer.submit, metrics, authorizer)
        hub = Hub(machine.state, clock, decoder, parts.registry, Redaction(authorizer))
        beating = _beating(settings, parts, metrics, clock, nursery)
        observed = _observed(beating, hub, clock, stack)
        driver = performer.driven(machine, observed, nursery)
        handover.epoch = metrics.epoch if settings.log is not None else None
        nursery.start_eternal(driver.run(), "driver")
        _start_loops(nursery, settings, performer, journal, hub, waker)
        stack.callback(hub.end_all, "ssgmd stops")
        entrance.connection = lambda: SocketConnection(
            decoder, parts.registry, metrics, authorizer, admission
        )
        if not settings.standby:
            socket = await listen_socket(entrance, settings, stack)
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


def _start_loops(
    nursery: Nursery,
    settings: DaemonSettings,
    performer: Performer,
    journal: Journal,
    hub: Hub,
    waker: Waker | None,
) -> None:
    if waker is not None:
        nursery.start_eternal(waker.run(), "waker")
    nursery.start_eternal(performer.watch_room(journal, settings.budget), "room")
    nursery.start_loop(partial(hub.beats, settings.budget.client_beat_s), "watch")


async def begin_epoch(
    machine: SchedulerMachine,
    journal: Journal,
    performer: Performer,
    events: Iterator[on.Event],
) -> None:
    """Handle the first events, before any request. Raises LogSuperseded when another one leads.

    Their actions come last: a timer that went off during an append would find no driver.
    """
    actions: list[do.Action] = []
    for event in events:
        decision = machine.handle(event)
        await journal.append(decision.changes)
        actions += decision.actions
    for action in actions:
        performer.perform(action)


async def _stand_by(follower: LogFollower, machine: SchedulerMachine, journal: Journal) -> None:
    logger.info("standing by", extra={"event": "standby"})
    await follower.follow()
    fields = {"event": "taking_over", "epoch": machine.state.epoch, "item": follower.status.item}
    logger.info("taking over", extra=fields)
    await asyncio.to_thread(follower.take_over)
    journal.snapshot = machine.parts


def _observed(
    journal: DriverJournal[Entry], hub: Hub, clock: Clock, stack: contextlib.AsyncExitStack
) -> DriverJournal[Entry]:
    watched = WatchedJournal(journal, hub)
    tracer = tracer_from(os.environ, "ssgmd")
    if not tracer.enabled:
        return watched
    stack.push_async_callback(asyncio.to_thread, tracer.close)
    return TracedJournal(watched, SchedulerTraces(tracer, clock))


def _beating(
    settings: DaemonSettings, parts: DaemonParts, metrics: Metrics, clock: Clock, nursery: Nursery
) -> DriverJournal[Entry]:
    if settings.log is None:
        return parts.journal

    def is_alone() -> bool:
        return metrics.connections == 0 and not parts.machine.state.sessions

    beating = BeatingJournal(parts.journal, settings.budget, clock.monotonic_s, is_alone)
    nursery.start_eternal(beating.beats(), "beats")
    return beating


def _admission_of(settings: DaemonSettings) -> ConnectionAdmission:
    descriptors = settings.descriptors or raise_descriptor_limit()
    return ConnectionAdmission(
        AdmissionLimits.of(descriptors, CONNECTIONS_MAX), settings.budget.handshake_s
    )


def _recover(machine: SchedulerMachine, journal: Journal) -> None:
    entries = journal.recover()
    apply_all(machine, entries, journal.name)
    for name, why in machine.state.ignored.items():
        text = "%s: an override of a newer version is kept, but not in force: %s"
        logger.warning(text, name, why, extra={"event": "newer_version"})
    journal.snapshot = machine.parts
    logger.info("recovered", extra={"event": "recovered", "entries": len(entries)})


async def _reread(settings: DaemonSettings, authorizer: Authorizer, now: asyncio.Event) -> None:
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
    try:
        await asyncio.to_thread(keys.refresh)
    except AppError as error:
        logger.error("the keys in force stay: %s", error.message, extra={"event": "keys"})


def _first_events(settings: DaemonSettings, clock: Clock, fingerprint: str) -> Iterator[on.Event]:
    now = {"at_s": clock.monotonic_s(), "wall_s": clock.wall_s()}
    began = on.EpochBegan(
        run=secrets.token_hex(8),
        build=BUILD,
        at_s=now["at_s"],
        wall_s=now["wall_s"],
        wakes=settings.wake is not None,
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


def _advertised(address: str) -> str:
    host, port = parse_address(address)
    return "" if port == 0 or host in ("0.0.0.0", "::") else address

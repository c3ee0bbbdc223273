"""Wiring of ssgmd: recover, open the doors, drive the core."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from corekit.aio.clock import Clock, SystemClock
from corekit.aio.driver import Driver
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.changes import Entry
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.desk import Desk
from gpu_scheduler.daemon.http_door import Calls, HttpDoor
from gpu_scheduler.daemon.journal import Disk, Journal
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.daemon.secret import Secrets
from gpu_scheduler.daemon.sessions import Switchboard
from gpu_scheduler.daemon.socket_door import Connection
from gpu_scheduler.model import Device
from gpu_scheduler.protocol.address import parse_address

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What `ssgmd` was told."""

    state: Path  #: folder of journal, lock and key; made when absent
    budget: Budget
    listen: str = "127.0.0.1:0"  #: socket door
    http: str = "127.0.0.1:0"  #: HTTP door
    capacity: tuple[Device, ...] | None = None  #: devices that may register later


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDaemon:
    """A daemon that serves."""

    socket: str  #: "address:port"
    http: str
    epoch: int
    nursery: Nursery
    journal: Journal


class Performer:
    """The core's actions in the world; all of them are done at once."""

    def __init__(self, switchboard: Switchboard, clock: Clock) -> None:
        self._switchboard = switchboard
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.driver: Driver[on.Event, Entry, do.Action] | None = None

    def perform(self, action: do.Action) -> None:
        match action:
            case do.Reply():
                self._switchboard.reply(action)
            case do.ReplyError():
                self._switchboard.reply_error(action)
            case do.PushToSession():
                self._switchboard.push(action)
            case do.InstallOnHost():
                self._switchboard.install(action)
            case do.EndOnHost():
                self._switchboard.end(action)
            case do.StagedOnHost():
                self._switchboard.staged(action)
            case do.WakeAt():
                self._wake_at(action.at_s)

    def _wake_at(self, at_s: float) -> None:
        self.close()
        self._timer = self._loop.call_later(at_s - self._clock.monotonic_s(), self._tick)

    def _tick(self) -> None:
        assert self.driver is not None
        ticked = on.Ticked(at_s=self._clock.monotonic_s(), wall_s=self._clock.wall_s())
        self.driver.submit(ticked)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextlib.asynccontextmanager
async def running_daemon(
    settings: DaemonSettings, disk: Disk | None = None
) -> AsyncIterator[RunningDaemon]:
    """A whole ssgmd, for the length of the block. Raises AppError when it cannot start."""
    for address in (settings.listen, settings.http):
        parse_address(address)  # refused before any state is made
    clock, metrics = SystemClock(), Metrics()
    async with contextlib.AsyncExitStack() as stack:
        keys, journal, machine = _recovered(settings, disk, stack)
        switchboard = Switchboard(keys, metrics)
        performer = Performer(switchboard, clock)
        stack.callback(performer.close)
        nursery = await stack.enter_async_context(Nursery("ssgmd"))
        driver = Driver(machine, journal, performer.perform, nursery)
        performer.driver = driver
        desk = Desk(clock, journal, driver.submit, metrics)
        calls = Calls(desk, switchboard)
        ready = asyncio.Event()
        door = HttpDoor(calls, metrics, journal, ready.is_set)
        http = await _listen_http(door, settings.http, stack)
        for event in _first_events(settings, clock):  # before anybody can ask
            decision = machine.handle(event)
            await journal.append(decision.changes)
            for action in decision.actions:
                performer.perform(action)
        nursery.start_eternal(driver.run(), "driver")
        metrics.epoch = machine.state.epoch
        socket = await _listen_socket(desk, switchboard, metrics, settings.listen, stack)
        ready.set()
        fields = {"event": "serving", "socket": socket, "http": http, "epoch": metrics.epoch}
        logger.info("ssgmd serves", extra=fields)
        yield RunningDaemon(
            socket=socket, http=http, epoch=metrics.epoch, nursery=nursery, journal=journal
        )


def _recovered(
    settings: DaemonSettings, disk: Disk | None, stack: contextlib.AsyncExitStack
) -> tuple[Secrets, Journal, SchedulerMachine]:
    """The key and the state as the journal tells it; the folder is locked from here on."""
    with _using(settings.state):
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = Secrets.open(settings.state)
        journal, entries = Journal.open(settings.state, disk)
    stack.callback(journal.close)
    # ids of a new run must never repeat those of an earlier one: each run has its own seed
    machine = SchedulerMachine(settings.budget, IdSource(secrets.token_hex(16)))
    for entry in entries:
        machine.apply(entry)
    journal.snapshot = machine.snapshot
    logger.info("recovered", extra={"event": "recovered", "entries": len(entries)})
    return keys, journal, machine


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """A folder that cannot be used is the caller's mistake, except for a full disk."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot use {folder} as the state folder: {error.strerror or error}"
        raise AppError(ErrorCode.EXHAUSTED if full else ErrorCode.INVALID, text) from error


def _first_events(settings: DaemonSettings, clock: Clock) -> Iterator[on.Event]:
    now = {"at_s": clock.monotonic_s(), "wall_s": clock.wall_s()}
    yield on.EpochBegan(**now)
    if settings.capacity is not None:
        yield on.CapacityDeclared(devices=settings.capacity, **now)


async def _listen_socket(
    desk: Desk, switchboard: Switchboard, metrics: Metrics, address: str,
    stack: contextlib.AsyncExitStack,
) -> str:  # fmt: skip
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    with _listening(address):
        server = await loop.create_server(
            lambda: Connection(desk, switchboard, metrics), host, port
        )
    stack.callback(server.close)
    stack.callback(switchboard.close_all)
    return _address_of(server.sockets[0].getsockname())


async def _listen_http(door: HttpDoor, address: str, stack: contextlib.AsyncExitStack) -> str:
    runner = web.AppRunner(door.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    with _listening(address):
        site = web.TCPSite(runner, *parse_address(address))
        await site.start()
    return _address_of(runner.addresses[0])


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


def _address_of(name: tuple[str, int]) -> str:
    return f"{name[0]}:{name[1]}"

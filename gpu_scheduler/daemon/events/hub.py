"""Hub of the event stream: leases, records, queue, hosts, devices, pools and parameters.

Lease events come from the core, which the hub watches; events of records, queue and parameters from
journalled changes, once they are durable. Hosts and devices, whose silence is not journalled, and
pools of fleets are compared after a change and at every beat. The hub collects changes in a ring
while it has a subscriber and for `LINGER_S` after the last one, which may come back; otherwise it
does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from corekit.aio.clock import Clock
from corekit.aio.driver import DURABLE, Journal
from corekit.aio.supervise import contained
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, JobId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core.state.state import State
from gpu_scheduler.daemon.access.authorizer import TRUSTED, Caller
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.endpoints.connections import AnyPush, ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.events.ring import ChangeRing
from gpu_scheduler.daemon.events.subscriber import Subscriber
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import LeasePush, PromisePush, RecordPush

logger = logging.getLogger(__name__)

#: Session of the hub in the core; no session of a client with a key has this form.
SESSION = SessionId("ssgmd/watch")
#: The most concurrent streams: each event is written to all of them.
SUBSCRIBERS_MAX = 100
#: Delay before a comparison, so that hosts that register together are compared together.
LOOK_S = 0.1
#: The time for which changes are collected after the last subscriber left.
LINGER_S = 600.0


class Hub:
    """Collects changes and writes them to every subscriber."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        decoder: RequestDecoder,
        registry: ConnectionRegistry,
        redaction: Redaction,
    ) -> None:
        self._state = state
        self._clock = clock
        self._decoder = decoder
        self._redaction = redaction
        self._number = registry.register(self)
        registry.bind_session(SESSION, self)
        self._ring = ChangeRing(state.epoch, state.run)
        self._subscribers: dict[Subscriber, None] = {}
        self._idle_since_s = 0.0  # monotonic: the last subscriber left
        self._standing: Mapping[_Name, _Standing] = {}
        self._queued: dict[AttemptId, None] = {}
        self._next_look: asyncio.TimerHandle | None = None
        self.collects = False  #: True: changes go into the ring

    @contextmanager
    def subscribed(self, caller: Caller, after: str | None = None) -> Iterator[Subscriber]:
        """A stream for the duration of the block, if possible after this position.

        Raises EXHAUSTED when there are too many.
        """
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            text = f"{SUBSCRIBERS_MAX} streams are already open; close one"
            raise AppError(ErrorCode.EXHAUSTED, text)
        self._collect()
        subscriber = self._subscriber(caller, after)
        self._subscribers[subscriber] = None
        try:
            yield subscriber
        finally:
            self._subscribers.pop(subscriber, None)
            self._idle_since_s = self._clock.monotonic_s()

    def _subscriber(self, caller: Caller, after: str | None) -> Subscriber:
        ring, epoch, now_s = self._ring, self._state.epoch, self._clock.wall_s()
        redact = None if caller.sees_all else partial(self._redacted, caller)
        place = None if after is None else ring.resumable(after)
        if isinstance(place, words.Position):
            subscriber = Subscriber(ring, place.seq, redact)
            subscriber.write(words.Resumed(epoch=epoch), now_s, placed=True)
            return subscriber
        subscriber = Subscriber(ring, ring.last, redact)
        first = words.Started(epoch=epoch) if place is None else words.Reset(epoch=epoch, why=place)
        for event in (first, *self._standing.values()):
            subscriber.write(event, now_s)
        subscriber.write(words.Current(), now_s, placed=True)
        return subscriber

    def _redacted(self, caller: Caller, event: words.WatchEvent) -> words.WatchEvent:
        if isinstance(event, LeasePush):
            return replace(event, detail="")  # text of the holder
        if isinstance(event, PromisePush):
            return replace(event, why="")  # it names jobs
        if isinstance(event, RecordPush):
            return self._redaction.of_record_push(caller, event)
        if isinstance(event, words.PoolChanged):
            return replace(event, usd_per_h=0.0)
        return event

    def _collect(self) -> None:
        if self.collects:
            return
        self.collects = True
        self._ring.interrupt()
        self._standing = {}
        self._look(publish=False)
        self._queued = dict.fromkeys(map(AttemptId, self._state.queue.entries))
        self._watch_leases(wanted=True)

    def _collect_no_more(self) -> None:
        self.collects = False
        self._look_no_more()
        self._ring.interrupt()
        self._watch_leases(wanted=False)

    async def beats(self, every_s: float) -> None:
        """Renew the watch in the core and send beats to the readers, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            if not self._subscribers and self._clock.monotonic_s() > self._idle_since_s + LINGER_S:
                if self.collects:
                    self._collect_no_more()
            elif self.collects:
                self._watch_leases(wanted=True)
                self._look()
                for subscriber in self._subscribers:
                    subscriber.beat(self._clock.wall_s())

    def end_all(self, why: str) -> None:
        """End all streams, because the daemon stops."""
        self._look_no_more()
        for subscriber in list(self._subscribers):
            subscriber.end(why, self._clock.wall_s())

    def interrupt(self) -> None:
        """End all streams, because a change is missing; their readers begin again."""
        self._ring.interrupt()
        self.end_all("a change is missing")

    # --- leases: a session of the core, without a connection

    def _watch_leases(self, *, wanted: bool) -> None:
        try:
            self._decoder.submit(TRUSTED, SESSION, ops.Watch(all=wanted), f"{self._number}.0")
        except asyncio.QueueFull:
            logger.warning("the core is overloaded: leases are watched again at the next beat")

    def push(self, push: AnyPush) -> None:
        if isinstance(push, LeasePush | PromisePush):
            self._publish(push)

    def answer(self, id_: int, answer: Value) -> None:
        """The watch of the core is active."""

    def refuse(self, id_: int, error: AppError) -> None:
        logger.error("request %d: leases are not watched: %s", id_, error.message)

    def caller_of(self, _: int) -> Caller:
        return TRUSTED

    def close(self) -> None:
        """Nothing to close: the hub has no connection."""

    # --- journalled changes

    def changed(self, changes: Sequence[to.Entry]) -> None:
        """Publish changes that are now durable."""
        parts = [part for entry in changes for part in entry.parts]
        records: dict[JobId, RecordPush] = {}  # an entry may write a record several times
        for part in parts:
            match part:
                case to.RequestQueued():
                    self._waits(part.waiting.attempt, queued=True)
                case to.RequestDropped():
                    self._waits(part.attempt, queued=False)
                case to.LeaseGranted():
                    self._waits(part.lease.attempt, queued=False)
                case to.RecordWritten():
                    holder = part.record.holder
                    records[holder] = RecordPush(holder=holder, record=part.record)
                case to.RecordForgotten():
                    records[part.holder] = RecordPush(holder=part.holder, record=None)
                case to.ParameterSet():
                    self._publish(words.ParameterChanged(name=part.name, value=part.value))
        for push in records.values():
            self._publish(push)
        if self._next_look is None and any(isinstance(part, _OF_HOSTS) for part in parts):
            self._next_look = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _waits(self, attempt: AttemptId, *, queued: bool) -> None:
        if (attempt in self._queued) is queued:
            return
        if queued:
            self._queued[attempt] = None
        else:
            del self._queued[attempt]
        waiting = len(self._queued)
        self._publish(words.QueueChanged(attempt=attempt, queued=queued, waiting=waiting))

    # --- hosts, devices and pools

    def _look(self, *, publish: bool = True) -> None:
        self._look_no_more()
        standing = _standing(self._state, self._clock.monotonic_s())
        differs = [
            *(_gone(one) for name, one in self._standing.items() if name not in standing),
            *(one for name, one in standing.items() if self._standing.get(name) != one),
        ]
        self._standing = standing
        for event in differs if publish else ():
            self._publish(event)

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _publish(self, event: words.WatchEvent) -> None:
        if self.collects:
            self._ring.add(event, self._clock.wall_s())
            for subscriber in self._subscribers:
                subscriber.changed()


_OF_HOSTS = (
    to.HostRegistered,
    to.HostDrained,
    to.HostForgotten,
    to.DeviceDrained,
    to.DeviceChanged,
)


#: The current state of a host, a device or a pool, and its name.
_Standing: TypeAlias = words.HostChanged | words.DeviceChanged | words.PoolChanged
_Name: TypeAlias = tuple[str, str]


def _standing(state: State, at_s: float) -> dict[_Name, _Standing]:
    found: dict[_Name, _Standing] = {
        ("host", host.host): words.HostChanged(host=host.host, state=host.shown_state)
        for host in state.inventory.hosts.values()
    }
    for host in state.inventory.hosts.values():
        for entry in host.devices.values():
            found["device", entry.device.id] = words.DeviceChanged(
                host=host.host,
                device=entry.device.id,
                health=entry.device.health,
                symptoms=entry.device.symptoms,
                drained=entry.drained,
            )
    fleet = state.fleets.view(at_s)
    for pool in () if fleet is None else fleet.pools:
        found["pool", pool.name] = words.PoolChanged(
            pool=pool.name, hosts=pool.hosts, usd_per_h=pool.usd_per_h
        )
    return found


def _gone(one: _Standing) -> _Standing:
    match one:
        case words.HostChanged():
            return replace(one, state=None)
        case words.DeviceChanged():
            return replace(one, health=None)
        case words.PoolChanged():
            return replace(one, hosts=None)


class WatchedJournal:
    """The journal, with a hub that is notified of changes once they are durable."""

    def __init__(self, journal: Journal[to.Entry], hub: Hub) -> None:
        self._journal = journal
        self._hub = hub

    def append(self, changes: Sequence[to.Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`."""
        durable = self._journal.append(changes)
        if not self._hub.collects:
            return durable
        if durable is not DURABLE:
            return self._when(durable, changes)
        self._show(changes)
        return DURABLE

    async def _when(self, durable: Awaitable[None], changes: Sequence[to.Entry]) -> None:
        await durable
        self._show(changes)

    def _show(self, changes: Sequence[to.Entry]) -> None:
        with contained("changes for readers", lambda _: self._hub.interrupt()):
            self._hub.changed(changes)

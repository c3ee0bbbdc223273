"""The event stream of the HTTP API: leases, queue, hosts, devices and parameters as they change.

Lease events come from the core, which the hub watches; queue and parameter events from journalled
changes, once they are durable. Hosts and devices, whose silence is not journalled, are compared
after a change and at every beat. Without a subscriber, the hub does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager

from corekit.aio.clock import Clock
from corekit.aio.driver import DURABLE, Journal
from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, DeviceId, HostId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core.state import State
from gpu_scheduler.daemon.access.authorizer import TRUSTED, Caller
from gpu_scheduler.daemon.endpoints.connections import AnyPush, ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import LeasePush

logger = logging.getLogger(__name__)

#: Session of the hub in the core; no session of a client with a key has this form.
SESSION = SessionId("ssgmd/watch")
#: The most concurrent streams: each event is written to all of them.
SUBSCRIBERS_MAX = 100
#: Delay before a comparison, so that hosts that register together are compared together.
LOOK_S = 0.1
#: The most unread events of a reader: 1,000 leases that change five times.
BEHIND_MAX = 5_000


class Subscriber:
    """One stream: lines to be written, in order."""

    def __init__(self, *, sees_all: bool = True) -> None:
        self._sees_all = sees_all
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._seq = 0
        self._over = False

    def write(self, event: words.WatchEvent, at_s: float) -> None:
        """Write one event; for a reader that is too far behind, write `lost` as the last event."""
        if self._over:
            return
        if self._lines.qsize() >= BEHIND_MAX and not isinstance(event, words.Lost):
            self.end("the reader is too slow", at_s)
            return
        if isinstance(event, LeasePush) and not self._sees_all:
            event = replace(event, detail="")  # text of the holder
        self._seq += 1
        head = encode_json({"event": words.EVENTS[type(event)], "seq": self._seq, "at_s": at_s})
        fields = encode_json(event)
        self._lines.put_nowait(head if fields == b"{}" else head[:-1] + b"," + fields[1:])

    def end(self, why: str, at_s: float) -> None:
        """End the stream: nothing follows."""
        self.write(words.Lost(why=why), at_s)
        self._over = True

    def close(self) -> None:
        """End the stream, because its key was revoked."""
        self.end("the key was revoked", 0.0)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines, until the stream is over."""
        while not (self._over and self._lines.empty()):
            yield await self._lines.get()


class Hub:
    """Collects changes and writes them to every subscriber."""

    def __init__(
        self, state: State, clock: Clock, decoder: RequestDecoder, registry: ConnectionRegistry
    ) -> None:
        self._state = state
        self._clock = clock
        self._decoder = decoder
        self._number = registry.register(self)
        registry.bind_session(SESSION, self)
        self._subscribers: dict[Subscriber, None] = {}
        self._hosts: dict[HostId, words.HostChanged] = {}
        self._devices: dict[DeviceId, words.DeviceChanged] = {}
        self._queued: dict[AttemptId, None] = {}
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def watched(self) -> bool:
        return bool(self._subscribers)

    @contextmanager
    def subscribed(self, caller: Caller) -> Iterator[Subscriber]:
        """A stream for the duration of the block. Raises EXHAUSTED when there are too many."""
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            text = f"{SUBSCRIBERS_MAX} streams are already open; close one"
            raise AppError(ErrorCode.EXHAUSTED, text)
        if not self._subscribers:
            self._hosts, self._devices = {}, {}
            self._look(publish=False)
            self._queued = dict.fromkeys(map(AttemptId, self._state.queue.entries))
        subscriber = Subscriber(sees_all=caller.sees_all)
        now_s = self._clock.wall_s()
        subscriber.write(words.Started(epoch=self._state.epoch), now_s)
        for host in self._hosts.values():
            subscriber.write(host, now_s)
        for device in self._devices.values():
            subscriber.write(device, now_s)
        self._subscribers[subscriber] = None
        self._watch_leases(wanted=True)
        try:
            yield subscriber
        finally:
            self._subscribers.pop(subscriber, None)
            if not self._subscribers:
                self._watch_leases(wanted=False)

    async def beats(self, every_s: float) -> None:
        """Renew the watch in the core and send beats to the readers, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            if self._subscribers:
                self._watch_leases(wanted=True)
                self._look()
                self._publish(words.Beat())

    def end_all(self, why: str) -> None:
        """End all streams, because the daemon stops."""
        self._look_no_more()
        for subscriber in list(self._subscribers):
            subscriber.end(why, self._clock.wall_s())

    # --- leases: a session of the core, without a connection

    def _watch_leases(self, *, wanted: bool) -> None:
        try:
            self._decoder.submit(TRUSTED, SESSION, ops.Watch(all=wanted), f"{self._number}.0")
        except asyncio.QueueFull:
            logger.warning("the core is overloaded: leases are watched again at the next beat")

    def push(self, push: AnyPush) -> None:
        if isinstance(push, LeasePush):
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
        for part in parts:
            match part:
                case to.RequestQueued():
                    self._waits(part.waiting.attempt, queued=True)
                case to.RequestDropped():
                    self._waits(part.attempt, queued=False)
                case to.LeaseGranted():
                    self._waits(part.lease.attempt, queued=False)
                case to.ParameterSet():
                    self._publish(words.ParameterChanged(name=part.name, value=part.value))
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

    # --- hosts and devices

    def _look(self, *, publish: bool = True) -> None:
        """Publish the differences from the last comparison."""
        self._look_no_more()
        hosts, devices = _standing(self._state)
        differs: list[words.HostChanged | words.DeviceChanged] = [
            *(
                words.HostChanged(host=host, state=None)
                for host in self._hosts
                if host not in hosts
            ),
            *(
                replace(gone, health=None)
                for id_, gone in self._devices.items()
                if id_ not in devices
            ),
            *(event for host, event in hosts.items() if self._hosts.get(host) != event),
            *(event for id_, event in devices.items() if self._devices.get(id_) != event),
        ]
        self._hosts, self._devices = hosts, devices
        for event in differs if publish else ():
            self._publish(event)

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _publish(self, event: words.WatchEvent) -> None:
        now_s = self._clock.wall_s()
        for subscriber in list(self._subscribers):
            subscriber.write(event, now_s)


_OF_HOSTS = (
    to.HostRegistered,
    to.HostDrained,
    to.HostForgotten,
    to.DeviceDrained,
    to.DeviceChanged,
)


def _standing(
    state: State,
) -> tuple[dict[HostId, words.HostChanged], dict[DeviceId, words.DeviceChanged]]:
    hosts = {
        host.host: words.HostChanged(host=host.host, state=host.shown_state)
        for host in state.inventory.hosts.values()
    }
    devices = {
        entry.device.id: words.DeviceChanged(
            host=host.host,
            device=entry.device.id,
            health=entry.device.health,
            symptoms=entry.device.symptoms,
            drained=entry.drained,
        )
        for host in state.inventory.hosts.values()
        for entry in host.devices.values()
    }
    return hosts, devices


class WatchedJournal:
    """The journal, with a hub that is notified of changes once they are durable."""

    def __init__(self, journal: Journal[to.Entry], hub: Hub) -> None:
        self._journal = journal
        self._hub = hub

    def append(self, changes: Sequence[to.Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`."""
        durable = self._journal.append(changes)
        if not self._hub.watched:
            return durable
        if durable is not DURABLE:
            return self._when(durable, changes)
        self._hub.changed(changes)
        return DURABLE

    async def _when(self, durable: Awaitable[None], changes: Sequence[to.Entry]) -> None:
        await durable
        self._hub.changed(changes)

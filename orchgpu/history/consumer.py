"""Consumer: writes the event stream of the scheduler into the history, until SIGTERM.

It reads over HTTP, as any client: a slow disk makes this process late, never a grant. Its place in
the stream is stored with the data, so after a restart it continues there; when the scheduler no
longer knows the place, it reads all records again. Writes run in a thread, one batch at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from corekit.aio.backoff import Backoff
from corekit.aio.clock import Clock, SystemClock
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import fast_loop, log_as_json, stop_signal, write_ready
from corekit.aio.supervise import Nursery, until_first
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.events import Watched, records, watched
from gpu_scheduler.model import HostState, Record
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import RecordPush
from orchgpu.history.store import Batch, Bounds, PoolSize, Presence, Store

logger = logging.getLogger(__name__)

#: A batch is written this long after its first change, or when it is full.
BATCH_S = 0.5
BATCH_MAX = 1_000
#: Interval between removals of what is too old or too much.
PRUNE_EVERY_S = 300.0
_GONE = (None, HostState.LOST)


class Devices:
    """The devices that are there, as the events of hosts and devices show them. Pure."""

    def __init__(self) -> None:
        self._hosts: dict[str, bool] = {}  # True: not lost
        self._devices: dict[str, str] = {}  # device → its host

    def restore(self, latest: Sequence[Presence]) -> None:
        """Continue with the devices that the history has."""
        for one in latest:
            self._devices[one.device] = one.host
            self._hosts[one.host] = self._hosts.get(one.host, False) or one.present

    def clear(self) -> None:
        """Begin with nothing: the whole state follows."""
        self._hosts, self._devices = {}, {}

    def changed(self, one: words.HostChanged | words.DeviceChanged, at_s: float) -> list[Presence]:
        if isinstance(one, words.HostChanged):
            self._hosts[one.host] = one.state not in _GONE
            of_host = [device for device, host in self._devices.items() if host == one.host]
            return [self._presence(device, at_s) for device in of_host]
        if one.health is None:
            self._devices.pop(one.device, None)
            gone = Presence(device=one.device, host=one.host, present=False, at_s=at_s)
            return [replace(gone, removed=True)]
        self._devices[one.device] = one.host
        return [self._presence(one.device, at_s)]

    def inventory(self, at_s: float) -> list[Presence]:
        return [self._presence(device, at_s) for device in self._devices]

    def _presence(self, device: str, at_s: float) -> Presence:
        host = self._devices[device]
        there = self._hosts.get(host, True)
        return Presence(device=device, host=host, present=there, at_s=at_s)


class Consumer:
    """One consumer of one scheduler's event stream."""

    def __init__(
        self,
        store: Store,
        http: str,
        access: Access,
        budget: Budget | None = None,
        clock: Clock | None = None,
        on_written: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._http = http
        self._access = access
        self._budget = budget or Budget()
        self._clock = clock or SystemClock()
        self._on_written = on_written
        self._devices = Devices()
        self._records: dict[str, Record] = {}  # not written yet, as the three below
        self._presences: list[Presence] = []
        self._pools: list[PoolSize] = []
        self._all_pools: list[PoolSize] = []  #: while the state is not complete
        self._position: str | None = None
        self._complete = True  # False: between `started` and the end of the state

    async def run(self) -> None:
        """Consume without end; called again after an error, it continues where the store ends.

        Raises DENIED, INVALID, and the errors of the store.
        """
        self._clear()
        self._complete = True
        self._devices.clear()
        after = await asyncio.to_thread(lambda: self._store.position)
        self._devices.restore(await asyncio.to_thread(self._store.latest_presences))
        stream = watched(self._http, self._access, after=after, budget=self._budget)
        await self._prune()
        pruned_s = self._clock.monotonic_s()
        async with (
            contextlib.aclosing(stream) as events,
            contextlib.aclosing(_batches(events)) as batches,
        ):
            async for batch in batches:
                for one in batch:
                    await self._consume(one)
                await self._flush()
                if self._clock.monotonic_s() - pruned_s >= PRUNE_EVERY_S:
                    await self._prune()
                    pruned_s = self._clock.monotonic_s()

    async def _consume(self, one: Watched) -> None:
        match event := one.event:
            case words.Started() | words.Reset():
                self._devices.clear()
                self._all_pools.clear()
                self._complete = False
            case words.Resumed():
                self._complete = True
            case words.Current():
                await self._read_all(one)
            case RecordPush(record=Record() as record):
                self._records[record.holder] = record
            case words.HostChanged() | words.DeviceChanged():
                changed = self._devices.changed(event, one.at_s)
                self._presences += changed if self._complete else ()
            case words.PoolChanged(pool=pool, hosts=hosts, usd_per_h=usd_per_h):
                size = PoolSize(pool=pool, hosts=hosts, usd_per_h=usd_per_h, at_s=one.at_s)
                (self._pools if self._complete else self._all_pools).append(size)
        if self._complete and one.position is not None:
            self._position = one.position
        if len(self._records) + len(self._presences) + len(self._pools) >= BATCH_MAX:
            await self._flush()

    async def _read_all(self, one: Watched) -> None:
        """Read all records, and store the devices; the stream continues after that."""
        await self._flush()
        await self._patiently(self._read_records)
        inventory = self._devices.inventory(one.at_s)
        pools = tuple(self._all_pools)
        await self._write(
            Batch(inventory=inventory, pools=pools, at_s=one.at_s, position=one.position)
        )
        self._complete = True

    async def _read_records(self) -> None:
        count = 0
        async for page in records(self._http, self._access, self._budget.client_gone_s):
            await self._write(Batch(records=page))
            count += len(page)
        logger.info("read %d records of the scheduler", count, extra={"event": "read_all"})

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat a work until the scheduler, or the disk, is there."""
        backoff = Backoff(self._budget.reconnect_base_s, self._budget.reconnect_s_max)
        while True:
            try:
                return await work()
            except AppError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                logger.warning("%s; trying again", error.message, extra={"event": "history"})
            await asyncio.sleep(backoff.next_s())

    async def _flush(self) -> None:
        batch = Batch(
            records=tuple(self._records.values()),
            presences=tuple(self._presences),
            pools=tuple(self._pools),
            position=self._position,
        )
        self._clear()
        if batch != Batch():
            await self._write(batch)

    def _clear(self) -> None:
        self._records, self._presences, self._pools, self._position = {}, [], [], None

    async def _write(self, batch: Batch) -> None:
        await self._patiently(lambda: asyncio.to_thread(self._store.write, batch))
        self._on_written(batch)

    async def _prune(self) -> None:
        removed = await asyncio.to_thread(self._store.prune, self._clock.wall_s())
        if removed:
            logger.info("removed %d old jobs", removed, extra={"event": "pruned"})


async def _batches(events: AsyncIterator[Watched]) -> AsyncGenerator[list[Watched], None]:
    """Events, together when they come together: at most `BATCH_S` after the first of a batch."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Watched | BaseException] = asyncio.Queue(BATCH_MAX)

    async def fill() -> None:
        try:
            async for one in events:
                await queue.put(one)
        except Exception as error:  # the consumer's, which waits for events
            await queue.put(error)

    filling = asyncio.create_task(fill(), name="history-events")
    try:
        while True:
            batch = [_event(await queue.get())]
            end_s = loop.time() + BATCH_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    while len(batch) < BATCH_MAX:
                        batch.append(_event(await queue.get()))
            yield batch
    finally:
        filling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await filling


def _event(got: Watched | BaseException) -> Watched:
    if isinstance(got, BaseException):
        raise got
    return got


logger = logging.getLogger(__name__)


class HistorySettings(Value):
    """The settings of one consumer."""

    http: str  #: HTTP endpoints of the schedulers, "host:port,…"
    store: Path
    bounds: Bounds
    access: Access
    ready_file: Path | None = None


def run(settings: HistorySettings) -> None:
    """Write the history until SIGTERM or SIGINT. Raises AppError."""
    log_as_json()
    loop = asyncio.Runner(loop_factory=fast_loop())
    with Store(settings.store, settings.bounds) as store, loop as runner:
        runner.run(serve(settings, store))


async def serve(settings: HistorySettings, store: Store) -> None:
    """The whole life of one consumer."""
    stop = stop_signal()
    consumer = Consumer(store, settings.http, settings.access, budget_from_environment())
    async with Nursery("orchgpu-collect") as nursery:
        nursery.start_loop(consumer.run, "consumer")
        write_ready(settings.ready_file, {"store": str(settings.store)})
        logger.info("writing %s", settings.store, extra={"event": "serving"})
        await until_first(stop.wait(), nursery.failed())

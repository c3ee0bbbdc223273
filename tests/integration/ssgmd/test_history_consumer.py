"""A consumer writes the event stream of a real ssgmd into the history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.events import Watched
from orchgpu.history.consumer import Consumer, _batches
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.rows import JobRow
from orchgpu.history.store import Batch, Store
from orchgpu.local.ports import fixed_address
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import Endpoints, serving

HELLO = host_hello(op="hello")
BUDGET = replace(Budget(), reconnect_base_s=0.01, reconnect_s_max=0.05)


class Written:
    """Waits until what was written has a property."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = asyncio.Event()

    def note(self, _: Batch) -> None:
        self._changed.set()

    async def until(self, holds: Callable[[HistoryReader], bool]) -> None:
        async with asyncio.timeout(60):
            while True:
                self._changed.clear()
                with HistoryReader(self._store.path) as reader:
                    if holds(reader):
                        return
                await self._changed.wait()


@contextlib.asynccontextmanager
async def consuming(store: Store, http: str) -> AsyncIterator[Written]:
    written = Written(store)
    consumer = Consumer(store, http, Access(), BUDGET, on_written=written.note)
    task = asyncio.create_task(consumer.run())
    try:
        yield written
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def start(endpoints: Endpoints, job: str) -> None:
    body = {"holder": job, "n": 1, "revision": 0, "handle": "h", "block": {"function": "f"}}
    await endpoints.ask("POST", "/v1/attempt", {**body, "request": {"tenant": "t"}, "wait": True})


async def finish(endpoints: Endpoints, job: str) -> None:
    body = {"holder": job, "outcome": "FAILED", "reason": "EXIT_NONZERO", "detail": ""}
    await endpoints.ask("POST", "/v1/finish", body)


def job_of(reader: HistoryReader, job: str) -> JobRow | None:
    return next((one for one in reader.jobs().items if one.job == job), None)


def ended(reader: HistoryReader, job: str) -> bool:
    found = job_of(reader, job)
    return found is not None and found.state == "FAILED"


@pytest.mark.asyncio
async def test_jobs_of_before_of_now_and_of_a_gap_are_in_the_history(tmp_path: Path) -> None:
    with Store(tmp_path / "history" / "h") as store:
        async with serving(tmp_path / "state") as endpoints, endpoints.peer() as host:
            await host.ask(**HELLO)
            http = endpoints.daemon.http
            await start(endpoints, "before")
            async with consuming(store, http) as written:
                await written.until(lambda reader: job_of(reader, "before") is not None)
                await start(endpoints, "now")
                await finish(endpoints, "before")
                await written.until(
                    lambda reader: ended(reader, "before") and job_of(reader, "now") is not None
                )
            await finish(endpoints, "now")
            async with consuming(store, http) as written:
                await written.until(lambda reader: ended(reader, "now"))
        assert [one.device for one in store.latest_presences()] == ["h/0"]
        with HistoryReader(store.path) as reader:
            (row,) = [one for one in reader.jobs().items if one.job == "now"]
            assert (row.function, row.tenant, row.reason) == ("f", "t", "EXIT_NONZERO")
            assert row.device.startswith("h/0")


@pytest.mark.asyncio
async def test_the_history_continues_after_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    with Store(tmp_path / "h") as store:
        http = fixed_address()
        async with serving(tmp_path / "state", http=http) as endpoints:
            async with endpoints.peer() as host:
                await host.ask(**HELLO)
                await start(endpoints, "a")
                await start(endpoints, "b")
                async with consuming(store, http) as written:
                    await written.until(lambda reader: job_of(reader, "b") is not None)
                position = store.position
            await finish(endpoints, "a")
        async with (
            serving(tmp_path / "state", http=http) as endpoints,
            consuming(store, http) as written,
        ):
            await written.until(lambda reader: ended(reader, "a"))
            await finish(endpoints, "b")
            await written.until(lambda reader: ended(reader, "b"))
        assert store.position != position


@pytest.mark.asyncio
async def test_an_unexpected_error_of_the_stream_is_the_consumers() -> None:
    """It must not wait for events that nobody reads any more."""

    async def failing(before: Sequence[Watched]) -> AsyncIterator[Watched]:
        for one in before:
            yield one
        raise RuntimeError("an answer that nobody foresaw")

    batches = _batches(failing([]))
    waiting = asyncio.ensure_future(anext(batches))
    await asyncio.wait({waiting}, timeout=5)
    assert waiting.done()
    with pytest.raises(RuntimeError, match="nobody foresaw"):
        await waiting


@pytest.mark.asyncio
async def test_a_consumer_that_begins_again_misses_nothing(tmp_path: Path) -> None:
    failures = [RuntimeError("one in vain"), RuntimeError("and another")]
    with Store(tmp_path / "h") as store:
        written = Written(store)

        def note(batch: Batch) -> None:
            written.note(batch)
            if batch.records and failures:
                raise failures.pop()

        async with (
            serving(tmp_path / "state") as endpoints,
            endpoints.peer() as host,
            Nursery("test") as nursery,
        ):
            await host.ask(**HELLO)
            consumer = Consumer(store, endpoints.daemon.http, Access(), BUDGET, on_written=note)
            await start(endpoints, "before")
            nursery.start_loop(consumer.run, "consumer")
            await written.until(lambda reader: job_of(reader, "before") is not None)
            await start(endpoints, "now")
            await finish(endpoints, "before")
            await written.until(
                lambda reader: ended(reader, "before") and job_of(reader, "now") is not None
            )
        assert failures == []


@pytest.mark.asyncio
async def test_the_hosts_of_pools_are_in_the_history(tmp_path: Path) -> None:
    async def report(endpoints: Endpoints, hosts: int) -> None:
        pool = {"name": "a", "kind": "cuda", "memory_mib": 9, "max": 4, "start_s": 60}
        body = {"pools": [{**pool, "usd_per_h": 2, "states": {"idle": hosts}}]}
        assert (await endpoints.ask("POST", "/v1/report_fleet", body)).status == 200

    def most(reader: HistoryReader) -> int:
        found = reader.hosts(Window(since_s=0.0, until_s=1e10), 1e10)
        return 0 if found is None else found.pools[0].hosts_max

    with Store(tmp_path / "h") as store:
        http = fixed_address()
        async with serving(tmp_path / "state", http=http) as endpoints:
            await report(endpoints, 1)
            async with consuming(store, http) as written:
                await written.until(lambda reader: most(reader) == 1)
                await report(endpoints, 3)
                await written.until(lambda reader: most(reader) == 3)

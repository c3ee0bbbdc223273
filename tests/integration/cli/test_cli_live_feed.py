"""Live commands after a lost connection: they continue at their position and read nothing again."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from orchgpu.jobs.live.feed import JobsFeed
from tests.integration.ssgmd.conftest import Endpoints, serving

JOBS = 450  #: three pages
pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchgpu.jobs.live.feed.ANSWER_WITHIN_S", 60.0)


@dataclass
class Gate:
    """A way to a TCP endpoint that a test can cut, and close."""

    target: str
    address: str = ""
    is_open: bool = True
    passed: int = 0  #: connections so far
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.close()
            return
        self.passed += 1
        host, _, port = self.target.rpartition(":")
        answers, requests = await asyncio.open_connection(host, int(port))
        self._writers += [writer, requests]
        await asyncio.gather(_copied(reader, requests), _copied(answers, writer))

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def gated(target: str) -> AsyncIterator[Gate]:
    gate = Gate(target)
    async with Nursery("gate") as nursery:
        server = await asyncio.start_server(gate.connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        gate.address = f"{host}:{port}"
        yield gate
        gate.cut()
        server.close()
        await server.wait_closed()
        await nursery.close()


async def end_jobs(endpoints: Endpoints, *numbers: int) -> None:
    """Jobs that are known by their ends alone."""
    for number in numbers:
        fields = {"outcome": "FAILED", "reason": "KILLED", "detail": "", "received_ago_s": 0.0}
        body = {"holder": f"j{number}", "block": {"function": "f"}, **fields}
        assert (await endpoints.ask("POST", "/v1/finish", body)).status == 200


async def pages_read(endpoints: Endpoints) -> int:
    """Pages of records that were asked for so far."""
    text = (await endpoints.ask("GET", "/metrics")).value
    found = re.search(r'^ssgmd_requests_total\{op="records"\} (\d+)$', text, re.MULTILINE)
    return 0 if found is None else int(found[1])


async def until_first(feed: JobsFeed, job: str) -> list[str]:
    """The names of the newest jobs, once this one is the first."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(AppError):
                names: list[str] = [record.holder for record in await feed.newest_records()]
                if names[:1] == [job]:
                    return names
            await feed.changed(0.1, 0.01)


async def test_after_a_gap_the_missed_changes_come_and_no_page_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoints, gated(endpoints.daemon.http) as gate:
        await end_jobs(endpoints, *range(JOBS))
        async with JobsFeed(endpoints.daemon.socket, gate.address) as feed:
            assert len(await until_first(feed, f"j{JOBS - 1}")) == JOBS
            assert await pages_read(endpoints) == JOBS // 200 + 2
            for number in (1000, 1001):
                gate.is_open = False
                gate.cut()
                await end_jobs(endpoints, number)
                gate.is_open = True
                await until_first(feed, f"j{number}")
            assert len(await feed.newest_records()) == JOBS + 2
        assert gate.passed == 3
        assert await pages_read(endpoints) == JOBS // 200 + 2


async def until_lost(feed: JobsFeed) -> None:
    """Ask until the feed refuses."""
    async with asyncio.timeout(60):
        while True:
            await feed.subscribe()
            await feed.changed(0.1, 0.01)


async def test_a_lost_stream_is_an_error_until_it_continues(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as endpoints,
        gated(endpoints.daemon.http) as gate,
        JobsFeed(endpoints.daemon.socket, gate.address) as feed,
    ):
        await end_jobs(endpoints, 1)
        await until_first(feed, "j1")
        gate.is_open = False
        gate.cut()
        with pytest.raises(AppError, match="event stream is lost"):
            await until_lost(feed)
        gate.is_open = True
        await end_jobs(endpoints, 2)
        assert await until_first(feed, "j2") == ["j2", "j1"]


async def test_after_a_restart_of_the_scheduler_everything_is_read_again(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with serving(tmp_path) as endpoints:
            gate = await stack.enter_async_context(gated(endpoints.daemon.http))
            way = await stack.enter_async_context(gated(endpoints.daemon.socket))
            await end_jobs(endpoints, *range(3))
            feed = await stack.enter_async_context(JobsFeed(way.address, gate.address))
            assert await until_first(feed, "j2") == ["j2", "j1", "j0"]
            gate.is_open = way.is_open = False
            gate.cut()
            way.cut()
        async with serving(tmp_path) as endpoints:
            await end_jobs(endpoints, 3)
            gate.target, way.target = endpoints.daemon.http, endpoints.daemon.socket
            gate.is_open = way.is_open = True
            assert await until_first(feed, "j3") == ["j3", "j2", "j1", "j0"]
            assert await pages_read(endpoints) == 2
            await stack.aclose()


async def test_without_the_event_stream_the_records_are_read_again_after_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchgpu.jobs.live.feed.STREAM_WITHIN_S", 0.1)
    async with serving(tmp_path) as endpoints, gated(endpoints.daemon.socket) as gate:
        await end_jobs(endpoints, *range(3))
        async with JobsFeed(gate.address, "127.0.0.1:1") as feed:
            await until_first(feed, "j2")
            await end_jobs(endpoints, 3)
            await until_first(feed, "j3")
            assert await pages_read(endpoints) == 2
            gate.cut()
            await end_jobs(endpoints, 4)
            assert len(await until_first(feed, "j4")) == 5
            assert await pages_read(endpoints) == 4

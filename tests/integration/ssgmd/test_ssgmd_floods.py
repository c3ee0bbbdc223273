"""Floods of silent, slow and unfinished connections: peers that authenticate are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key
from gpu_scheduler.daemon.endpoints.socket_endpoint import UNDER_WAY_MAX
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, serving

HOST = host_hello()
#: Of the daemon here: 128 of its own, 128 connections, 32 of them unauthenticated.
DESCRIPTORS = 256
FLOOD = 150
#: No connection is closed for silence while these tests run.
PATIENT = replace(BUDGET, handshake_s=3600.0)

Silent = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


def added(state: Path, name: str, role: KeyRole) -> str:
    return add_key(state / NAME, KeyEntry(name=name, role=role, sha256="0" * 64))


@contextlib.asynccontextmanager
async def flood(address: str, said: bytes) -> AsyncIterator[Silent]:
    """Connections that send some bytes and then nothing."""
    host, _, port = address.rpartition(":")
    found: Silent = []
    try:
        for _ in range(FLOOD):
            reader, writer = await asyncio.open_connection(host, int(port))
            found.append((reader, writer))
            with contextlib.suppress(ConnectionError):
                writer.write(said)
        yield found
    finally:
        for _, writer in found:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def closed(found: Silent, count: int) -> None:
    """Wait until so many of the oldest were closed by the daemon."""
    async with asyncio.timeout(60):
        for reader, _ in found[:count]:
            with contextlib.suppress(ConnectionError):
                await reader.read()


async def figure(endpoints: Endpoints, name: str, key: str) -> float:
    text: str = (await endpoints.ask("GET", "/metrics", key=key)).value
    line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["socket", "http"])
@pytest.mark.parametrize("said", [b"", b'{"id": 1, "op": "he', b"GET /v1/hosts HTTP/1.1\r\nX: "])
async def test_peers_authenticate_through_a_flood_of_silent_connections(
    tmp_path: Path, door: str, said: bytes
) -> None:
    keys = {role: added(tmp_path, role.value, role) for role in (KeyRole.HOST, KeyRole.OPERATOR)}
    async with (
        serving(tmp_path, budget=PATIENT, descriptors=DESCRIPTORS) as endpoints,
        endpoints.peer() as before,
    ):
        assert "ok" in await before.hello(key=keys[KeyRole.OPERATOR])
        async with flood(getattr(endpoints.daemon, door), said) as found:
            await closed(found, FLOOD - 32)
            async with endpoints.peer() as host:
                assert "ok" in await host.ask(op="hello", key=keys[KeyRole.HOST], **HOST)
                answer = await endpoints.ask("GET", "/v1/inventory", key=keys[KeyRole.OPERATOR])
                assert answer.value["hosts"][0]["state"] == "UP"
                assert "ok" in await before.ask(op="beat"), "who was known stays"
                assert "ok" in await host.ask(op="report", usage=[])
            assert (
                await figure(endpoints, "ssgmd_unauthenticated_connections", keys[KeyRole.OPERATOR])
                <= 32
            )


@pytest.mark.asyncio
async def test_few_bytes_are_buffered_for_unauthenticated_connections(tmp_path: Path) -> None:
    key = added(tmp_path, "op", KeyRole.OPERATOR)
    unfinished = b'{"id": 1, "op": "' + b"x" * 250_000
    async with (
        serving(tmp_path, budget=PATIENT) as endpoints,
        flood(endpoints.daemon.socket, unfinished) as found,
    ):
        await closed(found, 1)
        assert await figure(endpoints, "ssgmd_buffered_bytes", key) <= 4 * 2**20
        async with endpoints.peer() as peer:
            assert "ok" in await peer.hello(key=key)


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["socket", "http"])
async def test_an_unauthenticated_connection_is_closed_after_a_while(
    tmp_path: Path, door: str
) -> None:
    added(tmp_path, "op", KeyRole.OPERATOR)
    budget = replace(BUDGET, handshake_s=0.1)
    async with (
        serving(tmp_path, budget=budget) as endpoints,
        flood(getattr(endpoints.daemon, door), b"G") as found,
    ):
        await closed(found, FLOOD)


@pytest.mark.asyncio
async def test_the_body_of_an_unauthenticated_request_is_not_read(tmp_path: Path) -> None:
    added(tmp_path, "op", KeyRole.OPERATOR)
    async with serving(tmp_path, budget=PATIENT) as endpoints:
        host, _, port = endpoints.daemon.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/reserve HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head + b"{")
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n")
        assert b" 401 " in answer
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.asyncio
async def test_many_requests_at_once_are_answered_in_order_and_others_meanwhile(
    tmp_path: Path,
) -> None:
    count = 5 * UNDER_WAY_MAX
    async with (
        serving(tmp_path) as endpoints,
        endpoints.peer() as greedy,
        endpoints.peer() as modest,
    ):
        await greedy.hello(session="g")
        await modest.hello(session="m")
        greedy.writer.write(b"".join(b'{"id":%d,"op":"beat"}\n' % n for n in range(count)))
        assert "ok" in await modest.ask(op="beat")
        answers = [(await greedy.next())["id"] for _ in range(count)]
        assert answers == list(range(count))


@pytest.mark.asyncio
async def test_an_unfinished_hello_does_not_count_as_a_request_under_way(tmp_path: Path) -> None:
    """It is dropped by the next one, or by a wrong page of it, and never answered."""
    hello = json.dumps({"id": 1, "op": "hello", **HOST, "more": True}).encode()
    wrong = json.dumps({"id": 2, "op": "installed", "leases": ["x" * 300]}).encode()
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        for _ in range(UNDER_WAY_MAX):
            host.writer.write(hello + b"\n" + wrong + b"\n")
            host.writer.write(hello + b"\n")
            assert (await host.next())["id"] == 2
        assert "ok" in await host.ask(op="hello", **HOST)


@pytest.mark.asyncio
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        b"GET /v1/hosts HT",
        b"GET /v1/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /v1/reserve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /v1/reserve HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
async def test_a_client_that_breaks_off_leaves_no_trace_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, abort: bool
) -> None:
    async with serving(tmp_path) as endpoints:
        caplog.clear()
        host, _, port = endpoints.daemon.http.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        await endpoints.ask("GET", "/v1/leases")  # it has come meanwhile
        if abort:
            writer.transport.abort()
        else:
            writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await endpoints.ask("GET", "/v1/leases")
    assert [
        record for record in caplog.records if record.exc_info or record.levelname == "ERROR"
    ] == []

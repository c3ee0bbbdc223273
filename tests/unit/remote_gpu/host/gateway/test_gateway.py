"""Slots at the gateway: a connection that awaits an install takes none of a provable one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.gateway.gateway import GatewayLimits
from remote_gpu.wire.frames import HANDSHAKE, HEADER_BYTES, pack, parse_header, parse_meta
from tests.unit.remote_gpu.host.host_parts import D0, host_daemon, install


@contextlib.asynccontextmanager
async def serving(
    folder: Path, handshake_s: float = 3600.0, limits: GatewayLimits | None = None
) -> AsyncIterator[tuple[HostDaemon, str]]:
    """A gateway that waits an hour for an install; no worker is started."""
    budget = Budget(install_wait_s=3600.0, handshake_s=handshake_s)
    async with Nursery("test") as nursery:
        with host_daemon(folder, nursery, budget, {D0: 1000}, limits=limits) as (daemon, _):
            nursery.start_eternal(daemon.parts.gateway.serve(), "gateway")
            yield daemon, daemon.parts.gateway.address


def hello(lease: str) -> bytes:
    """The frame of a session's hello."""
    fields = {
        "role": "session",
        "lease": lease,
        "fence": 1,
        "host": "h",
        "session": "00" * 16,
        "nonce": "11" * 16,
        "cap_ms": 1000,
        "device": 0,
        "middleware": "",
        "port": 0,
    }
    return pack({"hello": fields})


async def ask(
    address: str, lease: str, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send the hello for a lease."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    writer.write(hello(lease))
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    header = parse_header(await reader.readexactly(HEADER_BYTES), HANDSHAKE)
    return parse_meta(await reader.readexactly(header.meta_bytes))


@pytest.mark.asyncio
async def test_a_connection_that_awaits_an_install_takes_no_slot_of_others(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, limits=GatewayLimits(per_source=2)) as (daemon, address),
        contextlib.AsyncExitStack() as stack,
    ):

        async def connection(lease: str) -> asyncio.StreamReader:
            reader, writer = await ask(address, lease)
            stack.callback(writer.close)
            return reader

        three = [asyncio.ensure_future(answer(await connection("unknown"))) for _ in range(3)]
        done, waiting = await asyncio.wait(three, return_when=asyncio.FIRST_COMPLETED)
        [refused] = [task.result()["refused"] for task in done]
        assert refused["code"] == "BUSY"
        assert "wait for an install" in refused["message"]
        daemon.install(install("known"))
        assert "challenge" in await answer(await connection("known"))
        daemon.install(install("unknown"))
        answers = [set(one) for one in await asyncio.gather(*waiting)]
        assert answers == [{"challenge"}] * 2


@pytest.mark.asyncio
async def test_a_flood_for_unknown_leases_does_not_refuse_a_tenant(tmp_path: Path) -> None:
    """The tenant's own install is a moment behind it, and the places are full of inventions."""
    limits = GatewayLimits(awaited=20, per_source=10)
    async with (
        serving(tmp_path, limits=limits) as (daemon, address),
        contextlib.AsyncExitStack() as stack,
    ):

        async def connection(lease: str, source: str) -> asyncio.StreamReader:
            reader, writer = await ask(address, lease, source)
            stack.callback(writer.close)
            return reader

        flood = [await connection(f"invented{n}", f"127.0.0.{2 + n % 3}") for n in range(40)]
        tenant = await connection("tenant", "127.0.0.9")
        flood += [await connection("invented", f"127.0.0.{2 + n % 3}") for n in range(40)]
        refused = [asyncio.ensure_future(answer(one)) for one in flood]
        for task in asyncio.as_completed(refused):
            assert (await task)["refused"]["code"] == "BUSY"
            if sum(one.done() for one in refused) >= 61:  # all but 19 and the tenant
                break
        daemon.install(install("tenant"))
        assert "challenge" in await answer(tenant)
        daemon.install(install("known"))
        assert "challenge" in await answer(await connection("known", "127.0.0.2"))
        for task in refused:
            task.cancel()
        await asyncio.wait(refused)


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", ["nothing", "half a header", "half a hello", "no proof"])
async def test_a_connection_that_stays_half_open_is_dropped(tmp_path: Path, sent: str) -> None:
    async with serving(tmp_path, handshake_s=0.05) as (daemon, address):
        daemon.install(install("known"))
        host, _, port = address.rpartition(":")
        frame = hello("known")
        length = {"nothing": 0, "half a header": 9, "half a hello": 100, "no proof": len(frame)}[
            sent
        ]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame[:length])
        if sent == "no proof":
            assert "challenge" in await answer(reader)
        assert (await answer(reader))["refused"]["message"] == "the handshake timed out"
        assert await reader.read() == b""
        writer.close()
        table = daemon.table.find("known")
        assert table is not None
        assert not table.nonce, "nothing was claimed"

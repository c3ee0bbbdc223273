"""Places at the gateway: who waits for an install takes none from who can prove itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, Door, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.daemon import HostDaemon
from remote_gpu.host.gateway import gateway as gateway_module
from remote_gpu.host.gateway.gateway import Gateway
from remote_gpu.host.lease_log import LeaseLog
from remote_gpu.host.leases import LeaseTable
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.wire.frames import HANDSHAKE, HEADER_BYTES, pack, parse_header, parse_meta

D0 = DeviceId("d0")


def install(lease: str) -> Install:
    share = Share(
        host=HostId("h"),
        device=D0,
        index=0,
        kind=DeviceKind.CPU,
        model="cpu",
        memory_mib=1,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )
    return Install(
        lease=LeaseId(lease),
        fence=1,
        secret="ab" * 32,
        state=LeaseState.RESERVED,
        shares=(share,),
        tenant="t",
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        cap_s=None,
        connect_by_s=None,
    )


@contextlib.asynccontextmanager
async def serving(
    folder: Path, handshake_s: float = 3600.0
) -> AsyncIterator[tuple[HostDaemon, str]]:
    """A gateway that waits for ever for an install; no worker is ever started."""
    budget, log = Budget(install_wait_s=3600.0, handshake_s=handshake_s), LeaseLog(folder / "log")
    async with Nursery("test") as nursery:
        pool = WorkerPool({}, folder, (), (), budget, nursery)
        daemon = HostDaemon(LeaseTable({D0: 1000}, 30.0), pool, Turns({}), log, budget, nursery)
        daemon.gateway = gateway = Gateway("h", daemon, budget, nursery)
        address = gateway.listen("127.0.0.1", 0)
        nursery.start_eternal(gateway.serve(), "gateway")
        yield daemon, address
        gateway.close()
    log.close()


async def ask(
    address: str, lease: str, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has said hello for a lease."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    hello = {
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
    writer.write(pack({"hello": hello}))
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    header = parse_header(await reader.readexactly(HEADER_BYTES), HANDSHAKE)
    return parse_meta(await reader.readexactly(header.meta_bytes))


@pytest.mark.asyncio
async def test_who_waits_for_an_install_takes_no_place_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "PER_SOURCE_MAX", 2)
    async with serving(tmp_path) as (daemon, address), contextlib.AsyncExitStack() as stack:

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
async def test_a_flood_for_unknown_leases_does_not_refuse_a_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant's own install is a moment behind it, and the places are full of inventions."""
    monkeypatch.setattr(gateway_module, "AWAITED_MAX", 20)
    monkeypatch.setattr(gateway_module, "PER_SOURCE_MAX", 10)
    async with serving(tmp_path) as (daemon, address), contextlib.AsyncExitStack() as stack:

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
@pytest.mark.parametrize("said", ["nothing", "half a header", "half a hello", "no proof"])
async def test_a_connection_that_stays_half_open_is_dropped(tmp_path: Path, said: str) -> None:
    async with serving(tmp_path, handshake_s=0.05) as (daemon, address):
        daemon.install(install("known"))
        host, _, port = address.rpartition(":")
        hello = {
            "role": "session",
            "lease": "known",
            "fence": 1,
            "host": "h",
            "session": "00" * 16,
            "nonce": "11" * 16,
            "cap_ms": 1000,
            "device": 0,
            "middleware": "",
            "port": 0,
        }
        frame = pack({"hello": hello})
        sent = {"nothing": 0, "half a header": 9, "half a hello": 100, "no proof": len(frame)}[said]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame[:sent])
        if said == "no proof":
            assert "challenge" in await answer(reader)
        assert (await answer(reader))["refused"]["message"] == "too slow"
        assert await reader.read() == b""
        writer.close()
        table = daemon.table.find("known")
        assert table is not None
        assert not table.nonce, "nothing was claimed"

"""gpud and ssgmd, the real ones: a request becomes a lease, a session, work, and a free device."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import HostId
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol import ops
from remote_gpu.client import Graph, Refused, Session, connect
from remote_gpu.client.reply import connection_of
from remote_gpu.middleware import render
from remote_gpu.worker.backends.drivers import working_kinds
from tests.integration.gpud.conftest import until
from tests.integration.gpud.system import MEMORY_MIB, SCALE, System, reserve, until_leases


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    started = System(tmp_path)
    yield started
    started.close()
    started.check_log()


def work(connection: dict[str, Any]) -> list[bytes]:
    """What a runner and its program do."""
    with Session.open(connection, 30) as session, connect(session.environment()) as device:
        result = device.op("noop", b"payload")
        session.give_back()
        return [bytes(buffer) for buffer in result.buffers]


@pytest.mark.asyncio
async def test_one_lease_through_all_parts(system: System) -> None:
    async with system.client() as scheduler:
        granted = await reserve(scheduler, "job:1", memory_mib=512)
        connection = render("builtin", granted)["connection"]
        assert await asyncio.to_thread(work, connection) == [b"payload"]
        await until_leases(scheduler)
        with pytest.raises(Refused, match="ENDED"):
            await asyncio.to_thread(work, connection)


def work_with_weights(connection: dict[str, Any], weights: bytes) -> str:
    """A program whose graph has a constant; returns its warm key."""
    graph = Graph()
    graph.op("noop", graph.constant("w", weights), out=[graph.output("y", len(weights))])
    with Session.open(connection, 30) as session, connect(session.environment()) as device:
        device.run(graph)
    (key,) = graph.spec.contents
    return key


async def sent_on(scheduler: SchedulerClient, host: str, other: str) -> str:
    """The warm key of a content that tenant `t` sent to one of two hosts."""
    await scheduler.ask(ops.Drain(host=HostId(other)))
    granted = await reserve(scheduler, f"sent-{host}:1", memory_mib=64, tenant="t")
    assert granted.lease.shares[0].host == host
    connection = render("builtin", granted)["connection"]
    key = await asyncio.to_thread(work_with_weights, connection, host.encode())
    await until_leases(scheduler)
    await scheduler.ask(ops.Undrain(host=HostId(other)))
    return key


async def goes_where_its_contents_are(scheduler: SchedulerClient) -> None:
    """A tenant's next job, with the warm key of what an earlier one sent."""
    keys = {
        "gpu-a": await sent_on(scheduler, "gpu-a", "gpu-b"),
        "gpu-b": await sent_on(scheduler, "gpu-b", "gpu-a"),
    }
    numbers = itertools.count(1)

    async def chosen(host: str) -> bool:
        wanted = {"memory_mib": 1, "warm_key": keys[host], "tenant": "t"}
        granted = await reserve(scheduler, f"warm:{next(numbers)}", **wanted)
        await scheduler.release(granted.lease.id, EndReason.RELEASED)
        await until_leases(scheduler)
        return granted.lease.shares[0].host == host

    async with asyncio.timeout(60):  # until both hosts have reported it
        for pause_s in itertools.repeat(0.05):
            if all([await chosen(host) for host in sorted(keys)]):
                break
            await asyncio.sleep(pause_s)
    assert all([await chosen(host) for _ in range(3) for host in sorted(keys)])
    device = (await scheduler.inventory()).hosts[0].devices[0].device
    assert ("graph" in device.operations) == ("cpu" in working_kinds())
    assert ("numpy" in device.libraries) == ("sgemm" in device.operations)


@pytest.mark.asyncio
async def test_two_hosts_serve_one_session_and_the_warm_one_is_chosen(system: System) -> None:
    await asyncio.to_thread(system.add_host, "gpu-b")

    def work_on_both(connection: dict[str, Any]) -> list[bytes]:
        with Session.open(connection, 30) as session:
            with connect(session.environment()) as devices:
                assert len(devices) == 2
                found = [bytes(d.op("noop", bytes([n])).buffers[0]) for n, d in enumerate(devices)]
            session.give_back()
            assert session.alive
            return found

    async with system.client() as scheduler:
        granted = await reserve(scheduler, "pair:1", memory_mib=MEMORY_MIB, count=2)
        assert {share.host for share in granted.lease.shares} == {"gpu-a", "gpu-b"}
        connection = render("builtin", granted)["connection"]
        assert await asyncio.to_thread(work_on_both, connection) == [b"\0", b"\1"]
        await until_leases(scheduler)
        for name in system.hosts:
            log = system.folder / name / "leases.jsonl"
            # the return is reported at once, the cut when no process is left
            await asyncio.to_thread(until, functools.partial(says_cut, log))
        await goes_where_its_contents_are(scheduler)


def says_cut(log: Path) -> bool:
    return '"event":"cut"' in log.read_text()


def classic(system: System, *words: str) -> str:
    host, _, port = system.address.rpartition(":")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler.client", "-S", host, "-P", port, *words],
        env={**os.environ, "ORCHGPU_TIME_SCALE": str(SCALE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_classic_lease_has_a_port_of_its_own(system: System) -> None:
    """The classic form: one line with the address, no proof, a port that ends with the lease."""
    gateway = system.ready("remote_gpu.host")["gateway"].rpartition(":")[2]
    length = ("-lease-length", "1h", "-m", "64")
    mine = classic(system, "-alloc", *length)
    other = classic(system, "-alloc", *length)
    elsewhere = classic(system, "-alloc", *length, "-sources", "192.0.2.0/24")
    ports = [reply.split("@")[1].partition(":")[0] for reply in (mine, other, elsewhere)]
    assert len({gateway, *ports}) == 4, (gateway, ports)
    with (
        Session.open(connection_of(mine), 60.0) as session,
        connect(session.environment()) as lane,
    ):
        lane.op("noop")
    with pytest.raises(Refused, match="another lease"):  # a port is one lease's
        Session.open(connection_of(mine.replace(f"@{ports[0]}", f"@{ports[1]}")), 60.0)
    with pytest.raises(Refused):  # not from that network
        Session.open(connection_of(elsewhere), 60.0)
    lease = mine.split(";")[1].removeprefix("JOB=")
    assert classic(system, "-dealloc", "-j", lease) == "SSGM_ERROR=0;\n"

    def is_closed() -> bool:
        with socket.socket() as stream:
            return stream.connect_ex(("127.0.0.1", int(ports[0]))) != 0

    until(is_closed)

"""The batch processes of a host: who shares one, what it may have, and how leases leave it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from corekit.aio.supervise import Nursery
from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import Batch, DeviceKind, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.sharing.batches import Batches, joins, own_shares
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.workers.worker import Worker
from remote_gpu.worker import control
from remote_gpu.worker.control import WorkerStart
from tests.unit.remote_gpu.host.host_parts import install

BATCH = Batch(joins=True, wait_ms=7.0, size_max=8)


def lease(number: int, tenant: str = "t", workload: str | None = "w", pct: int = 0) -> Install:
    made = install(f"l{number}", number, memory_mib=100)
    share = replace(made.shares[0], compute_guarantee_pct=pct)
    return replace(made, shares=(share,), tenant=tenant, workload=workload, batch=BATCH)


class Process:
    """A sleeping process as a worker, whose end of the socket the test has."""

    def __init__(self, start: WorkerStart | None = None) -> None:
        self.start = start
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.worker = Worker(self.process.pid, os.pidfd_open(self.process.pid), ours, 10.0)

    async def next(self, key: str) -> tuple[Mapping[str, object], socket.socket | None]:
        """The next packet with this key, and the socket that came with it."""
        loop = asyncio.get_running_loop()
        while True:
            readable = loop.create_future()
            loop.add_reader(self.socket, readable.set_result, None)
            await asyncio.wait_for(readable, 30.0)
            loop.remove_reader(self.socket)
            received = control.receive(self.socket)
            assert received is not None
            stream = None if received[1] is None else socket.socket(fileno=received[1])
            if key in received[0]:
                return received[0], stream
            assert stream is None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.socket.close()


class World:
    """Batches whose processes the test plays."""

    def __init__(self, nursery: Nursery) -> None:
        self.turns = Turns({})
        self.started: list[Process] = []
        self.workers: list[Process] = []
        self.faults: asyncio.Queue[tuple[LeaseId, DeviceId, str]] = asyncio.Queue()
        self.batches = Batches(self.take, self.start_of, self.turns, nursery, self.failed)

    def failed(self, lease: LeaseId, device: DeviceId, reason: str) -> None:
        self.faults.put_nowait((lease, device, reason))

    async def take(self, start: WorkerStart) -> Worker:
        self.started.append(Process(start))
        return self.started[-1].worker

    def start_of(self, install: Install, shares: tuple[Share, ...]) -> WorkerStart:
        memory_bytes = sum(share.memory_mib for share in shares) << 20
        return WorkerStart(
            lease=install.lease, tenant=install.tenant, memory_bytes=memory_bytes, cap_s=1
        )

    async def connected(self, install: Install) -> Process:
        """A lease's worker with a connection; both ends are closed again."""
        worker = Process()
        self.workers.append(worker)
        self.turns.join(install.lease, install.shares, worker.worker)
        self.batches.requested(install, worker.worker, 0)
        meta, end = await worker.next("batch")
        assert end is not None
        end.close()
        batch = next(b for b in self.started if b.start and b.start.tenant == install.tenant)
        meta, lane = await batch.next("lane")
        assert lane is not None
        lane.close()
        described = meta["lane"]
        assert isinstance(described, dict)
        assert described["lease"] == install.lease
        control.send(batch.socket, {"lane_taken": {}})
        return batch

    async def leave(self, lease: LeaseId) -> list[Worker]:
        """The processes that end with the lease."""
        killed: list[Worker] = []
        await self.batches.leave(lease, killed.append)
        return killed


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Nursery("test") as nursery:
        made = World(nursery)
        try:
            yield made
        finally:
            for one in (*made.started, *made.workers):
                one.close()
            await asyncio.gather(*(one.worker.gone for one in (*made.started, *made.workers)))
            made.turns.close()


def test_a_lease_joins_only_with_a_workload() -> None:
    assert joins(lease(1))
    assert not joins(lease(1, workload=None))
    assert not joins(replace(lease(1), batch=None))
    assert not joins(replace(lease(1), batch=Batch()))
    assert own_shares(lease(1))[0].memory_mib == 50, "the other half is the batch process's"
    assert own_shares(replace(lease(1), batch=None))[0].memory_mib == 100


@pytest.mark.asyncio
async def test_leases_of_a_tenant_share_a_process_and_end_it_with_the_last() -> None:
    async with world() as w:
        first, second = lease(1, pct=25), lease(2, pct=30)
        batch = await w.connected(first)
        assert await w.connected(second) is batch
        assert len(w.started) == 1
        assert batch.start is not None
        assert batch.start.memory_bytes == 50 << 20
        assert (batch.start.batch_wait_ms, batch.start.batch_items_max) == (7, 8)
        leaving = asyncio.create_task(w.leave(first.lease))
        meta, _ = await batch.next("leave")
        assert meta == {"leave": first.lease}
        control.send(batch.socket, {"left": first.lease})
        assert await leaving == []
        assert await w.leave(second.lease) == [batch.worker]


@pytest.mark.asyncio
async def test_leases_that_leave_at_the_same_time_end_it_once() -> None:
    async with world() as w:
        first, second = lease(1), lease(2)
        batch = await w.connected(first)
        await w.connected(second)
        leaving = asyncio.create_task(w.leave(first.lease))
        await batch.next("leave")
        assert await w.leave(second.lease) == [batch.worker]
        control.send(batch.socket, {"left": first.lease})
        assert await leaving in ([], [batch.worker])


@pytest.mark.asyncio
async def test_a_run_that_does_not_end_is_killed_and_repeated_elsewhere() -> None:
    """The batch process does not answer, as with a run under way: it is killed."""
    async with world() as w:
        first, second = lease(1), lease(2)
        batch = await w.connected(first)
        await w.connected(second)
        assert await w.leave(first.lease) == [batch.worker]
        batch.socket.close()
        await asyncio.wait_for(batch.worker.gone, 30.0)
        w.batches.requested(second, w.workers[1].worker, 0)
        _, end = await w.workers[1].next("batch")
        assert end is not None
        end.close()
        assert len(w.started) == 2, "a new one for the lease that is left"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "other",
    [
        lease(2, tenant="u"),
        lease(2, workload="v"),
        replace(lease(2), batch=Batch(joins=True, size_max=2)),
    ],
    ids=["tenant", "workload", "rules"],
)
async def test_others_never_share_a_process(other: Install) -> None:
    async with world() as w:
        await w.connected(lease(1))
        worker = Process()
        w.workers.append(worker)
        w.batches.requested(other, worker.worker, 0)
        _, end = await worker.next("batch")
        assert end is not None
        end.close()
        assert len(w.started) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("index", [1, "0", None, True])
async def test_another_device_is_refused(index: object) -> None:
    async with world() as w:
        worker = Process()
        w.workers.append(worker)
        with pytest.raises(ValueError, match="batch process"):
            w.batches.requested(lease(1), worker.worker, index)


@pytest.mark.asyncio
async def test_leases_are_charged_at_most_what_the_process_had() -> None:
    """A run lasts on while its process is stopped, and that time is not the leases'."""
    async with world() as w:
        only = lease(1, pct=50)
        batch = await w.connected(only)
        table = w.turns._devices[0].slices
        control.send(batch.socket, {"ask": [0, 1]})
        await batch.next("turn")
        control.send(batch.socket, {"done": [0, 1]})
        control.send(batch.socket, {"used": [0, "unknown", 5.0]})
        control.send(batch.socket, {"used": [0, only.lease, 1000.0]})
        control.send(batch.socket, {"ask": [0, 2]})
        await batch.next("turn")  # so the packets before it are handled
        held_s = table._leases[LeaseId("batch-1")].used_s
        charged_s = table._leases[only.lease].virtual_s * 50
        assert 0 < charged_s < 100
        assert held_s < 100


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "packet",
    [{"used": [0, "l1", -1.0]}, {"used": [0, "l1", "1"]}, {"used": [0]}, {"used": 1}],
    ids=str,
)
async def test_a_process_that_breaks_the_protocol_is_killed(packet: dict[str, object]) -> None:
    async with world() as w:
        batch = await w.connected(lease(1))
        control.send(batch.socket, packet)
        await asyncio.to_thread(batch.process.wait, 30.0)


@pytest.mark.asyncio
async def test_a_fault_of_the_card_is_one_of_every_lease_in_the_process() -> None:
    async with world() as w:
        leases = [on_card(lease(1)), on_card(lease(2))]
        batch = await w.connected(leases[0])
        await w.connected(leases[1])
        control.send(batch.socket, {"fault": [0, "it hangs"]})
        async with asyncio.timeout(30):
            found = [await w.faults.get() for _ in leases]
        device = leases[0].shares[0].device
        assert found == [(one.lease, device, "it hangs") for one in leases]


def on_card(install: Install) -> Install:
    share = replace(install.shares[0], kind=DeviceKind.CUDA, model="NVIDIA L4")
    return replace(install, shares=(share,))

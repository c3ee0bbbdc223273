"""Workers that become warm while the next lease of their workload already has its first lane."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStepKind
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.host.warm import workers
from remote_gpu.host.warm.table import WarmWorker
from remote_gpu.host.warm.workers import WarmWorkers
from remote_gpu.host.workers.endings import Endings
from remote_gpu.host.workers.worker import Worker
from remote_gpu.worker import control
from tests.unit.remote_gpu.host.host_parts import Card, idle_worker, install

pytestmark = pytest.mark.asyncio

D0, D1 = DeviceId("d0"), DeviceId("d1")
LIMIT_S = 60.0


def leased(lease: str, device: DeviceId) -> Install:
    """A lease of the same tenant and workload as all others here."""
    plain = install(lease, memory_mib=100)
    shares = (replace(plain.shares[0], device=device),)
    return replace(plain, shares=shares, workload="w")


@dataclass
class Ending:
    """A worker whose lease ends, and the end of its socket, on which the test answers for it."""

    worker: Worker
    stream: socket.socket
    kept: asyncio.Future[str | None]

    async def answer(self) -> None:
        """Report that it keeps its models; returns when it is warm."""
        control.send(self.stream, {"released": {"memory_bytes": 1 << 20}})
        assert await self.kept


USED = (("onnx", "{}"),)


@dataclass
class Loading:
    """A worker that loads, and the end of its socket, on which the test answers for it."""

    worker: Worker
    stream: socket.socket

    def answer(self) -> None:
        """Report that it has loaded."""
        control.send(self.stream, {"loaded": 1.0})
        used = [[operation, {}] for operation, _ in USED]
        control.send(self.stream, {"released": {"memory_bytes": 1 << 20, "used": used}})


@dataclass
class Parts:
    """The warm workers of a host with two devices, whose daemon is the test."""

    table: LeaseTable
    nursery: Nursery
    folder: Path
    stack: contextlib.AsyncExitStack
    reports: int = 0
    leases: Leases = field(init=False)
    warm: WarmWorkers = field(init=False)

    def __post_init__(self) -> None:
        log, budget = LeaseLog(self.folder / "leases.jsonl"), Budget()
        self.stack.callback(log.close)
        self.leases = leases = Leases(self.table, log)
        endings = Endings(leases, Card(), budget)
        self.warm = WarmWorkers(leases, endings, self.changed, budget, self.nursery)
        leases.on(LeaseStepKind.PLACED, self.warm.placed)

    def changed(self) -> None:
        self.reports += 1

    async def ends(self, lease: str, device: DeviceId) -> Ending:
        """Begin to keep the worker of a lease, a real process that does nothing."""
        made = idle_worker(self.nursery, LIMIT_S)
        worker, theirs = await self.stack.enter_async_context(made)
        control.send(theirs, {"loaded": 1.0})
        worker.drain()
        kept = self.nursery.start(self.warm.keep(leased(lease, device), worker), "keep")
        await asyncio.sleep(0)
        return Ending(worker, theirs, kept)

    async def loads(
        self, lease: str, loading_s: float = 5.0, refusal: AppError | None = None
    ) -> Loading:
        """A lease of D0 is installed ahead of another one that runs, and a worker loads for it.

        `refusal`: there is no process for it.
        """
        known = WarmWorker(
            id="w",
            tenant="t",
            workload="w",
            memory_mib={D0: 50},
            loading_s=loading_s,
            idle_since_s=0.0,
            models=("m",),
            used=USED,
        )
        self.table.loads.learned.kept(known)
        worker, theirs = await self.stack.enter_async_context(idle_worker(self.nursery, LIMIT_S))
        self.stack.enter_context(closed_at_the_end_of(worker.pid, theirs))

        async def take() -> Worker:
            if refusal is not None:
                raise refusal
            return worker

        ahead = replace(leased(lease, D0), ahead=True)
        [step] = self.table.install(ahead, 0.0)
        assert step.kind is LeaseStepKind.LOAD
        self.warm.load(step, ahead, take)
        await asyncio.sleep(0)
        return Loading(worker, theirs)

    async def begins(self, lease: str, device: DeviceId) -> asyncio.Task[Worker | None]:
        """The first lane of the next lease: its worker, None if it is a new one."""
        placed = leased(lease, device)
        self.table.install(placed, 0.0)
        start = control.WorkerStart(lease=lease, tenant="t", memory_bytes=1 << 20, cap_s=LIMIT_S)
        found = self.nursery.start(self.warm.hand_over(LeaseId(lease), start), "hand over")
        await asyncio.sleep(0)
        return found


@contextlib.contextmanager
def closed_at_the_end_of(pid: int, stream: socket.socket) -> Iterator[None]:
    """The socket of a process closes with it, although the test holds its end."""
    loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(pid)
    loop.add_reader(pidfd, stream.close)
    try:
        yield
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


@contextlib.asynccontextmanager
async def parts(folder: Path) -> AsyncIterator[Parts]:
    table = LeaseTable({D0: 1000, D1: 1000}, LIMIT_S)
    async with (
        asyncio.timeout(LIMIT_S),
        Nursery("test") as nursery,
        contextlib.AsyncExitStack() as stack,
    ):
        yield Parts(table, nursery, folder, stack)


async def test_a_lease_does_not_take_the_end_on_another_device_for_its_own(tmp_path: Path) -> None:
    async with parts(tmp_path) as host:
        here, elsewhere = await host.ends("l1", D0), await host.ends("l2", D1)
        found = await host.begins("l3", D0)
        await elsewhere.answer()
        await asyncio.sleep(0)
        assert not found.done(), "the worker on its device is about to become warm"
        await here.answer()
        assert await found is here.worker


async def test_of_two_leases_that_wait_for_two_workers_each_gets_one(tmp_path: Path) -> None:
    async with parts(tmp_path) as host:
        first, second = await host.ends("l1", D0), await host.ends("l2", D0)
        one, other = await host.begins("l3", D0), await host.begins("l4", D0)
        await first.answer()
        assert await one is first.worker
        await second.answer()
        assert await other is second.worker


@pytest.mark.parametrize("waits_before", [False, True])
async def test_a_worker_whose_call_runs_is_in_the_way_of_a_waiting_lease(
    tmp_path: Path, waits_before: bool
) -> None:
    async with parts(tmp_path) as host:
        whole = [replace(install(name, memory_mib=1000), workload="w") for name in ("l1", "l2")]
        host.table.install(whole[0], 0.0)
        host.table.open("l1", "n", LIMIT_S, 0.0)
        host.table.give_back(LeaseId("l1"))

        def waits() -> None:
            steps = host.table.install(whole[1], 0.0)
            assert LeaseStepKind.PLACED not in [step.kind for step in steps], (
                "there is no room for it"
            )
            host.warm.room_needed(whole[1])

        if waits_before:
            waits()
        ending = await host.ends("l1", D0)
        control.send(ending.stream, {"busy": {}})
        ending.worker.drain()
        if not waits_before:
            await asyncio.sleep(0)
            assert not ending.kept.done(), "nobody waits for its room"
            host.warm.room_needed(leased("l3", D1))
            waits()
        assert await ending.kept == ""


async def test_a_lease_without_a_worker_to_come_starts_at_once(tmp_path: Path) -> None:
    async with parts(tmp_path) as host:
        late = await host.ends("l1", D1)
        found = await host.begins("l2", D0)
        assert await found is None, "the one that ends is of another device"
        await late.answer()


async def test_a_lease_waits_for_its_load_after_the_crash_of_another_worker(tmp_path: Path) -> None:
    """The other one was idle when the lease was placed, and died after its first lane."""
    async with parts(tmp_path) as host:
        load = await host.loads("l2")
        other = await host.ends("l1", D0)
        await other.answer()
        host.leases.apply(host.table.install(leased("l2", D0), 0.0))
        start = control.WorkerStart(lease="l2", tenant="t", memory_bytes=1 << 20, cap_s=LIMIT_S)
        assert await host.warm.hand_over(LeaseId("l2"), start) is other.worker
        again = host.nursery.start(host.warm.hand_over(LeaseId("l2"), start), "hand over")
        await asyncio.sleep(0)
        load.answer()
        assert await again is load.worker


def begin_of(lease: str) -> control.WorkerStart:
    return control.WorkerStart(lease=lease, tenant="t", memory_bytes=1 << 20, cap_s=LIMIT_S)


async def test_a_load_that_takes_longer_than_its_client_waits_is_given_up(tmp_path: Path) -> None:
    """Its first lane would be refused: a new worker loads within the call of the client."""
    budget = Budget()
    async with parts(tmp_path) as host, asyncio.timeout(budget.worker_cut_s):
        load = await host.loads("l2", loading_s=budget.gateway_answer_s)
        host.leases.apply(host.table.install(leased("l2", D0), 0.0))
        assert await host.warm.hand_over(LeaseId("l2"), begin_of("l2")) is None
        assert load.worker.gone.done()
        assert host.warm.loads.ends == {"failed": 1}


async def no_process(host: Parts) -> None:
    await host.loads("l2", refusal=AppError(ErrorCode.UNAVAILABLE, "no process"))


async def died(host: Parts) -> None:
    (await host.loads("l2")).worker.kill()


async def loaded_nothing(host: Parts) -> None:
    load = await host.loads("l2")
    control.send(load.stream, {"released": {"memory_bytes": 0}})


async def needed(host: Parts) -> None:
    """Another lease needs the memory."""
    await host.loads("l2")
    host.warm.loads.stop("ahead-1", "evicted")


async def done(host: Parts) -> None:
    (await host.loads("l2")).answer()


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        (no_process, "failed"),
        (died, "failed"),
        (loaded_nothing, "failed"),
        (needed, "stopped"),
        (done, "loaded"),
    ],
)
async def test_loads_are_counted_by_their_end(
    cause: Callable[[Parts], Awaitable[None]], end: str, tmp_path: Path
) -> None:
    async with parts(tmp_path) as host:
        await cause(host)
        await host.leases.until(lambda: bool(host.warm.loads.ends), LIMIT_S)
        assert host.warm.loads.ends == {end: 1}


async def test_the_alarm_of_a_load_counts_from_its_end(tmp_path: Path) -> None:
    """A worker that loads for long is not idle for as long: it would end just when it is used."""
    async with parts(tmp_path) as host:
        load = await host.loads("l2", loading_s=5.0)
        load.stream.settimeout(LIMIT_S)
        received = [control.receive(load.stream) for _ in range(2)]
        words = [one[0] for one in received if one is not None]
        idle_s = host.table.warm.limits.idle_s_max + Budget().worker_cut_s
        limit_s = 4 * 5.0 + Budget().worker_take_s
        assert words == [words[0], {"release": {"cap_s": idle_s + limit_s}}]
        load.answer()
        await host.leases.until(lambda: bool(host.warm.loads.ends), LIMIT_S)
        assert control.receive(load.stream) == ({"cap_s": idle_s}, None)


async def test_the_worker_of_a_floor_does_not_end_itself(tmp_path: Path) -> None:
    async with parts(tmp_path) as host:
        ending = await host.ends("l1", D0)
        await ending.answer()
        ending.stream.settimeout(LIMIT_S)
        while (received := control.receive(ending.stream)) and "release" not in received[0]:
            pass
        host.table.warm.limits = replace(host.table.warm.limits, idle_s_max=0.0)
        share = leased("l1", D0).shares[0]
        host.warm.keep_warm([HostFloor(tenant="t", workload="w", share=share, workers_min=1)])
        assert control.receive(ending.stream) == ({"cap_s": Budget().worker_cut_s}, None)
        assert host.table.warm.idle(), "nor do the limits end it"
        host.warm.keep_warm([])
        assert not host.table.warm.idle()


async def test_no_floor_loads_while_the_machine_lacks_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parts(tmp_path) as host:
        monkeypatch.setattr(workers, "_missing_mib", lambda: 1)
        share = leased("l1", D0).shares[0]
        loads = (("onnx", "{}"),)
        host.warm.keep_warm(
            [HostFloor(tenant="t", workload="w", share=share, workers_min=1, loads=loads)]
        )
        assert not len(host.table.warm)
        monkeypatch.setattr(workers, "_missing_mib", lambda: 0)
        host.warm.check()
        assert host.table.warm.loads_on(D0) == 1

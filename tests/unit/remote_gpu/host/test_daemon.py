"""The end of a lease that is not clean: its devices are SUSPECT until nothing of it is left."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import (
    DeviceKind,
    EndReason,
    Health,
    Symptom,
)
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.warm.table import WarmWorker
from remote_gpu.worker import control
from tests.unit.remote_gpu.host.host_parts import D0, Card, host_daemon, idle_worker, install


def leased(number: int, kind: DeviceKind = DeviceKind.CPU) -> Install:
    return install(f"l{number}", number, kind, memory_mib=600)


@pytest.mark.asyncio
async def test_a_worker_that_cannot_be_killed(tmp_path: Path) -> None:
    """Nothing here can make a process unkillable: the daemon finds one that it has not killed."""
    async with Nursery("test") as nursery, idle_worker() as (worker, theirs):
        with host_daemon(tmp_path, nursery, Budget(), {D0: 1000}) as (daemon, reports):
            daemon.install(leased(1))
            daemon.install(leased(2))  # waits for the other
            assert set(daemon.leased()) == {D0}
            daemon.table.end(LeaseId("l1"), EndReason.REVOKED)
            ended = daemon.parts.endings.of_lease(LeaseId("l1"))
            stuck = nursery.start(daemon.parts.endings.stuck(ended, worker), "stuck")
            await daemon.leases.until(lambda: bool(reports.cuts), 30.0)
            assert reports.sessions == [("l2", EndReason.DEVICE_BAD)]
            assert reports.cuts == ["l2"], "the stuck one is not cut"
            fault = daemon.faults()[D0]
            assert (fault.health, fault.symptom) == (Health.SUSPECT, Symptom.HUNG)
            assert str(worker.pid) in fault.detail
            worker.kill()
            theirs.close()
            await stuck
            assert daemon.faults() == {}


class Killed:
    """A killed process that ends when a test lets it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@pytest.mark.asyncio
async def test_a_fault_lasts_until_the_last_stuck_process_has_ended(tmp_path: Path) -> None:
    lease, processes = LeaseId("l1"), [Killed(1), Killed(2)]
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 1000}) as (daemon, _):
            daemon.install(leased(1))
            daemon.table.end(lease, EndReason.REVOKED)
            ended = daemon.parts.endings.of_lease(lease)
            stuck = [
                nursery.start(daemon.parts.endings.stuck(ended, one), "stuck") for one in processes
            ]
            await asyncio.sleep(0)
            for process, task in zip(processes, stuck, strict=True):
                assert daemon.faults()[D0].symptom is Symptom.HUNG
                process.gone.set_result(None)
                await task
            assert daemon.faults() == {}


@pytest.mark.asyncio
async def test_a_worker_cannot_make_its_host_hold_descriptors() -> None:
    reading, writing = os.pipe()
    async with idle_worker() as (_, theirs):
        with os.fdopen(reading, "rb") as end:
            control.send(theirs, {"lane_ended": {}}, writing)
            os.close(writing)
            await asyncio.to_thread(end.read)  # ends when no process has the other end


@pytest.mark.asyncio
async def test_a_lane_that_is_taken_while_its_task_is_cancelled() -> None:
    """The cancellation counts: a task in an endless loop would otherwise never end."""
    client, stream = socket.socketpair()
    async with idle_worker() as (worker, theirs):
        with client, stream:
            lane = asyncio.create_task(worker.lane(stream, 0, "cpu", b""))
            await asyncio.sleep(0)
            control.send(theirs, {"lane_taken": {}})
            worker.drain()
            await asyncio.sleep(0)  # the task is about to continue
            lane.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lane


@pytest.mark.asyncio
async def test_a_worker_is_gone_when_nothing_that_it_started_is_left() -> None:
    client, stream = socket.socketpair()
    async with idle_worker() as (worker, theirs):  # a program of it has its socket
        worker.kill()
        assert not (await asyncio.wait({worker.gone}, timeout=0.05))[0]
        with client, stream:
            lane = asyncio.create_task(worker.lane(stream, 0, "cpu", b""))
            assert not (await asyncio.wait({lane}, timeout=0.01))[0]
            theirs.close()
            assert not await lane, "nothing of it was served"


async def seen(ready: Callable[[], bool]) -> None:
    """Poll: not everything that changes wakes who waits."""
    async with asyncio.timeout(60):
        for pause_s in itertools.repeat(0.01):
            if ready():
                return
            await asyncio.sleep(pause_s)


@pytest.mark.asyncio
async def test_a_card_is_lent_again_when_its_memory_is_back(tmp_path: Path) -> None:
    budget, card = replace(Budget(), worker_cut_s=0.01), Card()
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, budget, {D0: 2000}, card) as (daemon, reports):
            for number in range(1, 5):
                daemon.install(leased(number, DeviceKind.CUDA))  # three fit, the fourth waits
            card.used_mib_now = (
                2 * (600 + 512) + 512
            )  # more than two leases with their processes need
            daemon.end(LeaseId("l1"), 1, EndReason.REVOKED)
            await seen(lambda: bool(daemon.faults()))
            fault = daemon.faults()[D0]
            assert (fault.health, fault.symptom) == (Health.SUSPECT, Symptom.MEMORY_HELD)
            assert fault.detail == "2736 MiB in use after the end of lease l1"
            assert (reports.sessions, reports.cuts) == ([], []), (
                "what is not clean is not cut; l4 waits"
            )
            card.used_mib_now = 2 * (600 + 512)
            await seen(lambda: "l1" in reports.cuts)
            assert daemon.faults() == {}
            entry = daemon.table.find("l4")
            assert entry is not None
            assert entry.occupying
            card.used_mib_now = None  # without a figure it is not clean
            daemon.end(LeaseId("l2"), 2, EndReason.REVOKED)
            await seen(lambda: bool(daemon.faults()))
            assert daemon.faults()[D0].detail == (
                "its driver reports no memory in use after the end of lease l2"
            )
            card.used_mib_now = 0
            await seen(lambda: "l2" in reports.cuts)


@pytest.mark.asyncio
async def test_a_full_state_begins_a_load_and_evicts_it_for_a_later_lease(tmp_path: Path) -> None:
    """After an outage: no lease ends by it, and the memory of the load is free."""
    runs, ahead, booked = (
        replace(install(f"l{number}", number, memory_mib=400), workload=workload)
        for number, workload in ((1, "v"), (2, "w"), (3, "u"))
    )
    async with Nursery("test") as nursery:
        with host_daemon(tmp_path, nursery, Budget(), {D0: 1000}) as (daemon, reports):
            daemon.table.loads.learned.kept(
                WarmWorker(
                    id="w1",
                    tenant="t",
                    workload="w",
                    memory_mib={D0: 300},
                    loading_s=2.0,
                    idle_since_s=0.0,
                    models=("m",),
                    used=(("onnx", "{}"),),
                )
            )
            daemon.install(runs)
            daemon.full_state((runs, replace(ahead, ahead=True), booked), 1)
            assert reports.sessions == []
            assert set(daemon.leases.installed()) == {"l1", "l2", "l3"}
            assert daemon.table.used_mib(D0) == 800, "the later lease has its shares"
            assert daemon.table.warm.memory_on(D0) == []

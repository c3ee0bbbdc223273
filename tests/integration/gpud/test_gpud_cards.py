"""Faults of cards, from the driver to the scheduler: gpud, ssgmd and workers over stand-ins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import Device, DeviceKind, GrantedLease, Health, Symptom
from gpu_scheduler.protocol.answers import LeasePush
from remote_gpu.client import OpFailed, Refused, Session, connect
from remote_gpu.host.devices.card_checks import CardChecks
from remote_gpu.middleware import render
from remote_gpu.wire.errors import OpCode
from tests.integration.gpud.cards import CONTEXT_MIB, Cards, compile_stand_ins, needs_stand_ins
from tests.integration.gpud.conftest import until
from tests.integration.gpud.system import SCALE, System, reserve, until_leases

pytestmark = [*needs_stand_ins, pytest.mark.asyncio]
ONES, FOURS = b"\0\0\x80\x3f" * 16, b"\0\0\x80\x40" * 16
#: In use on an idle card, and by cuBLAS's work area of a worker.
IDLE_MIB, AREA_MIB = 3, 32


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    libraries = tmp_path_factory.mktemp("libraries")
    compile_stand_ins(libraries)
    made = Cards(libraries)
    yield made
    made.close()


@pytest.fixture(scope="module")
def system(cards: Cards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    before = dict(os.environ)
    os.environ.update(cards.variables)
    options = ("--nvml", "--operation", "sgemm", "--card-call-s", "1")
    try:
        started = System(tmp_path_factory.mktemp("system"), *options)
    finally:
        os.environ.clear()
        os.environ.update(before)
    yield started
    started.close()


class Job:
    """A lease on a card and its session, as a function has them."""

    def __init__(self, granted: GrantedLease) -> None:
        self.granted = granted
        self.device = granted.lease.shares[0].device
        self.session = Session.open(render("builtin", granted)["connection"], 60)
        self.devices = connect(self.session.environment())

    def multiply(self) -> bytes:
        """4×4 ones, by cuBLAS."""
        result = self.devices.op("sgemm", ONES, ONES, m=4, n=4, k=4)
        assert result.implementation == "cublas"
        return bytes(result.buffers[0])

    def close(self) -> None:
        self.devices.close()
        self.session.close()


async def job(scheduler: SchedulerClient, name: str, **fields: Any) -> Job:
    fields = {"memory_mib": 1024, "kinds": (DeviceKind.CUDA,), **fields}
    return await asyncio.to_thread(Job, await reserve(scheduler, name, **fields))


async def until_health(scheduler: SchedulerClient, device: str, *wanted: Health) -> str:
    """Poll until the device has one of these; returns the detail."""
    async with asyncio.timeout(60):
        while True:
            hosts = (await scheduler.inventory()).hosts
            [found] = [d.device for h in hosts for d in h.devices if d.device.id == device]
            if found.health in wanted:
                return f"{found.symptoms} {found.detail}"
            await asyncio.sleep(0.02)


class Pushes:
    """The ends of leases, as the scheduler pushes them to their requester."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[str]] = {}

    def take(self, push: PushWord) -> None:
        if isinstance(push, LeasePush) and push.reason is not None:
            end = self._of(push.attempt)
            if not end.done():
                end.set_result(f"{push.reason.value}: {push.detail}")

    async def of(self, attempt: str) -> str:
        return await asyncio.wait_for(self._of(attempt), 60)

    def _of(self, attempt: str) -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        return self._ends.setdefault(attempt, loop.create_future())


@pytest_asyncio.fixture(loop_scope="function")
async def scheduler(system: System, pushes: Pushes) -> AsyncIterator[SchedulerClient]:
    budget = Budget().scaled(SCALE)
    async with SchedulerClient(system.address, budget=budget, on_push=pushes.take) as client:
        yield client
        await until_leases(client)


@pytest.fixture
def pushes() -> Pushes:
    return Pushes()


async def until_used_mib(scheduler: SchedulerClient, device: str, mib: int) -> None:
    """Poll until the driver reports this memory in use."""
    async with asyncio.timeout(60):
        while True:
            hosts = (await scheduler.inventory()).hosts
            found = [d.usage for h in hosts for d in h.devices if d.device.id == device]
            if found[0] is not None and found[0].memory_used_mib == mib:
                return
            await asyncio.sleep(0.02)


async def test_a_lease_uses_its_own_cards_and_leaves_them_clean(scheduler: SchedulerClient) -> None:
    """Each card of a lease computes for itself, and has the memory of a context in use."""
    both = await job(scheduler, "both:1", count=2)
    for device in both.devices:
        result = await asyncio.to_thread(device.op, "sgemm", ONES, ONES, m=4, n=4, k=4)
        assert bytes(result.buffers[0]) == FOURS
        assert result.implementation == "cublas"
    for uuid in ("GPU-a", "GPU-b"):
        await until_used_mib(scheduler, uuid, CONTEXT_MIB + IDLE_MIB + AREA_MIB)
    both.close()
    for uuid in ("GPU-a", "GPU-b"):
        await until_used_mib(scheduler, uuid, IDLE_MIB)


async def test_a_context_counts_in_the_memory_of_its_lease(scheduler: SchedulerClient) -> None:
    small = await job(scheduler, "small:1", memory_mib=CONTEXT_MIB - 1)
    with pytest.raises(OpFailed, match=f"a context takes {CONTEXT_MIB} MiB") as failed:
        await asyncio.to_thread(small.multiply)
    assert failed.value.code == OpCode.ENOMEM
    await until_used_mib(scheduler, small.device, IDLE_MIB)
    small.close()


async def test_a_lease_that_uses_more_memory_than_it_has_ends_with_the_figures(
    scheduler: SchedulerClient, pushes: Pushes, cards: Cards
) -> None:
    """Memory that a library takes without asking the quota is seen by the driver alone."""
    neighbour = await job(scheduler, "neighbour-mib:1", memory_mib=3072)
    greedy = await job(scheduler, "greedy:1", memory_mib=3072)
    for one in (neighbour, greedy):
        assert await asyncio.to_thread(one.multiply) == FOURS
    cards.set(**{f"_{cards.board(greedy.device)}_extra_mib": "4000"})
    end = await pushes.of("greedy:1")
    used_mib = CONTEXT_MIB + AREA_MIB + 4000
    assert end.startswith(f"REVOKED: it used {used_mib} MiB of {greedy.device}, as its driver")
    assert "its 3072 MiB and 512 MiB for contexts" in end
    await asyncio.to_thread(until, lambda: not greedy.session.alive)
    cards.set()
    assert await asyncio.to_thread(neighbour.multiply) == FOURS
    await until_used_mib(scheduler, greedy.device, IDLE_MIB)
    await until_health(scheduler, greedy.device, Health.OK)
    greedy.close()
    neighbour.close()


async def test_a_hung_kernel_ends_its_lease_with_the_reason(
    scheduler: SchedulerClient, pushes: Pushes, cards: Cards
) -> None:
    neighbour = await job(scheduler, "neighbour:1", memory_mib=3072)
    hung = await job(scheduler, "hung:1", memory_mib=3072)
    assert {neighbour.device, hung.device} == {"GPU-a", "GPU-b"}
    cards.set(**{f"_{cards.board(hung.device)}_hang": "cuStreamSynchronize"})
    with pytest.raises(Refused):
        await asyncio.to_thread(hung.multiply)
    reason = "DEVICE_BAD: the device hangs: cuStreamSynchronize did not return within 1 s"
    assert await pushes.of("hung:1") == reason
    await asyncio.to_thread(until, lambda: not hung.session.alive)
    assert reason in str(hung.session.lost)
    hung.close()
    assert "it is being checked" in await until_health(scheduler, hung.device, Health.SUSPECT)
    assert await asyncio.to_thread(neighbour.multiply) == FOURS
    cards.set()
    await until_health(scheduler, hung.device, Health.OK)
    await until_used_mib(scheduler, hung.device, IDLE_MIB)
    after = await job(scheduler, "after:1", memory_mib=3072)
    assert after.device == hung.device
    assert await asyncio.to_thread(after.multiply) == FOURS
    after.close()
    neighbour.close()


@pytest.mark.parametrize(
    ("name", "code", "symptom"),
    [
        ("DEVICE_UNAVAILABLE", 46, Symptom.PROBE),
        ("NO_DEVICE", 100, Symptom.PROBE),
        ("ECC_UNCORRECTABLE", 214, Symptom.ECC),
    ],
)
async def test_a_lost_card_gets_no_lease_until_it_works_again(
    scheduler: SchedulerClient,
    pushes: Pushes,
    cards: Cards,
    name: str,
    code: int,
    symptom: Symptom,
) -> None:
    neighbour = await job(scheduler, f"neighbour-{code}:1", memory_mib=3072)
    lost = await job(scheduler, f"lost-{code}:1", memory_mib=3072)
    assert await asyncio.to_thread(lost.multiply) == FOURS
    cards.set(**{f"_{cards.board(lost.device)}_fail": f"cuStreamSynchronize {code}"})
    returned = f"cuStreamSynchronize returned CUDA_ERROR_{name}"
    with pytest.raises((OpFailed, Refused), match=returned):
        await asyncio.to_thread(lost.multiply)
    assert returned in await pushes.of(f"lost-{code}:1")
    found = await until_health(scheduler, lost.device, Health.BAD)
    assert symptom.value in found
    assert returned in found
    other = await job(scheduler, f"other-{code}:1", memory_mib=512)
    assert other.device == neighbour.device, "a new lease is on the card that works"
    assert await asyncio.to_thread(neighbour.multiply) == FOURS
    assert neighbour.session.alive
    cards.set()
    await until_health(scheduler, lost.device, Health.OK)
    for one in (lost, other, neighbour):
        one.close()


async def test_leases_of_a_card_that_fell_off_the_bus_end_with_its_xid(
    scheduler: SchedulerClient, pushes: Pushes, cards: Cards
) -> None:
    neighbour = await job(scheduler, "neighbour-79:1", memory_mib=3072)
    lost = await job(scheduler, "lost-79:1", memory_mib=3072)
    board = cards.board(lost.device)
    cards.set(xid=f"1 {board} 79")
    end = await pushes.of("lost-79:1")
    assert end.startswith("DEVICE_BAD")
    assert "Xid 79" in end
    await asyncio.to_thread(until, lambda: not lost.session.alive)
    assert await asyncio.to_thread(neighbour.multiply) == FOURS
    lost.close()
    neighbour.close()


def a_card(uuid: str) -> Device:
    return Device(
        id=DeviceId(uuid), index=1, kind=DeviceKind.CUDA, model="Stand-in", memory_mib=1024
    )


@pytest.mark.parametrize(
    ("facts", "uuid", "symptom", "why"),
    [
        ({"_0_hang": "cuMemGetInfo"}, "GPU-a", Symptom.HUNG, "did not complete a check within 2 s"),
        ({"_0_fail": "cuMemAlloc 214"}, "GPU-a", Symptom.ECC, "cuMemAlloc returned CUDA_ERROR_ECC"),
        ({}, "GPU-c", Symptom.PROBE, "cuInit returned CUDA_ERROR_NO_DEVICE"),
    ],
)
async def test_a_card_is_checked_before_it_is_lent(
    cards: Cards,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, str],
    uuid: str,
    symptom: Symptom,
    why: str,
) -> None:
    for name, value in cards.variables.items():
        monkeypatch.setenv(name, value)
    cards.set(**facts)
    budget, changes = replace(Budget().scaled(SCALE), card_check_s=2.0), asyncio.Event()
    async with Nursery("test") as nursery:
        checks = CardChecks(budget, nursery, changes.set)
        await checks.first([a_card(uuid), a_card("GPU-b")])
        while (found := checks.faults()[DeviceId(uuid)]).health is not Health.BAD:
            changes.clear()
            await changes.wait()
        assert found.symptom is symptom
        assert why in found.detail
        assert checks.context_bytes(DeviceId("GPU-b")) == CONTEXT_MIB << 20
        assert DeviceId("GPU-b") not in checks.faults()
        cards.set()
        await nursery.close()

"""Policy `warm_first`: same workload first, scan before take, bounded overtaking."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.model import DeviceResidents, Request, Resident, Sharing
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.warm import workload_key
from simulator.policies import warm_first
from tests.scheduler_world import World, device, world_with

SLOT_MIB = 500  #: half of a device


def slot(workload: str | None, **fields: Any) -> Request:
    return Request(memory_mib=SLOT_MIB, workload=workload, **fields)


@pytest.fixture
def two_slots() -> Callable[..., Any]:
    """One device of two slots under the policy."""

    def make(**parameters: Any) -> Any:
        given = {f"warm_first.{name}": value for name, value in parameters.items()}
        return world_with(device("d"), policy="warm_first", policy_parameters=given)

    return make


def resident(name: str, workload: str) -> Resident:
    key = workload_key("default", workload)
    return Resident(id=name, workload=key, memory_mib=100, loading_s=1.0)


def test_a_finished_slot_takes_the_next_event_of_its_workload(
    two_slots: Callable[..., Any],
) -> None:
    world = two_slots()
    first, second = world.granted("a0", slot("a")), world.granted("b0", slot("b"))
    for name in ("1b", "2a", "3b", "4a"):
        world.reserve(name, slot(name[1]))
    world.release(first)
    assert world.grants() == ["2a"], "before the host has published a warm worker"
    world.release(second)
    assert world.grants() == ["1b"]


def test_what_a_slot_had_loaded_survives_a_restart(two_slots: Callable[..., Any]) -> None:
    world = two_slots()
    first = world.granted("a0", slot("a"))
    world.granted("b0", slot("b"))
    for name in ("1b", "2a"):
        world.reserve(name, slot(name[1]))
    world.start()
    world.host("h", device("d"), installed=tuple(lease.id for lease in world.leases))
    world.alive["s1"] = None
    world.beat()
    world.release(first)
    assert world.grants() == ["2a"]


def remembered(world: World) -> list[str]:
    """The devices whose slots the policy remembers."""
    names = world.machine.state.memory.values
    return sorted(name.removeprefix("slots/") for name in names if name.startswith("slots/"))


def test_the_slots_of_a_device_that_is_gone_are_forgotten() -> None:
    world = World(policy="warm_first")
    for number in range(3):
        world.host(f"h{number}", device(f"d{number}", SLOT_MIB))
        world.granted(f"a{number}", slot("a"))
    assert remembered(world) == ["d0", "d1", "d2"]
    for name in ("h0", "h1"):
        del world.hosts[name]
    world.advance(60.0)  # they are LOST
    for name in ("h0", "h1"):
        world.ask(ops.Forget, host=name)
    world.host("h3", device("d3", SLOT_MIB))
    for attempt in ("b", "c"):
        world.granted(attempt, slot("b"))
    assert remembered(world) == ["d2", "d3"]


def test_the_remembered_devices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_first, "DEVICES_MAX", 2)
    world = world_with(*(device(f"d{n}", SLOT_MIB, index=n) for n in range(4)), policy="warm_first")
    world.granted("a", slot("a"))
    pair = world.granted("b", slot("b", count=2))
    world.granted("c", slot("c"))
    assert remembered(world) == ["d0", "d1"]
    world.release(pair)
    world.granted("d", slot("d"))
    assert remembered(world) == ["d0", "d1"], "a device that is remembered is changed in place"
    assert (
        world.machine.state.memory.values["slots/d1"]
        != world.machine.state.memory.values["slots/d0"]
    )


def test_a_published_warm_worker_is_used_before_older_requests_start() -> None:
    world = world_with(device("d1"), device("d2", index=1), policy="warm_first")
    held = [world.granted(f"held{n}", Request(sharing=Sharing.EXCLUSIVE)) for n in range(2)]
    published = DeviceResidents(device=DeviceId("d2"), added=(resident("w1", "b"),))
    world.handle(host_ops.Report, host="h", reply_to="h", residents=(published,))
    world.reserve("1a", slot("a"))
    world.reserve("2b", slot("b"))
    world.release(held[1])
    assert world.grants()[:1] == ["2b"]
    (push,) = [one for one in world.pushed(host_ops.InstallPush) if one.install.workload == "b"]
    assert push.install.residents == ("w1",)


def test_a_worker_that_is_published_late_is_not_taken_for_an_idle_one(
    two_slots: Callable[..., Any],
) -> None:
    world = two_slots()
    first, second = world.granted("a0", slot("a")), world.granted("b0", slot("b"))
    world.reserve("1a", slot("a"))
    world.release(first)
    assert world.grants() == ["1a"]
    (again,) = [one for one in world.leases if one.attempt == "1a"]
    world.renew(again)
    published = DeviceResidents(
        device=DeviceId("d"), added=(resident("w1", "a"),)
    )  # `1a` uses it already
    world.handle(host_ops.Report, host="h", reply_to="h", residents=(published,))
    world.reserve("2a", slot("a"))
    world.reserve("3b", slot("b"))
    world.release(second)
    assert world.grants() == ["3b"]


def test_without_a_warm_request_the_oldest_is_served(two_slots: Callable[..., Any]) -> None:
    world = two_slots()
    first = world.granted("a0", slot("a"))
    world.granted("b0", slot("b"))
    world.reserve("c1", slot("c"))
    world.reserve("d1", slot("d"))
    world.release(first)
    assert world.grants() == ["c1"]


def test_the_oldest_request_is_overtaken_a_bounded_number_of_times(
    two_slots: Callable[..., Any],
) -> None:
    world = two_slots(overtakes_max=2)
    leases = [world.granted("a0", slot("a")), world.granted("x0", slot("x"))]
    world.reserve("0b", slot("b"))
    for number in range(1, 6):
        world.reserve(f"{number}a", slot("a"))
    served = []
    lease = leases[0]
    for _ in range(4):
        world.release(lease)
        (name,) = world.grants()
        served.append(name)
        (lease,) = [one for one in world.leases if one.attempt == name]
        world.renew(lease)
    assert served == ["1a", "2a", "0b", "3a"]


def test_devices_are_kept_for_an_overdue_request_that_does_not_fit(
    two_slots: Callable[..., Any],
) -> None:
    world = two_slots(overtakes_max=1)
    first, second = world.granted("a0", slot("a")), world.granted("a1", slot("a"))
    world.reserve("0whole", Request(sharing=Sharing.EXCLUSIVE, workload="b"))
    world.reserve("1a", slot("a"))
    world.reserve("2a", slot("a"))
    world.release(first)
    assert world.grants() == ["1a"]
    (overtaker,) = [one for one in world.leases if one.attempt == "1a"]
    world.renew(overtaker)
    world.release(second)
    assert world.grants() == [], "kept for the oldest"
    sentence = world.ask(ops.Explain, attempt="2a").explanation.sentence
    assert "the free devices are kept for 0whole, which 1 later ones overtook" in sentence
    world.release(overtaker)
    assert world.grants() == ["0whole"]


def runs_of(world: Any, count: int) -> list[tuple[str, str]]:
    """Workload and device of each lease in the order of grants; the oldest lease ends first."""
    found: list[tuple[str, str]] = []
    for number in range(count):
        world.reserve(f"{number:03}", slot("ab"[number % 2]))
    live: list[Any] = []
    while len(found) < count or live:
        fresh = [one for one in world.leases if one.id not in {lease.id for lease in live}]
        for lease in sorted(fresh, key=lambda lease: lease.fence):
            world.renew(lease)
            live.append(lease)
            found.append(("ab"[int(lease.attempt) % 2], lease.shares[0].device))
        world.release(live.pop(0))
    return found


@pytest.mark.parametrize(("policy", "expected"), [("warm_first", 2), ("fifo", 39)])
def test_workloads_in_turn_keep_their_slots(policy: str, expected: int) -> None:
    """Three slots: in the order of arrival each changes its workload at every lease."""
    world = world_with(*(device(f"d{n}", SLOT_MIB, index=n) for n in range(3)), policy=policy)
    runs = runs_of(world, 42)
    assert len(runs) == 42
    changes = 0
    for name in ("d0", "d1", "d2"):
        there = [workload for workload, on in runs if on == name]
        changes += sum(before != after for before, after in pairwise(there))
    assert changes == expected

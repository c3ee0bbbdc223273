"""Policy `affinity`: virtual time by client, with a penalty off affinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.api import LARGE
from gpu_scheduler.model import DeviceResidents, Lease, Request, Resident, Sharing
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import ops
from gpu_scheduler.warm import workload_key
from simulator.policies import affinity
from tests.scheduler_world import World, device

POLICY = "affinity"


def whole(tenant: str, lease_s: float = 1.0, **fields: Any) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, tenant=tenant, lease_s=lease_s, **fields)


def world_of(devices: int, residents: tuple[Any, ...] = (), **parameters: Any) -> World:
    """A world with these devices whose sessions stay."""
    made = World(policy=POLICY, **parameters)
    made.alive["s1"] = None
    named = tuple(device(f"d{n}", index=n) for n in range(devices))
    made.host("h", *named, residents=residents)
    return made


def own(**values: object) -> dict[str, Any]:
    return {"policy_parameters": {f"{POLICY}.{name}": value for name, value in values.items()}}


def warm(tenant: str, workload: str, on: str) -> DeviceResidents:
    worker = Resident(
        id=f"{on}-{workload}",
        workload=workload_key(tenant, workload),
        memory_mib=100,
        loading_s=3.0,
    )
    return DeviceResidents(device=DeviceId(on), added=(worker,))


def used(lease: Lease) -> str:
    return str(lease.shares[0].device)


def virtual_times(world: World) -> dict[str, float]:
    """The remembered virtual time of each client."""
    values = world.machine.state.memory.values
    return {
        name.removeprefix("time/"): float(value)
        for name, value in values.items()
        if name.startswith("time/")
    }


class ClosedLoop:
    """One device, and tenants that always have requests waiting."""

    def __init__(self, world: World, lengths_s: Mapping[str, float]) -> None:
        self.world, self.lengths_s, self.number = world, lengths_s, 0
        self.lease: Lease = world.granted("z", whole("z"))
        for tenant in lengths_s:
            for _ in range(2):
                self.ask(tenant)

    def ask(self, tenant: str) -> None:
        self.number += 1
        self.world.reserve(f"{tenant}-{self.number}", whole(tenant, self.lengths_s[tenant]))

    def order(self, rounds: int) -> str:
        """The tenants in the order of their grants."""
        found = ""
        for _ in range(rounds):
            self.world.release(self.lease)
            (attempt,) = self.world.grants()
            self.lease = next(one for one in self.world.leases if one.attempt == attempt)
            self.world.renew(self.lease)
            found += attempt[0]
            if attempt[0] in self.lengths_s:
                self.ask(attempt[0])
        return found


# ---------------------------------------------------------------- proportional service


@pytest.mark.parametrize(
    ("weights", "lengths_s", "ratio"),
    [
        ({}, {"a": 1.0, "b": 1.0}, 1.0),
        ({"a": 3.0}, {"a": 1.0, "b": 1.0}, 3.0),
        ({}, {"a": 1.0, "b": 4.0}, 4.0),  # runs, of equal device time
    ],
    ids=["equal", "weighted", "lengths"],
)
def test_clients_that_always_wait_are_served_in_proportion(
    weights: dict[str, float], lengths_s: dict[str, float], ratio: float
) -> None:
    loop = ClosedLoop(world_of(1, weights=weights, **own(penalty_runs=0)), lengths_s)
    counts = Counter(loop.order(100))
    assert counts["a"] / counts["b"] == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize(("penalty_runs", "batch"), [(10.0, 21), (2.0, 5), (0.0, 1)])
def test_a_client_keeps_its_device_until_the_other_is_that_many_runs_behind(
    penalty_runs: float, batch: int
) -> None:
    """From `penalty_runs` behind to `penalty_runs` ahead, and one run in which that is exceeded."""
    loop = ClosedLoop(world_of(1, **own(penalty_runs=penalty_runs)), {"a": 1.0, "b": 1.0})
    order = loop.order(100)
    batches = order.replace("ab", "a b").replace("ba", "b a").split()[1:-1]
    assert batches
    assert all(abs(len(one) - batch) <= 1 for one in batches), batches
    gap_s = abs(virtual_times(loop.world)["a/"] - virtual_times(loop.world)["b/"])
    assert gap_s <= penalty_runs + 1


# ---------------------------------------------------------------- devices


def test_a_warm_device_is_taken_although_another_one_is_empty() -> None:
    world = world_of(2, (warm("a", "m", "d1"),))
    assert used(world.granted("a", whole("a", workload="m"))) == "d1"


def test_a_client_returns_to_the_device_that_it_used_last() -> None:
    world = world_of(3)
    leases = {tenant: world.granted(f"{tenant}0", whole(tenant)) for tenant in "abc"}
    for lease in leases.values():
        world.release(lease)
    for tenant in "cab":
        again = world.granted(f"{tenant}1", whole(tenant))
        assert used(again) == used(leases[tenant])


def test_a_client_that_has_a_warm_worker_does_not_prefer_the_device_it_used_last() -> None:
    world = world_of(2)
    first = world.granted("a0", whole("a", workload="m"))
    world.release(first)
    other = "d1" if used(first) == "d0" else "d0"
    world.host("h", *world.hosts["h"], residents=(warm("a", "m", other),))
    assert used(world.granted("a1", whole("a", workload="m"))) == other


def test_a_client_without_a_free_affine_device_uses_another_one() -> None:
    """Work is conserved: the penalty decides between clients, never to wait."""
    world = world_of(2, (warm("a", "m", "d1"),))
    assert used(world.granted("a0", whole("a", workload="m"))) == "d1"
    assert used(world.granted("a1", whole("a", workload="m"))) == "d0"


def test_on_a_free_device_the_client_that_is_warm_there_is_first() -> None:
    world = world_of(1)
    lease = world.granted("a0", whole("a"))
    world.reserve("b0", whole("b"))
    world.advance(1.0)
    world.reserve("a1", whole("a"))
    world.release(lease)
    assert world.grants() == ["a1"]


def test_workloads_of_one_tenant_are_clients_unless_tenants_are() -> None:
    world = world_of(2)
    world.granted("x", whole("a", workload="x"))
    assert virtual_times(world) == {"a/x": 1.0}
    world.ask(ops.SetParameter, name=f"policy.{POLICY}.client", value="tenant")
    world.granted("y", whole("a", workload="y"))
    assert virtual_times(world)["a"] == 1.0


# ---------------------------------------------------------------- idle clients


def test_an_idle_client_earns_no_credit() -> None:
    """`a` has 30 seconds of device time while `b` is idle; then both are served alike."""
    world = world_of(1, **own(penalty_runs=0))
    for number in range(30):
        world.release(world.granted(f"alone-{number}", whole("a")))
    order = ClosedLoop(world, {"a": 1.0, "b": 1.0}).order(20)
    assert abs(order.count("a") - order.count("b")) <= 2


def test_an_idle_client_keeps_its_lead() -> None:
    """A client does not get rid of the device time that it had by asking again."""
    world = world_of(1, **own(penalty_runs=0))
    loop = ClosedLoop(world, {"a": 1.0})
    world.reserve("b-0", whole("b", 20.0))
    order = loop.order(8)
    assert "b" in order
    world.reserve("b-1", whole("b", 20.0))
    assert "b" not in loop.order(10)
    assert "b" in loop.order(12)


# ---------------------------------------------------------------- bound and memory


def test_an_overdue_request_is_next_although_it_is_off_affinity() -> None:
    """Short requests of the client that is warm keep coming; 1,000 of them would be before it."""
    world = world_of(1, **own(penalty_runs=1_000, overdue_s=20))
    loop = ClosedLoop(world, {"a": 1.0})
    world.reserve("long", whole("b", 5.0))
    assert "l" not in loop.order(10)
    world.advance(15.0)
    assert "l" not in loop.order(2)
    world.renew(loop.lease)
    world.advance(6.0)
    assert loop.order(2) == "la"


def test_nothing_is_kept_free_for_a_large_request() -> None:
    world = world_of(2, **own(overdue_s=0))
    leases = [world.granted(f"a{n}", whole("a")) for n in range(2)]
    world.reserve("gang", whole("g", count=2))
    world.advance(1.0)
    world.reserve("b", whole("b"))
    world.release(leases[0])
    assert world.grants() == ["b"]


def test_a_restart_keeps_the_memory_and_the_next_decisions() -> None:
    """The same order of grants with a restart in the middle."""

    def order(restarts: bool) -> str:
        loop = ClosedLoop(world_of(1, **own(penalty_runs=2)), {"a": 1.0, "b": 1.0})
        first = loop.order(9)
        memory = dict(loop.world.machine.state.memory.values)
        if restarts:
            assert dict(loop.world.replayed().state.memory.values) == memory
            loop.world.start()
            loop.world.host("h", *loop.world.hosts["h"])
        loop.world.renew(loop.lease)
        loop.world.advance(1.0)
        return first + loop.order(9)

    assert order(restarts=True) == order(restarts=False)


def test_it_declares_work_conservation_and_a_bound() -> None:
    policy = installed_policies()[POLICY]
    declared = policy.declare({one.name: one.default for one in policy.parameters})
    assert declared.work_conserving
    assert declared.wait_bound.startswith("overdue_s")
    assert declared.starves == LARGE


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that have no lead, and devices that are gone, are forgotten first."""
    monkeypatch.setattr(affinity, "REMEMBERED_MAX", 6)
    world = world_of(1)
    for number in range(40):
        world.release(world.granted(f"{number}", whole(f"t{number}")))
        assert len(world.machine.state.memory.values) <= 6 + 2


def test_more_clients_than_a_decision_compares_are_all_served() -> None:
    waiting = affinity.OUTSTANDING_MAX + 4
    world = world_of(1)
    lease = world.granted("first", whole("first"))
    for number in range(waiting):
        world.reserve(f"{number}", whole(f"t{number}"))
    served: list[str] = []
    for _ in range(waiting):
        world.release(lease)
        (attempt,) = world.grants()
        lease = next(one for one in world.leases if one.attempt == attempt)
        served.append(attempt)
    assert sorted(served, key=int) == [str(number) for number in range(waiting)]

"""Policy `exclusive`: clients own devices, and steal them from each other."""

from typing import Any

import pytest

from gpu_scheduler.model import Lease, Request, Sharing
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device


def whole(tenant: str, lease_s: float = 1.0, **fields: Any) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, tenant=tenant, lease_s=lease_s, **fields)


@pytest.fixture
def world() -> World:
    """Four devices, and sessions that stay."""
    made = World(policy="exclusive")
    made.alive["s1"] = None
    made.host("h", *(device(f"d{n}", index=n) for n in range(4)))
    return made


def owners(world: World) -> dict[str, str]:
    """The owner of each device, as remembered."""
    values = world.machine.state.memory.values
    found = {name.removeprefix("owner/"): v for name, v in values.items() if "owner/" in name}
    return {name: str(found[name]) for name in sorted(found)}


def stealing(world: World, value: str) -> None:
    world.ask(ops.SetParameter, name="policy.exclusive.steal_pct", value=value)


def two_and_two(world: World) -> list[Lease]:
    """Leases of clients a and b, two devices each."""
    return [world.granted(f"{tenant}{n}", whole(tenant)) for tenant in "ab" for n in range(2)]


def queue(world: World, tenant: str, *lengths_s: float) -> None:
    for number, length_s in enumerate(lengths_s):
        world.reserve(f"{tenant}-waits-{number}", whole(tenant, length_s))


@pytest.mark.parametrize(("a_s", "stolen"), [(3.0, False), (3.1, True)])
def test_a_queue_of_more_than_one_and_a_half_times_another_steals_one_device(
    world: World, a_s: float, stolen: bool
) -> None:
    """Two units of queue for each device of b; 3.0 or 3.1 for each of a."""
    stealing(world, "0")
    leases = two_and_two(world)
    queue(world, "b", 2.0, 2.0)
    queue(world, "a", a_s, a_s)
    stealing(world, "default")
    assert list(owners(world).values()) == (
        ["a/", "a/", "a/", "b/"] if stolen else ["a/", "a/", "b/", "b/"]
    )
    assert [lease.id for lease in world.leases] == [lease.id for lease in leases]


def test_a_stolen_device_ends_its_lease_and_then_serves_the_new_owner(world: World) -> None:
    leases = two_and_two(world)
    queue(world, "a", 5.0)
    assert owners(world)["d2"] == "a/"
    world.reserve("b-late", whole("b"))
    world.release(leases[2])
    assert world.grants() == ["a-waits-0"]
    world.release(leases[3])
    assert world.grants() == ["b-late"]


def test_the_victim_keeps_one_device(world: World) -> None:
    two_and_two(world)
    queue(world, "a", 1e4, 1e4, 1e4)
    for _ in range(5):
        world.advance(10.0)
    assert list(owners(world).values()).count("b/") == 1


def test_there_is_a_pause_between_two_steals(world: World) -> None:
    world.granted("a0", whole("a"))
    for number in range(3):
        world.granted(f"b{number}", whole("b"))
    queue(world, "a", 100.0)
    assert list(owners(world).values()).count("a/") == 2
    world.advance(5.9)
    assert list(owners(world).values()).count("a/") == 2
    world.advance(0.2)
    assert list(owners(world).values()).count("a/") == 3


def test_without_stealing_the_owners_stay(world: World) -> None:
    stealing(world, "0")
    two_and_two(world)
    queue(world, "a", 1e4, 1e4)
    assert list(owners(world).values()) == ["a/", "a/", "b/", "b/"]


def test_a_client_without_a_device_takes_the_next_free_one_in_the_order_of_the_queue(
    world: World,
) -> None:
    leases = two_and_two(world)
    queue(world, "b", 1.0)
    world.advance(1.0)
    queue(world, "c", 1.0)
    world.release(leases[2])
    assert world.grants() == ["b-waits-0"]
    world.release(leases[3])
    assert world.grants() == ["c-waits-0"]
    assert owners(world)["d3"] == "c/"


def test_an_idle_client_loses_its_free_devices(world: World) -> None:
    for lease in two_and_two(world):
        world.release(lease)
    world.advance(301.0)
    for number in range(4):
        world.granted(f"c{number}", whole("c"))
    assert list(owners(world).values()) == ["c/"] * 4
    assert [name for name in world.machine.state.memory.values if "used_s/" in name] == [
        "used_s/c/"
    ]


def test_workloads_of_one_tenant_are_clients_unless_tenants_are(world: World) -> None:
    world.granted("x", whole("a", workload="x"))
    world.granted("y", whole("a", workload="y"))
    assert owners(world) == {"d0": "a/x", "d1": "a/y"}
    world.ask(ops.SetParameter, name="policy.exclusive.client", value="tenant")
    world.granted("z", whole("a", workload="z"))
    assert owners(world)["d2"] == "a"


def test_a_request_for_several_devices_takes_those_of_its_client_first(world: World) -> None:
    stealing(world, "0")
    for lease in two_and_two(world):
        world.release(lease)
    gang = world.granted("gang", whole("b", count=3))
    assert [share.device for share in gang.shares] == ["d2", "d3", "d0"]
    assert list(owners(world).values()) == ["a/", "a/", "b/", "b/"]


def test_explain_names_the_devices_of_the_client(world: World) -> None:
    stealing(world, "0")
    leases = two_and_two(world)
    world.release(leases[3])
    queue(world, "a", 1.0)
    explanation = world.ask(ops.Explain, attempt="a-waits-0").explanation
    assert explanation.held_back is HeldBack.POLICY
    reason = "policy exclusive: client a/ owns h/0, h/1, and steals no other yet"
    assert explanation.sentence.endswith(reason)


def test_a_host_that_is_forgotten_takes_its_devices_out_of_the_memory(world: World) -> None:
    world.host("other", device("far"))
    two_and_two(world)
    far = world.granted("far", whole("c"))
    assert owners(world)["far"] == "c/"
    world.release(far)
    world.hosts.pop("other")
    world.advance(30.0)
    world.ask(ops.Forget, host="other")
    queue(world, "a", 1.0)
    assert "far" not in owners(world)
    assert world.ask(ops.Explain, attempt="a-waits-0").explanation.held_back is not HeldBack.POLICY


@pytest.mark.parametrize(("take_max_pct", "owned"), [("50", 2), ("100", 4), ("25", 1), ("0", 1)])
def test_a_client_takes_at_most_its_part_of_the_devices_without_stealing(
    world: World, take_max_pct: str, owned: int
) -> None:
    world.ask(ops.SetParameter, name="policy.exclusive.take_max_pct", value=take_max_pct)
    queue(world, "a", *[1.0] * 6)
    assert list(owners(world).values()) == ["a/"] * owned


def test_an_own_device_of_a_later_preference_is_used_while_another_client_has_the_first() -> None:
    world = World(policy="exclusive")
    world.alive["s1"] = None
    world.host("h", device("d0", index=0, model="A100"), device("d1", index=1, model="T4"))
    stealing(world, "0")
    first = world.granted("b0", whole("b", models=("A100",)))
    second = world.granted("a0", whole("a", models=("T4",)))
    world.release(first)
    world.release(second)
    third = world.granted("a1", whole("a", models=("A100", "T4")))
    assert third.shares[0].device == "d1"
    assert list(owners(world).values()) == ["b/", "a/"]

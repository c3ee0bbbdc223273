"""Policy `mlfq`: buckets of expected time, drawn with equal chances."""

import pytest

from gpu_scheduler.model import Request, Sharing
from tests.scheduler_world import World, device, world_with


def shares(world: World, rounds: int) -> dict[str, float]:
    """The part of the grants of each tenant: each has two requests waiting at all times."""
    lengths_s = {"a1": 2.0, "a2": 3.0, "b": 300.0}
    granted = dict.fromkeys(lengths_s, 0)
    lease = world.granted("first", Request(sharing=Sharing.EXCLUSIVE))
    number = 0

    def ask(tenant: str) -> None:
        nonlocal number
        number += 1
        request = Request(sharing=Sharing.EXCLUSIVE, tenant=tenant, lease_s=lengths_s[tenant])
        world.reserve(f"{number:06}", request)

    for tenant in (*lengths_s, *lengths_s):
        ask(tenant)
    for _ in range(rounds):
        world.now_s += 0.01
        world.release(lease)
        (lease,) = world.leases
        world.renew(lease)
        granted[lease.tenant] += 1
        ask(lease.tenant)
    return {tenant: count / rounds for tenant, count in granted.items()}


def test_each_bucket_gets_half_and_clients_of_one_bucket_share_it() -> None:
    world = world_with(device("d"), policy="mlfq")
    parts = shares(world, rounds=4_000)
    assert parts["b"] == pytest.approx(0.50, abs=0.02)
    assert parts["a1"] == pytest.approx(0.25, abs=0.02)
    assert parts["a2"] == pytest.approx(0.25, abs=0.02)


def test_one_bucket_draws_no_numbers() -> None:
    world = world_with(device("d"), policy="mlfq", policy_parameters={"mlfq.buckets": 1.0})
    shares(world, rounds=5)
    assert world.machine.state.memory.draws == 0

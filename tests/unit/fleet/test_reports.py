"""The report of a fleet to the scheduler, at each state of its pools."""

from __future__ import annotations

from corekit.decode import decode, encode
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.pools import PoolView
from orchgpu.fleet.core.model import Offers, Rules
from orchgpu.fleet.reports import report_of
from tests.fleet_world import FleetWorld, offer


def report(world: FleetWorld) -> ops.ReportFleet:
    """What the fleet of the world reports after its next step."""
    decision = world.step()
    offers = Offers(offers=world.offers, rules=world.rules)
    found = report_of(world.view(), offers, decision, world.now_s)
    assert decode(ops.ReportFleet, encode(found), "") == found
    return found


def pool_of(world: FleetWorld) -> PoolView:
    (pool,) = report(world).pools
    return pool


def test_a_pool_is_empty_then_has_a_host_that_starts_works_and_is_idle() -> None:
    world = FleetWorld((offer(),))
    pool = pool_of(world)
    assert (pool.hosts, pool.expected_in_s, pool.start_s, pool.closed) == (0, None, 60.0, "")
    world.submit(1, run_s=100.0)
    world.run(20.0)
    pool = pool_of(world)
    assert pool.states == {"starting": 1}
    assert pool.started_ago_s is not None
    assert pool.expected_in_s == 60.0 - pool.started_ago_s
    world.run(60.0)
    pool = pool_of(world)
    assert (pool.states, pool.started_ago_s, pool.ordered_ago_s) == ({"busy": 1}, None, None)
    world.run(100.0)
    assert pool_of(world).states == {"idle": 1}


def test_a_host_whose_start_lies_ahead_of_the_clock_has_the_age_zero() -> None:
    world = FleetWorld((offer(min=1),))
    world.run(20.0)
    decision, offers = world.step(), Offers(offers=world.offers, rules=world.rules)
    (pool,) = report_of(world.view(), offers, decision, world.now_s - 600.0).pools
    assert pool.started_ago_s == 0.0


def test_hosts_that_were_ordered_and_have_not_come_have_an_age() -> None:
    world = FleetWorld((offer(start_s=300.0),), refusing={"a10g"})
    world.submit(1)
    world.run(20.0)
    pool = pool_of(world)
    assert (pool.hosts, pool.size, pool.started_ago_s) == (0, 1, None)
    assert pool.ordered_ago_s is not None
    assert pool.ordered_ago_s > 0


def test_a_pool_that_starts_no_host_has_the_reason() -> None:
    full = FleetWorld((offer(max=1),), Rules(target_wait_s=0.0))
    full.submit(9, 600.0)
    full.run(300.0)
    assert pool_of(full).closed == "its max of 1 is reached"
    dear = FleetWorld((offer(),), Rules(usd_per_hour_max=1.0, target_wait_s=0.0))
    dear.submit(9, 600.0)
    dear.run(300.0)
    assert pool_of(dear).closed == "its fleet may spend no more per hour"
    spent = FleetWorld((offer(),), Rules(usd_per_month_max=0.01))
    spent.submit(9, 600.0)
    spent.run(300.0)
    assert pool_of(spent).closed == "its fleet may spend no more this month"
    assert any("USD are spent this month" in text for text in report(spent).notices)
    deaf = FleetWorld((offer(),), deaf={"a10g"})
    deaf.submit(1)
    while not (closed := pool_of(deaf).closed):
        deaf.run(30.0)
    assert closed.startswith("it does not deliver, and is left out for ")


def test_a_pool_without_an_offer_is_reported_while_it_has_hosts() -> None:
    world = FleetWorld((offer(min=1),))
    world.run(100.0)
    world.offers = (offer("other"),)
    pools = {pool.name: pool for pool in report(world).pools}
    assert list(pools) == ["other", "a10g"]
    assert (pools["a10g"].hosts, pools["a10g"].max, pools["a10g"].usd_per_h) == (1, 0, 1.0)

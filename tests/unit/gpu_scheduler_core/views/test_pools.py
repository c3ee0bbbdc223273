"""Pools that a fleet reports: in the inventory, and as the reason why a request waits."""

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.ids import AttemptId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.pools import PoolView
from gpu_scheduler.verdicts import Explanation
from tests.scheduler_world import World, device

WHOLE = Request(kinds=(DeviceKind.CUDA,), sharing=Sharing.EXCLUSIVE)
POOL = PoolView(
    name="a10g",
    kind=DeviceKind.CUDA,
    model="NVIDIA A10G",
    memory_mib=22_000,
    max=2,
    size=1,
    states={"starting": 1},
    start_s=90.0,
    started_ago_s=40.0,
)


def reported(world: World, *pools: PoolView, session: str = "fleet", **fields: Any) -> None:
    assert world.ask(ops.ReportFleet, session, pools=pools, **fields) == answers.Done()


def waiting(request: Request = WHOLE, lease_s: float | None = None) -> World:
    """A request waits for a device that is lent exclusively."""
    world = World()
    world.host("h1", device("d1", 30_000))
    world.granted("first", replace(WHOLE, lease_s=lease_s))
    world.reserve("second", request)
    return world


def explained(world: World) -> Explanation:
    answer = world.ask(ops.Explain, attempt=AttemptId("second"))
    assert isinstance(answer, answers.ExplainAnswer)
    return answer.explanation


@pytest.mark.parametrize(
    ("fields", "text", "expected_s"),
    [
        ({}, "a host of pool a10g, started 40 s ago, expected in 50 s", 50.0),
        (
            {"started_ago_s": None, "ordered_ago_s": 50.0, "states": {}},
            "a host of pool a10g, ordered 50 s ago, expected in 40 s",
            40.0,
        ),
        (
            {"started_ago_s": 100.0},
            "a host of pool a10g, started 1 min 40 s ago, late, expected at any moment",
            0.0,
        ),
    ],
)
def test_a_request_waits_for_the_next_host_of_a_pool(
    fields: dict[str, Any], text: str, expected_s: float
) -> None:
    world = waiting()
    reported(world, replace(POOL, **fields))
    found = explained(world)
    assert found.sentence.endswith(f"; it waits for {text}")
    assert (found.pool, found.expected_why, found.expected_s) == ("a10g", text, expected_s)


def test_the_report_ages_and_counts_for_a_while() -> None:
    world = waiting()
    world.alive["s1"] = None
    reported(world, POOL)
    world.advance(20.0)
    found = explained(world)
    assert found.expected_why == "a host of pool a10g, started 1 min ago, expected in 30 s"
    world.advance(Budget().fleet_report_s)
    assert explained(world).pool == ""
    assert world.ask(ops.Inventory).fleet is None


@pytest.mark.parametrize(
    ("request_", "pool"),
    [
        (replace(WHOLE, models=("M",)), POOL),
        (WHOLE, replace(POOL, kind=DeviceKind.CPU)),
        (replace(WHOLE, memory_mib=25_000), POOL),
        (WHOLE, replace(POOL, states={"idle": 1}, started_ago_s=None)),
    ],
)
def test_a_host_that_does_not_fit_or_does_not_come_is_not_waited_for(
    request_: Request, pool: PoolView
) -> None:
    world = waiting(request_)
    before = explained(world)
    reported(world, pool)
    assert explained(world) == before


def test_devices_on_one_host_need_a_pool_with_as_many() -> None:
    request = replace(WHOLE, count=2, placement=Placement.SAME_HOST)
    world = World()
    world.host("h1", device("d1", 30_000), device("d2", 30_000, index=1))
    world.granted("first", WHOLE)
    world.reserve("second", request)
    reported(world, POOL)
    assert explained(world).pool == ""
    reported(world, replace(POOL, devices=2))
    assert explained(world).pool == "a10g"


def test_a_lease_that_ends_before_the_host_comes_is_waited_for() -> None:
    world = waiting(lease_s=1.0)
    first = explained(world)
    assert first.expected_s is not None
    reported(world, replace(POOL, start_s=first.expected_s + 41.0))
    assert explained(world) == first
    reported(world, replace(POOL, start_s=first.expected_s + 39.0))
    assert explained(world).pool == "a10g"


def test_the_first_host_of_several_pools_counts_and_the_newest_report_of_each() -> None:
    world = waiting()
    soon = replace(POOL, name="l4", started_ago_s=60.0)
    reported(world, POOL, soon, notices=("one",))
    assert explained(world).pool == "l4"
    reported(world, replace(soon, started_ago_s=10.0), session="other", notices=("one", "two"))
    assert explained(world).pool == "a10g"
    fleet = world.ask(ops.Inventory).fleet
    assert [(pool.name, pool.started_ago_s) for pool in fleet.pools] == [
        ("a10g", 40.0),
        ("l4", 10.0),
    ]
    assert fleet.notices == ("one", "two")


def test_only_the_pools_that_fit_are_aged_and_an_older_report_of_a_pool_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = waiting()
    others = [replace(POOL, name=f"cpu{n}", kind=DeviceKind.CPU) for n in range(5)]
    reported(world, POOL, replace(POOL, name="l4"), *others)
    reported(world, replace(POOL, kind=DeviceKind.CPU), session="other")
    aged, names = PoolView.aged, []

    def counted(pool: PoolView, by_s: float) -> PoolView:
        names.append(pool.name)
        return aged(pool, by_s)

    monkeypatch.setattr(PoolView, "aged", counted)
    assert explained(world).pool == "l4"
    assert set(names) == {"l4"}


def test_a_pool_that_starts_no_host_has_a_reason() -> None:
    world = waiting()
    closed = replace(POOL, states={"busy": 2}, started_ago_s=None, closed="its max of 2 is reached")
    reported(world, closed)
    found = explained(world)
    assert found.sentence.endswith("; pool a10g starts no host: its max of 2 is reached")
    assert (found.pool, found.expected_s) == ("", None)


def test_reports_are_not_journalled() -> None:
    world = waiting()
    entries = len(world.journal)
    reported(world, POOL)
    assert len(world.journal) == entries


def test_a_pool_is_a_line_with_its_states_and_next_host() -> None:
    assert POOL.text == "pool a10g: 1 of 0 to 2 hosts, 1 starting, the next expected in 50 s"
    assert POOL.aged(60.0).text.endswith(", 1 starting, the next late")
    still = replace(POOL, states={}, started_ago_s=None)
    assert still.text == "pool a10g: 0 of 0 to 2 hosts"

"""Preemption: which leases end for a request, when, and what becomes of their jobs."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corekit.errors import ErrorCode
from corekit.values import replace
from gpu_scheduler.model import (
    EndReason,
    LeaseLifetime,
    Placement,
    Request,
    Sharing,
    Step,
)
from gpu_scheduler.parameters import Quota
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device

LOW = Request(memory_mib=1000, preemptible=True)
HIGH = Request(memory_mib=1000, preempts=True, priority=10)


def running(world: World, attempt: str, request: Request = LOW, host: str = "h1") -> Any:
    lease = world.granted(attempt, request)
    world.told(host, lease, "opened")
    return lease


def notices(world: World) -> list[Any | str]:
    return [push.lease for push in world.pushed(host_ops.Preempt)]


def ended(world: World) -> list[Any | str]:
    return [push.lease for push in world.pushed(host_ops.End)]


def test_a_running_lease_ends_after_its_grace_time(one: World) -> None:
    victim = running(one, "low")
    assert one.reserve("high", HIGH).outcome is answers.Outcome.WAITING
    (notice,) = one.pushed(host_ops.Preempt)
    assert (notice.lease, notice.grace_s) == (victim.id, 10.0)
    one.alive["s1"] = None
    one.advance(9.0)
    assert [lease.id for lease in one.leases] == [victim.id]
    one.advance(2.0)
    assert one.grants() == ["high"]
    (end,) = [push for push in one.pushed(host_ops.End) if push.lease == victim.id]
    assert end.reason is EndReason.PREEMPTED


def test_the_explanation_counts_on_the_preemption(one: World) -> None:
    running(one, "low")
    foreseen = one.ask(ops.Explain, request=HIGH).explanation
    assert (foreseen.expected_s, notices(one)) == (10.0, []), "a question ends no lease"
    assert foreseen.expected_why == "1 preemptible lease of lower priority ends for it"
    one.ask(ops.Explain, request=replace(HIGH, priority=0))
    assert one.answer().explanation.expected_s is None, "it preempts only lower priorities"
    one.reserve("high", HIGH)
    one.alive["s1"] = None
    one.advance(4.0)
    under_way = one.ask(ops.Explain, attempt="high").explanation
    assert under_way.expected_s == pytest.approx(6.0)
    assert under_way.expected_why == foreseen.expected_why


def test_the_explanation_of_a_lease_without_a_session(one: World) -> None:
    one.granted("low", LOW)
    assert one.ask(ops.Explain, request=HIGH).explanation.expected_s == 0.0


def test_a_script_that_ends_earlier_frees_the_device_earlier(one: World) -> None:
    victim = running(one, "low")
    one.reserve("high", HIGH)
    one.told("h1", victim, "closed", reason=EndReason.DONE)
    assert one.grants() == ["high"]
    (push,) = [p for p in one.pushes(answers.LeasePush) if p.lease == victim.id]
    assert push.reason is EndReason.PREEMPTED, "its holder must know that it may try again"


def test_a_lease_without_a_session_ends_at_once(one: World) -> None:
    victim = one.granted("low", LOW)
    assert one.reserve("high", HIGH).outcome is answers.Outcome.WAITING
    assert (notices(one), ended(one)) == ([], [victim.id])
    assert one.grants() == ["high"]


def test_without_a_grace_time_it_ends_at_once() -> None:
    world = World(preempt_grace_s=0.0)
    world.host("h1", device("d1"))
    victim = running(world, "low")
    world.reserve("high", HIGH)
    assert (ended(world), world.grants()) == ([victim.id], ["high"])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"preemptible": False}, {}),
        ({}, {"preempts": False}),
        ({"priority": 10}, {}),
        ({"priority": 11}, {}),
    ],
)
def test_nothing_else_is_preempted(one: World, low: dict[str, Any], high: dict[str, Any]) -> None:
    running(one, "low", Request(**{"memory_mib": 1000, "preemptible": True, **low}))
    one.reserve("high", Request(**{"memory_mib": 1000, "preempts": True, "priority": 10, **high}))
    assert (notices(one), ended(one)) == ([], [])
    one.advance(60.0)
    assert one.grants() == []


def test_a_request_that_fits_preempts_nothing(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    running(world, "low")
    assert world.reserve("high", HIGH).outcome is answers.Outcome.GRANTED
    assert notices(world) == []


def test_a_quota_holds() -> None:
    world = World(quotas={"t": Quota(devices=0)})
    world.host("h1", device("d1"))
    running(world, "low")
    world.reserve("high", Request(memory_mib=1000, preempts=True, priority=10, tenant="t"))
    assert notices(world) == []


def test_the_fewest_leases_end(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    for number in range(4):
        running(world, f"small{number}", Request(memory_mib=250, preemptible=True))
    large = running(world, "large")
    world.reserve("high", HIGH)
    assert notices(world) == [large.id]


def test_among_equals_the_least_work_is_lost(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    running(world, "old")
    world.advance(30.0)
    new = running(world, "new")
    world.reserve("high", HIGH)
    assert notices(world) == [new.id]


def test_no_more_leases_end_than_needed(one: World) -> None:
    running(one, "a", Request(memory_mib=300, preemptible=True))
    b = running(one, "b", Request(memory_mib=600, preemptible=True))
    one.reserve("high", Request(memory_mib=500, preempts=True, priority=1))
    assert notices(one) == [b.id]


def test_a_gang_preempts_on_each_of_its_devices(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1), device("d3", index=2))
    leases = [running(world, f"low{n}") for n in range(2)]
    running(world, "kept", Request(sharing=Sharing.EXCLUSIVE))
    gang = Request(count=2, sharing=Sharing.EXCLUSIVE, preempts=True, priority=1)
    world.reserve("high", gang)
    assert sorted(notices(world)) == sorted(lease.id for lease in leases)
    for lease in leases:
        world.told("h1", lease, "closed")
    assert world.grants() == ["high"]


def test_a_gang_on_one_host_preempts_on_one_host(world: World) -> None:
    world.host("h1", device("a1"), device("a2", index=1))
    world.host("h2", device("b1"), device("b2", index=1))
    running(world, "stays", Request(sharing=Sharing.EXCLUSIVE, models=("M",)))
    for number in range(3):
        lease = world.granted(f"low{number}", LOW)
        world.told(lease.shares[0].host, lease, "opened")
    request = Request(
        count=2, memory_mib=1000, placement=Placement.SAME_HOST, preempts=True, priority=1
    )
    world.reserve("high", request)
    assert len(notices(world)) == 2
    assert world.hosts_of(host_ops.Preempt) == ["h2", "h2"]


def test_the_device_is_reserved_for_the_request(one: World) -> None:
    victim = running(one, "low")
    one.reserve("high", HIGH)
    one.reserve("other", Request(memory_mib=1000, priority=100))  # comes first, but may not preempt
    one.told("h1", victim, "closed")
    assert one.grants() == ["high"]


@pytest.mark.parametrize("policy", sorted(installed_policies()))
def test_no_policy_leaves_a_device_to_nobody(policy: str) -> None:
    """Leases ended for a request, which gets the device although its turn has not come."""
    world = World(policy=policy)
    world.host("h1", device("d"))
    victim = running(world, "low")
    world.reserve("high", HIGH)
    world.reserve("other", Request(memory_mib=1000, priority=100))
    world.told("h1", victim, "closed")
    assert world.grants() == ["high"]


def test_a_withdrawn_request_gives_its_devices_up(one: World) -> None:
    victim = running(one, "low")
    one.reserve("high", HIGH)
    one.ask(ops.Withdraw, attempt="high")
    assert one.machine.state.preemptions == {}
    one.reserve("other", Request(memory_mib=1000))
    one.told("h1", victim, "closed")
    assert one.grants() == ["other"]


def test_two_requests_preempt_on_two_devices(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    leases = [running(world, f"low{n}") for n in range(2)]
    for number in range(3):
        world.reserve(f"high{number}", HIGH)
    assert len(world.machine.state.preemptions) == 2
    for lease in leases:
        world.told("h1", lease, "closed")
    assert sorted(entry.lease.attempt for entry in world.machine.state.leases.values()) == [
        "high0",
        "high1",
    ]


def test_a_preempted_lease_cannot_be_extended(one: World) -> None:
    hold = {"hold": LeaseLifetime.DEADLINE, "lease_s": 100.0}
    victim = one.granted("low", LOW, **hold)
    one.reserve("high", HIGH)
    assert notices(one) == [victim.id]
    assert one.ask(ops.Renew, lease=victim.id, lease_s=500.0).code is ErrorCode.CONFLICT
    one.alive["s1"] = None
    one.advance(11.0)
    assert one.grants() == ["high"]


def test_a_restart_in_the_grace_time_ends_the_lease_later(one: World) -> None:
    victim = running(one, "low")
    one.alive["s1"] = None
    one.reserve("high", HIGH)
    one.start()
    one.host("h1", device("d1"), installed=(victim.id,))
    one.beat()
    one.advance(11.0)
    assert [lease.attempt for lease in one.leases] == ["high"]


def test_a_job_keeps_the_reason(one: World) -> None:
    answer = one.attempt("job", request=LOW)
    lease = answer.granted.lease
    one.told("h1", lease, "opened")
    one.reserve("high", HIGH)
    one.advance(11.0)
    assert (one.record().step, one.record().reason) == (Step.RUNNING, "PREEMPTED")


def test_a_preempted_run_teaches_no_times(one: World) -> None:
    victim = running(one, "low", Request(memory_mib=1000, preemptible=True, workload="w"))
    one.reserve("high", HIGH)
    one.told("h1", victim, "freed")
    assert len(one.machine.state.learned_times) == 0


def test_the_head_of_the_queue_may_preempt_in_spite_of_its_reservation() -> None:
    world = World(bypass_max=0)
    world.host("h1", device("d1"), device("d2", index=1))
    running(world, "kept", Request(sharing=Sharing.EXCLUSIVE))
    victim = running(world, "low")
    world.reserve("high", Request(sharing=Sharing.EXCLUSIVE, preempts=True, priority=1))
    assert notices(world) == [victim.id]
    world.told("h1", victim, "closed")
    assert world.grants() == ["high"]


# ---------------------------------------------------------------------- properties

requests = st.builds(
    Request,
    count=st.sampled_from([1, 1, 1, 2]),
    memory_mib=st.sampled_from([0, 300, 500, 1000]),
    sharing=st.sampled_from([Sharing.SHARED, Sharing.SHARED, Sharing.EXCLUSIVE]),
    priority=st.integers(0, 3),
    preempts=st.booleans(),
    preemptible=st.booleans(),
    placement=st.sampled_from([Placement.PACK, Placement.SAME_HOST]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), requests),
        st.tuples(st.just("open"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 20)),
        st.tuples(st.just("advance"), st.sampled_from([1.0, 12.0])),
    ),
    max_size=25,
)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # `World` is a class
)
@given(steps=steps)
def test_only_leases_that_agreed_end_for_others(steps: list[Any]) -> None:
    world = World(bypass_max=1)
    world.alive["s1"] = None
    world.host("h1", device("a"), device("b", index=1))
    world.host("h2", device("c"))
    asked: dict[str, Any] = {}
    agreed: dict[str, Any] = {}
    for number, (what, detail) in enumerate(steps):
        leases = world.leases
        if what == "reserve":
            asked[f"{number}"] = detail
            world.reserve(f"{number}", detail)
        elif what == "withdraw" and f"{detail}" in asked:
            world.ask(ops.Withdraw, attempt=f"{detail}")
        elif what == "advance":
            for lease in leases:  # accepted grants stay
                world.renew(lease)
            world.advance(detail)
        elif leases and what in ("open", "end"):
            lease = leases[detail % len(leases)]
            change = "opened" if what == "open" else "closed"
            world.told(lease.shares[0].host, lease, change)
        agreed |= {lease.id: asked[lease.attempt] for lease in world.leases}
        for push in world.pushed(host_ops.Preempt):
            assert agreed[push.lease].preemptible
            highest = max((r.priority for r in asked.values() if r.preempts), default=-1)
            assert agreed[push.lease].priority < highest
        for push in world.pushed(host_ops.End):
            if push.reason is EndReason.PREEMPTED and push.lease in agreed:
                assert agreed[push.lease].preemptible

"""The queue: order, service, acceptance, ownerless requests, longest wait, bounded overtaking."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from gpu_scheduler.core import events as on
from gpu_scheduler.model import (
    EndReason,
    Health,
    LeaseLifetime,
    LeaseState,
    Placement,
    Request,
    Sharing,
    Step,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device, world_with


def fill(world: World, whole: Request) -> Any:
    return world.reserve("filler", whole, session="filler").granted.lease


def queue_of(world: World) -> list[tuple[str, int] | Any | tuple[str, None]]:
    world.ask(ops.Queue)
    return [(item.attempt, item.position) for item in world.answer().queue]


def test_order_is_priority_then_age_then_arrival(one: World, whole: Request) -> None:
    lease = fill(one, whole)
    one.reserve("late-a", whole)
    one.now_s += 1
    one.reserve("x2", whole)
    one.reserve("x1", whole)
    one.reserve("urgent", Request(sharing=Sharing.EXCLUSIVE, priority=1))
    assert queue_of(one) == [("urgent", 1), ("late-a", 2), ("x2", 3), ("x1", 4)]
    served = []
    for _ in range(4):
        one.release(lease)
        lease = one.pushes(answers.GrantedPush)[0].granted.lease
        one.renew(lease)
        served.append(lease.attempt)
    assert served == ["urgent", "late-a", "x2", "x1"]


def test_a_release_grants_in_the_same_decision(one: World, whole: Request) -> None:
    lease = fill(one, whole)
    one.reserve("b", whole)
    before = len(one.journal)
    one.release(lease)
    assert one.grants() == ["b"]
    assert len(one.journal) == before + 1  # the end and the next grant are one entry
    kinds = [type(push) for push in one.pushed(object)]
    assert kinds == [host_ops.End, host_ops.InstallPush]  # in this order on the host's channel


def test_a_later_request_that_fits_is_served(world: World, whole: Request) -> None:
    world.host("h", device("a"), device("b", index=1))
    world.reserve("1", Request(memory_mib=600))
    world.reserve("2", Request(memory_mib=600))
    assert world.reserve("big", Request(memory_mib=900)).outcome is answers.Outcome.WAITING
    assert world.reserve("small", Request(memory_mib=300)).outcome is answers.Outcome.GRANTED


def test_busy_when_it_may_not_wait(one: World, whole: Request) -> None:
    fill(one, whole)
    answer = one.reserve("b", whole, wait=False)
    assert answer.outcome is answers.Outcome.BUSY
    assert answer.explanation.counts == {"EXCLUSIVE_TAKEN": 1}
    assert queue_of(one) == []


def test_impossible_in_both_modes(one: World) -> None:
    for wait in (True, False):
        answer = one.reserve("b", Request(memory_mib=1001), wait=wait)
        assert answer.outcome is answers.Outcome.IMPOSSIBLE
        assert "1 × cuda with 1000 MiB" in answer.explanation.sentence
    assert queue_of(one) == []


def test_a_grant_that_is_not_accepted_goes_to_the_next_request(one: World, whole: Request) -> None:
    one.alive |= {"s2": None, "s3": None}
    lease = fill(one, whole)
    one.reserve("b", whole, session="s2")
    one.reserve("c", whole, session="s3")
    one.release(lease, "filler")
    assert one.grants() == ["b"]
    one.alive.pop("s2")  # falls silent
    one.advance(one.budget.accept_s)
    ended = [p for p in one.pushes(answers.LeasePush, "s2") if p.state is LeaseState.ENDED]
    assert [p.reason for p in ended] == [EndReason.NOT_ACCEPTED]
    assert one.grants() == ["c"]
    assert queue_of(one) == [("b", None)]
    # it is back at its place as soon as it shows life
    one.ask(ops.Beat, "s2")
    assert queue_of(one) == [("b", 1)]


def test_an_unresponsive_request_is_served_after_the_next_beat(one: World, whole: Request) -> None:
    lease = fill(one, whole)
    one.reserve("b", whole, session="s2")
    one.release(lease, "filler")
    one.advance(one.budget.accept_s)
    assert one.leases == []
    one.ask(ops.Beat, "s2")
    assert one.grants() == ["b"]


def test_an_accepted_grant_is_kept(one: World, whole: Request) -> None:
    one.alive["s2"] = None
    lease = fill(one, whole)
    one.reserve("b", whole, session="s2")
    one.release(lease)
    one.renew(one.pushes(answers.GrantedPush)[0].granted.lease, "s2")
    one.advance(one.budget.accept_s * 3)
    assert [x.attempt for x in one.leases] == ["b"]


def test_a_reservation_waits_no_longer_than_its_session(one: World, whole: Request) -> None:
    fill(one, whole)
    one.reserve("b", whole, session="s2")
    one.advance(one.budget.client_gone_s)
    assert queue_of(one) == []


def test_max_wait_makes_a_request_busy(one: World, whole: Request) -> None:
    one.alive["s2"] = None
    fill(one, whole)
    one.attempt(request=Request(sharing=Sharing.EXCLUSIVE, max_wait_s=5.0), session="s2")
    one.advance(4.9)
    assert one.record().step is Step.WAITING
    one.advance(0.2)
    [push] = one.pushes(answers.BusyPush, "s2")
    assert (push.holder, push.attempt) == ("job", "job:1")
    assert (one.record().step, one.record().owner) == (Step.RECEIVED, "s2")
    assert queue_of(one) == []


def test_max_wait_restarts_after_a_grant_that_was_not_accepted(one: World, whole: Request) -> None:
    one.alive["s9"] = None
    lease = one.reserve("filler", whole, session="s9").granted.lease
    one.attempt(request=Request(sharing=Sharing.EXCLUSIVE, max_wait_s=7.0), session="s2")
    one.reserve("next", whole, session="s9", hold=LeaseLifetime.DEADLINE, lease_s=900.0)
    one.release(lease, "s9")
    one.advance(one.budget.accept_s)  # silent: its grant passes by
    one.renew(one.machine.state.leases[one.leases[0].id].lease, "s9")
    one.alive["s2"] = None
    one.advance(6.9)
    assert one.record().step is Step.WAITING
    one.advance(0.2)
    assert [p.attempt for p in one.pushes(answers.BusyPush, "s2")] == ["job:1"]


def test_max_wait_does_not_count_without_a_session(one: World, whole: Request) -> None:
    one.alive["s1"] = None
    one.reserve("filler", whole, hold=LeaseLifetime.DEADLINE, lease_s=900.0)
    request = Request(sharing=Sharing.EXCLUSIVE, max_wait_s=15.0)
    one.attempt(request=request, session="doomed")
    one.advance(one.budget.client_gone_s)
    assert one.record().owner is None
    one.advance(10.0)
    assert one.record().step is Step.WAITING
    record = one.record()
    one.ask(ops.Adopt, "s1", holder="job", revision=record.revision, handle=None)
    one.advance(14.0)
    assert one.record().step is Step.WAITING
    one.advance(1.0)
    assert [p.attempt for p in one.pushes(answers.BusyPush, "s1")] == ["job:1"]


def test_forgetting_a_host_refuses_infeasible_requests(world: World) -> None:
    world.alive["s1"] = None
    world.host("small", device("a", 500))
    world.host("big", device("b", 2000))
    world.reserve("filler", Request(memory_mib=2000))
    world.attempt(request=Request(memory_mib=1500))
    world.attempt("other", request=Request(memory_mib=500))
    world.reserve("more", Request(memory_mib=500))
    world.hosts.pop("big")
    assert world.ask(ops.Forget, host="big").code is ErrorCode.CONFLICT  # still up
    assert world.ask(ops.Forget, host="nowhere").code is ErrorCode.NOT_FOUND
    world.advance(world.budget.host_stale_s)
    world.ask(ops.Forget, host="big")
    [push] = world.pushes(answers.ImpossiblePush, "s1")
    assert push.holder == "job"
    assert push.explanation.devices_known == 1
    assert world.record().step is Step.RECEIVED
    assert [p.reason for p in world.pushes(answers.LeasePush)] == [EndReason.HOST_LOST]
    assert world.reserve("again", Request(memory_mib=1500)).outcome is answers.Outcome.IMPOSSIBLE


def test_declared_capacity_counts_as_known(world: World) -> None:
    request = Request(memory_mib=1500)
    assert world.reserve("a", request).outcome is answers.Outcome.IMPOSSIBLE
    world.handle(on.CapacityDeclared, devices=(device("later", 2000),))
    assert world.reserve("b", request).outcome is answers.Outcome.WAITING
    world.host("h", device("later", 2000))
    assert world.grants() == ["b"]


@pytest.mark.parametrize("spoil", ["silent", "drained", "bad"])
def test_unavailable_capacity_means_waiting_not_impossible(one: World, spoil: str) -> None:
    if spoil == "silent":
        one.hosts.clear()
        one.advance(one.budget.host_lost_s + 1)
    elif spoil == "drained":
        one.ask(ops.Drain, host="h1")
    else:
        one.report("h1", device("d1", health=Health.BAD, detail="ECC"))
    answer = one.reserve("b")
    assert answer.outcome is answers.Outcome.WAITING
    one.ask(ops.Undrain, host="h1")
    one.report("h1", device("d1"))
    one.alive["s1"] = None
    one.advance(one.budget.device_clean_s if spoil == "bad" else 0.0)
    assert [x.attempt for x in one.leases] == ["b"]


# ---------------------------------------------------------------------- bounded bypass


@pytest.mark.parametrize("bypass_max", [0, 1, 5])
def test_the_head_is_overtaken_at_most_bypass_max_times(whole: Request, bypass_max: int) -> None:
    world = world_with(device("a"), bypass_max=bypass_max)
    last = world.reserve("first", Request(memory_mib=400)).granted.lease
    assert world.reserve("head", whole).outcome is answers.Outcome.WAITING
    passed = 0
    while True:
        answer = world.reserve(f"small-{passed}", Request(memory_mib=400))
        if answer.outcome is not answers.Outcome.GRANTED:
            break
        passed += 1
        world.release(last)
        last = answer.granted.lease
    assert passed == bypass_max
    assert answer.explanation.counts == {"RESERVED_FOR_HEAD": 1}
    world.release(last)
    assert world.grants() == ["head"]


def test_only_as_many_devices_as_the_head_needs_are_reserved(whole: Request) -> None:
    world = world_with(*(device(f"d{i}", index=i) for i in range(3)), bypass_max=1)
    for i in range(3):
        assert world.reserve(f"f{i}", Request(memory_mib=900)).outcome is answers.Outcome.GRANTED
    world.reserve("head", whole)
    used = []
    for i in range(4):  # one passes, then one device is kept, two still take others
        lease = world.reserve(f"s{i}", Request(memory_mib=50)).granted.lease
        used.append(lease.shares[0].device)
    assert sorted(used) == ["d0", "d0", "d2", "d2"]
    answer = world.reserve("s4", Request(memory_mib=50))
    assert answer.explanation.counts == {"MEMORY": 2, "RESERVED_FOR_HEAD": 1}


def test_another_device_is_reserved_when_the_reserved_one_turns_bad(whole: Request) -> None:
    world = world_with(device("d0"), device("d1", index=1), bypass_max=0)
    for i in range(2):
        world.reserve(f"f{i}", Request(memory_mib=600))
    world.reserve("head", whole)
    assert world.reserve("s0", Request(memory_mib=400)).granted.lease.shares[0].device == "d1"
    world.report("h", device("d0", health=Health.BAD), device("d1", index=1))
    world.report("h", device("d0"), device("d1", index=1))
    world.alive["s1"] = None
    world.advance(world.budget.device_clean_s)
    kept = {d: e.reserved_for for d, e in world.machine.state.inventory.devices.items()}
    # d0 came back empty and went to the head at once: nothing is kept any more
    assert [x.attempt for x in world.leases if x.shares[0].device == "d0"] == ["head"]
    assert kept == {"d0": None, "d1": None}


def test_the_reservation_leaves_a_drained_host(whole: Request) -> None:
    world = World(0)
    world.host("h1", device("a"))
    world.host("h2", device("b"))
    for i in range(2):
        world.reserve(f"f{i}", Request(memory_mib=600))
    world.reserve("head", whole)
    devices = world.machine.state.inventory.devices
    assert {d: e.reserved_for for d, e in devices.items()} == {"a": "head", "b": None}
    world.ask(ops.Drain, host="h1")
    assert {d: e.reserved_for for d, e in devices.items()} == {"a": None, "b": "head"}
    world.ask(ops.Drain, host="h2")
    assert {d: e.reserved_for for d, e in devices.items()} == {"a": None, "b": None}


def test_a_same_host_head_reserves_devices_of_one_host() -> None:
    world = World(0)
    world.host("h1", device("a"))
    world.host("h2", device("b"), device("c", index=1))
    for i in range(3):
        world.reserve(f"f{i}", Request(memory_mib=600 - i))
    gang = Request(count=2, placement=Placement.SAME_HOST, sharing=Sharing.EXCLUSIVE)
    world.reserve("head", gang)
    devices = world.machine.state.inventory.devices
    assert {d: e.reserved_for for d, e in devices.items()} == {"a": None, "b": "head", "c": "head"}


def test_grants_on_devices_infeasible_for_the_head_do_not_count() -> None:
    world = world_with(device("big", 2000), device("small", 100, index=1), bypass_max=1)
    world.reserve("filler", Request(memory_mib=1500))
    world.reserve("head", Request(memory_mib=1000))
    for i in range(5):
        answer = world.reserve(f"s{i}", Request(memory_mib=100))
        assert answer.granted.lease.shares[0].device == "small"
        world.release(answer.granted.lease)
    assert world.machine.state.head_reservation.overtaken == 0


def test_reserved_devices_are_free_when_the_head_leaves(whole: Request) -> None:
    world = world_with(device("a"), bypass_max=0)
    world.reserve("filler", Request(memory_mib=500))
    world.reserve("head", whole, session="doomed")
    world.now_s += 1
    assert world.reserve("b", Request(memory_mib=500)).outcome is answers.Outcome.WAITING
    world.alive["s1"] = None
    world.advance(world.budget.client_gone_s)
    assert world.grants() == ["b"]

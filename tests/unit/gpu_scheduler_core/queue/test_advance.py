"""Leases granted ahead: when, for whom, and what becomes of them.

Jobs of workload `w` execute for 10 s; their functions start in 2 s, as learned from earlier jobs.
"""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core.state.learned_times import Times, WorkloadOn
from gpu_scheduler.model import (
    Advance,
    Device,
    EndReason,
    Health,
    Lease,
    LeaseState,
    Request,
    Sharing,
    Step,
)
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import answers, ops
from tests.advance_world import (
    EXECUTION_S,
    START_S,
    TERMS,
    WHOLE,
    ahead_of,
    asked,
    finished,
    installs,
    learned,
    lease_of,
    started,
    step,
)
from tests.scheduler_world import World, device


def test_the_next_request_is_granted_when_the_lease_ends_within_its_start() -> None:
    world = learned()
    running = started(world, "first")
    asked(world, "second")
    world.advance(EXECUTION_S - START_S - 0.1)
    assert step(world, "second") is Step.WAITING
    world.advance(0.2)
    lease = lease_of(world, "second")
    assert (lease.after, lease.state) == ((running.id,), LeaseState.RESERVED)
    assert lease.fence > running.fence
    assert world.record("second").leases[-1].ahead


def test_it_is_booked_in_the_transaction_that_frees_its_shares() -> None:
    world = learned()
    running, ahead = ahead_of(world)
    world.told("h", ahead, "knocked")
    finished(world, running, "first", START_S)
    assert installs(world) == [(ahead.id, False)]
    assert not lease_of(world, "second").after
    kept = world.record("second").leases[-1]
    assert kept.booked_s is not None
    assert kept.booked_s > kept.granted_s


def test_its_start_is_learned_without_its_wait() -> None:
    world = learned()
    running, ahead = ahead_of(world)
    world.advance(1.0)
    world.told("h", ahead, "knocked")
    finished(world, running, "first", 4.0)
    world.told("h", ahead, "opened", waited_s=4.0)
    finished(world, ahead, "second")
    times = world.machine.state.learned_times.of("default", "w", "M")
    assert times is not None
    assert times.starts_s[-1] == pytest.approx(1.0)
    assert times.executions_s[-1] == pytest.approx(EXECUTION_S)


@pytest.mark.parametrize(
    ("sandboxes", "start_s"),
    [  # of the starts learned from now on: (start, in a new sandbox); the start that is expected
        ([(2.0, False)] * 9, 2.0),
        ([(2.0, False)] * 8 + [(6.0, True)], 6.0),  # one in nine: more than may come late
        ([(2.0, False)] * 19 + [(6.0, True)], 2.0),  # one in twenty comes late
        ([(6.0, True)] * 3 + [(2.0, False)] * 9, 6.0),  # a quarter, the newest are not
        ([(6.0, None)] * 3 + [(2.0, None)] * 20, 2.0),  # of an older function: the newest count
    ],
)
def test_a_grant_ahead_comes_before_the_start_in_a_new_sandbox_if_few_may_be_late(
    sandboxes: list[tuple[float, bool | None]], start_s: float
) -> None:
    world = learned()
    for number, (after_s, new) in enumerate(sandboxes):
        lease = started(world, f"more{number}", start_s=after_s, new_sandbox=new)
        finished(world, lease, f"more{number}")
    started(world, "first")
    asked(world, "second")
    world.advance(EXECUTION_S - start_s - 0.1)
    assert step(world, "second") is Step.WAITING
    world.advance(0.2)
    assert lease_of(world, "second").after


@pytest.mark.parametrize(
    ("request_", "parameters", "advance"),
    [
        (replace(WHOLE, advance=None), {}, True),
        (WHOLE, {"advance_s_max": 0.0}, True),
        (WHOLE, {}, False),
        (replace(WHOLE, workload="unknown"), {}, True),
    ],
    ids=["no terms", "switched off", "an older host", "nothing learned"],
)
def test_it_does_not_happen(request_: Request, parameters: dict[str, Any], advance: bool) -> None:
    world = learned(**parameters)
    world.host("h", device("d"), incarnation="one", advance=advance)
    started(world, "first")
    asked(world, "second", request_)
    world.advance(EXECUTION_S + 5.0)
    assert step(world, "second") is Step.WAITING


def test_the_policys_next_request_alone_is_granted_ahead() -> None:
    world = learned()
    started(world, "first")
    asked(world, "older", replace(WHOLE, advance=None))
    asked(world, "younger")
    world.advance(EXECUTION_S)
    assert [step(world, job) for job in ("older", "younger")] == [Step.WAITING, Step.WAITING]


def test_an_overrun_withdraws_after_its_wait_and_the_request_keeps_its_place() -> None:
    world = learned()
    _, ahead = ahead_of(world)
    since_s = world.record("second").waiting_since_s
    world.advance(TERMS.wait_s + 0.1)
    ended = [push for push in world.pushes(answers.LeasePush) if push.lease == ahead.id]
    assert [push.reason for push in ended] == [EndReason.WITHDRAWN]
    revision = world.record("second").revision
    world.ask(ops.FailAttempt, holder="second", revision=revision, reason="WITHDRAWN")
    answer = asked(world, "second", n=2)
    assert answer.outcome is answers.Outcome.WAITING
    assert world.record("second").waiting_since_s == since_s


def gone_bad(world: World) -> None:
    bad = device("d", health=Health.BAD)
    world.report("h", bad)


def drained(world: World) -> None:
    world.ask(ops.Drain, host="h", device=None, revoke=False)


@pytest.mark.parametrize("cause", [gone_bad, drained])
def test_a_device_that_leaves_withdraws_what_waits_for_it(cause: Any) -> None:
    world = learned()
    _, ahead = ahead_of(world)
    cause(world)
    assert ahead.id not in world.machine.state.leases
    assert world.record("second").reason == EndReason.WITHDRAWN


def test_a_lost_host_is_not_the_fault_of_the_attempt_that_waits() -> None:
    world = learned()
    ahead_of(world)
    del world.hosts["h"]
    world.advance(world.budget.host_lost_s + 1.0)
    assert world.record("first").reason == EndReason.HOST_LOST
    assert world.record("second").reason == EndReason.WITHDRAWN


def test_a_session_that_waits_is_booked_before_an_older_lease_without_one() -> None:
    world = learned(policy="fifo")
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    world.told("h", younger, "knocked")
    finished(world, running, "first", START_S)
    assert lease_of(world, "second").after
    assert not lease_of(world, "third").after
    assert older.fence < younger.fence


def granted_ahead(world: World, job: str) -> Lease:
    """Another one behind: the starts of `w` have become longer than its executions."""
    times = world.machine.state.learned_times
    slow = Times(executions_s=(1.0,), starts_s=(20.0,), runs=1)
    times.restore(WorkloadOn("default", "w", "M"), slow)
    asked(world, job)
    world.advance(0.1)
    lease = lease_of(world, job)
    assert lease.after
    world.renew(lease)
    world.staged(lease)
    return lease_of(world, job)


def test_a_booked_lease_without_a_session_gives_way_to_one_that_waits() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    finished(world, running, "first", START_S)
    assert not lease_of(world, "second").after
    world.told("h", younger, "knocked")
    assert installs(world) == [(older.id, True), (younger.id, False)]
    assert lease_of(world, "second").after == (younger.id,)
    world.told("h", younger, "opened", waited_s=0.5)
    world.told("h", older, "knocked")
    finished(world, lease_of(world, "third"), "third", 1.0)
    assert not lease_of(world, "second").after


def test_a_session_that_opened_first_gets_its_shares_back() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    finished(world, running, "first", START_S)
    world.told("h", younger, "knocked")
    world.told("h", older, "opened", waited_s=0.0)
    assert lease_of(world, "second").state is LeaseState.ACTIVE
    assert lease_of(world, "third").after == (older.id,)


@pytest.mark.parametrize("open_one", ["second", "third"])
def test_an_open_session_that_the_hello_names_does_not_give_way(open_one: str) -> None:
    """It opened without a link to the scheduler, or to the leader before this one."""
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    if open_one == "third":
        world.told("h", younger, "knocked")
    finished(world, running, "first", START_S)
    assert not lease_of(world, open_one).after
    both = (older.id, younger.id)
    world.start()
    world.host("h", device("d"), advance=True, installed=both, waiting=both)
    assert not lease_of(world, open_one).after


def test_a_session_whose_opening_was_not_reported_frees_its_shares() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    finished(world, running, "first", START_S)
    world.told("h", younger, "knocked")
    world.told("h", older, "freed", loading_s=0.0, succeeded=True)
    assert lease_of(world, "second").state is LeaseState.ENDING
    assert not lease_of(world, "third").after


def test_a_quota_that_its_predecessor_uses_up_is_enough() -> None:
    world = learned(quotas={"default": Quota(devices=1)})
    running, ahead = ahead_of(world)
    assert ahead.after == (running.id,)
    finished(world, running, "first", START_S)
    assert not lease_of(world, "second").after


def test_a_quota_that_became_too_small_withdraws() -> None:
    world = learned(quotas={"default": Quota(memory_mib=2000)})
    running, ahead = ahead_of(world)
    world.ask(ops.SetParameter, name="quota.default.memory_mib", value=500)
    finished(world, running, "first", START_S)
    assert ahead.id not in world.machine.state.leases
    assert world.record("second").reason == EndReason.WITHDRAWN


def test_no_other_one_waits_for_a_lease_that_overran() -> None:
    world = learned()
    ahead_of(world)
    asked(world, "third")
    world.advance(TERMS.wait_s + 1.0)
    assert [step(world, job) for job in ("second", "third")] == [Step.STAGED, Step.WAITING]
    assert world.record("second").reason == EndReason.WITHDRAWN


def test_a_restart_keeps_leases_ahead() -> None:
    world = learned()
    running, ahead = ahead_of(world)
    world.start()
    world.host("h", device("d"), incarnation="one", advance=True, installed=(running.id, ahead.id))
    assert lease_of(world, "second").after == (running.id,)
    finished(world, running, "first", START_S)
    assert not lease_of(world, "second").after


def test_a_snapshot_keeps_leases_ahead_and_booked_ones() -> None:
    world = learned()
    running, _ = ahead_of(world)
    for _ in range(2):
        copy = World()
        copy.policies = world.policies
        copy.journal = list(world.machine.snapshot())
        rebuilt = copy.replayed()
        assert {k: v.lease for k, v in rebuilt.state.leases.items()} == {
            k: v.lease for k, v in world.machine.state.leases.items()
        }
        assert rebuilt.state.ahead == world.machine.state.ahead
        assert [e.booked_s for e in rebuilt.state.leases.values()] == [
            e.booked_s for e in world.machine.state.leases.values()
        ]
        assert [(e.waited_s, e.unbooked_s) for e in rebuilt.state.leases.values()] == [
            (e.waited_s, e.unbooked_s) for e in world.machine.state.leases.values()
        ]
        if running.id in world.machine.state.leases:
            finished(world, running, "first", START_S)
            world.told("h", lease_of(world, "second"), "opened", waited_s=1.5)


def test_a_reservation_that_is_withdrawn_is_in_its_place_again() -> None:
    world = learned()
    started(world, "first")
    world.reserve("own", WHOLE)
    world.advance(EXECUTION_S - START_S)
    lease = next(lease for lease in world.leases if lease.attempt == "own")
    since_s = world.machine.state.leases[lease.id].waiting_since_s
    world.renew(lease)
    world.advance(TERMS.wait_s + 0.1)
    waiting = world.machine.state.queue.entries["own"]
    assert (waiting.waiting_since_s, waiting.session) == (since_s, "s1")


def test_requests_above_their_quota_whose_session_is_gone_are_passed_over() -> None:
    world = learned(quotas={"default": Quota(devices=1)})
    long = Times(executions_s=(100.0,), starts_s=(START_S,), runs=1)
    world.machine.state.learned_times.restore(WorkloadOn("default", "w", "M"), long)
    started(world, "first")
    for job in ("second", "third"):
        world.attempt(job, request=WHOLE, session="s2")
    world.advance(world.budget.client_gone_s + 1.0)
    assert world.record("second").owner is None
    world.advance(100.0)
    assert step(world, "second") is Step.WAITING


# ---------------------------------------------------------------------- shared devices, two tenants

FAST = Times(executions_s=(10.0,), starts_s=(START_S,), runs=1)
SLOW = Times(executions_s=(1.0,), starts_s=(20.0,), runs=1)
M = ("M",)


def share(memory_mib: int, advance: Advance | None = TERMS) -> Request:
    return Request(memory_mib=memory_mib, workload="w", advance=advance)


def teach(world: World, times: Times, *tenants: str) -> None:
    for tenant in tenants or ("default",):
        world.machine.state.learned_times.restore(WorkloadOn(tenant, "w", "M"), times)


def taught(*devices: Device, **parameters: Any) -> World:
    world = World(**parameters)
    world.host("h", *(devices or (device("d"),)), advance=True)
    world.alive["s1"] = None
    teach(world, FAST)
    return world


def opened(world: World, job: str, request: Request) -> Lease:
    lease: Lease = asked(world, job, request).granted.lease
    world.staged(lease)
    world.told("h", lease, "opened", waited_s=0.0)
    return lease


def ahead(world: World, job: str, request: Request) -> Lease:
    asked(world, job, request)
    world.advance(0.1)
    lease = lease_of(world, job)
    assert lease.after
    world.renew(lease)
    world.staged(lease)
    return lease_of(world, job)


def freed(world: World, lease: Lease) -> None:
    world.told("h", lease, "freed", succeeded=True)


def free_mib(world: World) -> int:
    return world.machine.state.inventory.state_of(DeviceId("d")).free_mib


def test_a_session_gets_its_shares_back_from_the_lease_that_took_them_alone() -> None:
    world = taught()
    first = opened(world, "first", share(800))
    other = asked(world, "other", share(200, None)).granted.lease
    world.staged(other)
    teach(world, SLOW)
    x, y = ahead(world, "x", share(800)), ahead(world, "y", share(800))
    freed(world, first)
    world.told("h", y, "knocked")
    world.told("h", x, "opened", waited_s=0.0)
    assert lease_of(world, "x").state is LeaseState.ACTIVE
    assert lease_of(world, "y").after == (x.id,)
    assert not lease_of(world, "other").after
    assert free_mib(world) == 0


def test_what_a_larger_lease_leaves_when_it_gives_way_is_served() -> None:
    world = taught()
    opened(world, "beside", share(200, None))
    first = opened(world, "first", share(800))
    teach(world, SLOW)
    ahead(world, "x", share(800))
    y = ahead(world, "y", share(200))
    asked(world, "waits", share(500, None))
    freed(world, first)
    assert step(world, "waits") is Step.WAITING
    world.told("h", y, "knocked")
    assert step(world, "waits") is Step.RESERVED


def test_a_lease_gives_way_to_none_above_its_quota() -> None:
    devices = device("d"), device("e", index=1, model="N")
    world = taught(*devices, quotas={"t2": Quota(devices=1)})
    teach(world, FAST, "t1", "t2")
    block = Request(sharing=Sharing.EXCLUSIVE, tenant="t3", models=("N",))
    blocking = opened(world, "blocking", block)
    of_t1, of_t2 = (replace(WHOLE, tenant=name, models=M) for name in ("t1", "t2"))
    first = opened(world, "first", of_t1)
    asked(world, "x", of_t1)
    world.advance(8.0)
    world.renew(lease_of(world, "x"))
    world.staged(lease_of(world, "x"))
    teach(world, SLOW, "t1", "t2")
    y = ahead(world, "y", of_t2)
    asked(world, "z", replace(block, tenant="t2"))
    freed(world, blocking)
    freed(world, first)
    world.told("h", y, "knocked")
    assert world.machine.state.tenants.held["t2"].devices == 1
    assert lease_of(world, "y").after


def test_a_lease_that_gave_way_waits_again() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    world.advance(TERMS.wait_s - 2.0)
    freed(world, running)
    world.advance(1.5)
    world.told("h", younger, "knocked")
    world.advance(5.0)
    assert lease_of(world, "second").after == (younger.id,)
    assert not world.machine.state.leases[younger.id].overruns
    assert older.id in world.machine.state.leases


def test_the_limit_of_leases_counts_those_ahead() -> None:
    world = taught(leases_max=2)
    teach(world, SLOW)
    opened(world, "first", WHOLE)
    for number in range(4):
        asked(world, f"job{number}", WHOLE)
    world.advance(1.0)
    assert len(world.leases) == 2


def test_no_timer_outlives_its_lease() -> None:
    world = taught()
    teach(world, Times(executions_s=(36_000.0,), starts_s=(START_S,), runs=1))
    freed(world, opened(world, "first", WHOLE))
    timers = world.machine.state.timers
    next_s = timers.next_s()
    assert next_s is None or next_s < world.now_s + 3600.0


def test_a_device_that_its_own_lease_takes_withdraws_no_other() -> None:
    world = taught(device("d"), device("e", index=1))
    opened(world, "a", WHOLE)
    world.advance(9.0)
    b = opened(world, "b", WHOLE)
    x = ahead(world, "x", WHOLE)
    world.advance(8.5)
    y = ahead(world, "y", WHOLE)
    freed(world, b)
    assert not lease_of(world, "y").after
    assert lease_of(world, "x").after
    assert x.fence < y.fence

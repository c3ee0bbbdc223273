"""Promises in the scheduler's core: admission, bookings, refusals, and what comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from gpu_scheduler.model import DeviceKind, EndReason, Request
from gpu_scheduler.promises import MissCause, PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with

WHOLE = Request(compute_guarantee_pct=100, memory_mib=100)


def step(
    name: str, execution_s: float, *after: str, request: Request = WHOLE, **times: Any
) -> PromisedStep:
    stated = {"*": StepTimes(execution_s=execution_s, **times)}
    return PromisedStep(name=name, job=name, request=request, after=after, times=stated)


def admit(world: World, run: str, *steps: PromisedStep, **slo: Any) -> Any:
    quote = slo.pop("quote", False)
    return world.ask(ops.Admit, run=run, steps=steps, slo=Slo(**slo), quote=quote)


@pytest.fixture
def world() -> World:
    made = world_with(device("d"), policy="slo")
    made.alive["s1"] = None
    return made


def test_a_run_is_promised_and_its_steps_get_their_device_at_their_start(world: World) -> None:
    answer = admit(world, "r", step("a", 2.0), step("b", 3.0, "a"), latency_s=6.0)
    assert answer.outcome is answers.Outcome.GRANTED, answer
    assert [(one.name, one.device, one.start_in_s, one.end_in_s) for one in answer.steps] == [
        ("a", "d", 0.0, 2.0),
        ("b", "d", 2.0, 5.0),
    ]
    lease = world.granted("a", WHOLE)
    world.advance(2.0)
    world.release(lease)
    second = world.granted("b", WHOLE)
    world.advance(3.0)
    world.release(second)
    assert dict(world.machine.state.memory.values) == {"count/given": 1, "count/kept": 1}


def test_a_refusal_changes_nothing_and_names_the_frontier(world: World) -> None:
    before = world.machine.snapshot()
    journal = len(world.journal)
    answer = admit(world, "r", step("a", 2.0), step("b", 3.0, "a"), latency_s=4.0)
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert [(one.latency_s, one.cost_usd) for one in answer.frontier] == [(5.0, 0.0)]
    assert answer.why == "no placement meets 4 s; at best, on free devices: 5 s for $0"
    assert world.machine.snapshot() == before
    assert len(world.journal) == journal


def test_a_booked_device_is_busy_with_the_earliest_end(world: World) -> None:
    admit(world, "r", step("a", 2.0), latency_s=6.0)
    before = world.machine.snapshot()
    answer = admit(world, "q", step("b", 2.0), latency_s=3.0)
    assert (answer.outcome, answer.end_in_s) == (answers.Outcome.BUSY, 4.0)
    assert world.machine.snapshot() == before
    assert admit(world, "q", step("b", 2.0), latency_s=4.0).outcome is answers.Outcome.GRANTED


def test_a_quote_books_nothing(world: World) -> None:
    before = world.machine.snapshot()
    answer = admit(world, "r", step("a", 2.0, cost_usd=0.5), latency_s=6.0, quote=True)
    assert (answer.outcome, answer.end_in_s, answer.cost_usd) == (
        answers.Outcome.GRANTED,
        2.0,
        0.5,
    )
    assert world.machine.snapshot() == before


def test_a_promise_is_repeated_for_its_run(world: World) -> None:
    first = admit(world, "r", step("a", 2.0), latency_s=6.0)
    journal = len(world.journal)
    again = admit(world, "r", step("a", 2.0), latency_s=6.0)
    assert again.steps == first.steps
    assert len(world.journal) == journal
    taken = admit(world, "other", step("a", 2.0), latency_s=6.0)
    assert taken.code is ErrorCode.CONFLICT


def test_ordinary_requests_run_in_front_of_bookings_and_never_into_them(world: World) -> None:
    busy = world.granted("now", Request(compute_guarantee_pct=100, lease_s=5.0), lease_s=5.0)
    admit(world, "r", step("a", 2.0), latency_s=20.0)
    world.release(busy)  # the booking begins in 5 s
    assert world.reserve("unknown", WHOLE).outcome is answers.Outcome.WAITING
    explained = world.ask(ops.Explain, attempt="unknown", holder=None, request=None).explanation
    assert "it states no length" in explained.sentence
    assert world.reserve("long", WHOLE, lease_s=6.0).outcome is answers.Outcome.WAITING
    short = world.granted("short", WHOLE, lease_s=4.0)
    world.release(short)
    booked = world.granted("a", WHOLE)  # early: it is in no one's way
    world.advance(2.0)
    world.release(booked)
    assert world.grants() == ["unknown"]


def test_a_step_that_was_not_requested_frees_its_device_and_misses(world: World) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a", 2.0), latency_s=6.0)
    world.reserve("other", WHOLE)
    seen = world.advance(2.5)
    assert [lease.attempt for lease in world.leases] == ["other"]
    world.actions = seen
    assert [one.cause for one in world.pushes(answers.PromisePush)] == [MissCause.NOT_REQUESTED]
    assert world.machine.state.memory.values["count/missed_NOT_REQUESTED"] == 1


def test_a_missed_promise_is_an_event_with_its_cause(world: World) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a", 2.0), latency_s=2.0)
    lease = world.granted("a", WHOLE)
    world.advance(3.0)
    world.ask(ops.Release, lease=lease.id, reason=EndReason.RELEASED)
    pushes = world.pushes(answers.PromisePush)
    assert [(one.run, one.cause, one.late_s) for one in pushes] == [("r", MissCause.LATE, 1.0)]


def test_a_lost_host_is_no_wrong_promise(world: World) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a", 2.0), latency_s=60.0)
    lease = world.granted("a", WHOLE)
    world.told("h", lease, "opened")
    world.hosts.clear()
    world.advance(30.0)
    pushes = world.pushes(answers.PromisePush)
    assert [(one.run, one.cause) for one in pushes] == [("r", MissCause.HOST_LOST)]
    assert dict(world.machine.state.memory.values) == {
        "count/given": 1,
        "count/missed_HOST_LOST": 1,
    }


def test_a_waived_promise_frees_its_devices(world: World) -> None:
    admit(world, "r", step("a", 2.0), latency_s=2.0)
    assert world.ask(ops.Waive, run="r") == answers.Done()
    assert admit(world, "q", step("b", 2.0), latency_s=2.0).outcome is answers.Outcome.GRANTED
    journal = len(world.journal)
    assert world.ask(ops.Waive, run="r") == answers.Done()
    assert len(world.journal) == journal


def test_another_policy_gives_no_promises_and_withdraws_those_that_were_given(
    world: World,
) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a", 2.0), latency_s=2.0)
    world.ask(ops.SetParameter, name="policy", value="fifo")
    assert [one.cause for one in world.pushes(answers.PromisePush)] == [MissCause.WITHDRAWN]
    refused = admit(world, "q", step("b", 2.0), latency_s=2.0)
    assert refused.code is ErrorCode.CONFLICT
    assert "policy fifo gives no promises" in refused.message


def test_unknown_times_are_refused_with_a_reason(world: World) -> None:
    unknown = PromisedStep(name="a", job="a", request=WHOLE)
    answer = admit(world, "r", unknown, latency_s=2.0)
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert answer.why.endswith("state its times")
    elsewhere = PromisedStep(
        name="a", job="a", request=WHOLE, times={"vpu": StepTimes(execution_s=1.0)}
    )
    assert "no times are stated" in admit(world, "r", elsewhere, latency_s=2.0).why


def test_learned_times_are_enough(world: World) -> None:
    request = Request(compute_guarantee_pct=100, memory_mib=100, workload="w")
    for number in range(5):
        lease = world.granted(f"x{number}", request)
        world.told("h", lease, "opened")
        world.advance(2.0)
        world.told("h", lease, "closed", loading_s=0.0)
    learned = PromisedStep(name="a", job="a", request=request)
    answer = admit(world, "r", learned, latency_s=2.5)
    assert answer.outcome is answers.Outcome.GRANTED, answer
    assert answer.end_in_s == pytest.approx(2.0)


def test_a_fast_or_a_cheap_device_is_booked_as_the_objectives_ask() -> None:
    fast = device("gpu", index=0, model="G")
    cheap = device("cpu", index=1, kind=DeviceKind.CPU, model="C")
    world = world_with(fast, cheap, policy="slo")
    times = {
        "cuda": StepTimes(execution_s=1.0, cost_usd=5.0),
        "cpu": StepTimes(execution_s=4.0, cost_usd=1.0),
    }

    def on(job: str, **slo: Any) -> Any:
        one = PromisedStep(name="s", job=job, request=WHOLE, times=times)
        answer = admit(world, job, one, **slo)
        return [planned.device for planned in answer.steps] or answer.why

    assert on("a", latency_s=2.0) == ["gpu"]
    assert on("b", cost_usd=2.0) == ["cpu"]
    refused = on("c", latency_s=2.0, cost_usd=2.0)
    assert refused == (
        "no placement meets 2 s and $2; at best, on free devices: 1 s for $5 or 4 s for $1"
    )


def test_a_graph_with_a_cycle_is_refused(world: World) -> None:
    answer = admit(world, "r", step("a", 1.0, "b"), step("b", 1.0, "a"), latency_s=9.0)
    assert answer.code is ErrorCode.INVALID
    assert "steps wait for each other" in answer.message
    assert admit(world, "r", step("a", 1.0, "x"), latency_s=9.0).code is ErrorCode.INVALID


def test_a_restart_keeps_bookings(world: World) -> None:
    admit(world, "r", step("a", 2.0), step("b", 2.0, "a"), latency_s=9.0)
    before = dict(world.machine.state.memory.values)
    world.start()
    assert dict(world.machine.state.memory.values) == before
    world.host("h", device("d"))
    world.reserve("other", WHOLE)
    assert world.leases == []
    assert world.granted("a", WHOLE).attempt == "a"


def test_a_job_is_served_by_the_name_of_its_holder(world: World) -> None:
    admit(world, "r", step("job", 2.0), latency_s=9.0)
    world.reserve("other", WHOLE)
    answer = world.attempt("job", request=WHOLE)
    assert answer.outcome is answers.Outcome.GRANTED


def test_a_step_that_misses_its_start_keeps_its_place_until_another_run_is_behind_it(
    world: World,
) -> None:
    admit(world, "r", step("a", 2.0), step("b", 3.0, "a"), latency_s=9.0)
    world.advance(0.5)
    lease = world.granted("a", WHOLE)
    admit(world, "q", step("c", 2.0), latency_s=12.0)
    world.advance(2.0)
    world.release(lease)
    late = world.reserve("b", WHOLE, wait=True)
    assert late.outcome is answers.Outcome.WAITING, "the other run's step is booked behind it"


def test_a_step_that_is_not_needed_gives_its_booking_back_and_its_run_stays_promised(
    world: World,
) -> None:
    admit(world, "r", step("a", 2.0), step("b", 3.0, "a"), step("c", 4.0, "b"), latency_s=9.0)
    lease = world.granted("a", WHOLE)
    world.ask(ops.Waive, run="r", job="a")
    world.ask(ops.Waive, run="other", job="b")
    assert admit(world, "q", step("d", 3.0), latency_s=6.0).outcome is answers.Outcome.BUSY
    for _ in range(2):
        world.ask(ops.Waive, run="r", job="b")
    assert admit(world, "q", step("d", 3.0), latency_s=6.0).outcome is answers.Outcome.GRANTED
    world.advance(2.0)
    world.release(lease)
    other = world.granted("d", WHOLE)
    world.advance(3.0)
    world.release(other)
    last = world.granted("c", WHOLE)
    world.advance(4.0)
    world.release(last)
    counts = {"count/given": 2, "count/kept": 2}
    assert dict(world.machine.state.memory.values) == counts

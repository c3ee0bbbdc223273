"""Bookings among other requests: batches, warm workers, overruns, steps that lost their place."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.queue import promising
from gpu_scheduler.core.queue.bookings import Booking, read_booking, read_run
from gpu_scheduler.model import Batch, EndReason, Request
from gpu_scheduler.promises import MissCause, PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with

WHOLE = Request(compute_guarantee_pct=100, memory_mib=100)
TWO_SECONDS = {"*": StepTimes(execution_s=2.0)}
BATCHED = Request(
    compute_guarantee_pct=10, memory_mib=10, workload="w", batch=Batch(joins=True, size_max=8)
)


def step(name: str, *after: str, request: Request = WHOLE, **times: Any) -> PromisedStep:
    stated = {"*": StepTimes(**{"execution_s": 2.0, **times})}
    return PromisedStep(name=name, job=name, request=request, after=after, times=stated)


def batched(name: str, *after: str) -> PromisedStep:
    return step(name, *after, request=BATCHED, batch_item_s=0.5)


def admit(world: World, run: str, *steps: PromisedStep, latency_s: float = 60.0) -> Any:
    return world.ask(ops.Admit, run=run, steps=steps, slo=Slo(latency_s=latency_s))


def busy_for(world: World, seconds: float, name: str = "now") -> Any:
    return world.granted(name, WHOLE, lease_s=seconds)


@pytest.fixture
def world() -> World:
    made = world_with(device("d"), policy="slo")
    made.alive["s1"] = None
    return made


def test_members_join_a_batch_until_one_more_would_break_the_tightest_promise(
    world: World,
) -> None:
    busy_for(world, 5.0)
    ends = [admit(world, "tight", batched("a"), latency_s=8.0).end_in_s]
    ends += [admit(world, f"r{name}", batched(name)).end_in_s for name in ("b", "c", "d")]
    assert ends == pytest.approx([7.0, 7.5, 8.0, 7.0])
    again = admit(world, "tight", batched("a"), latency_s=8.0)
    assert again.steps[0].end_in_s == pytest.approx(8.0)  # each member ends with the batch


def test_no_member_joins_a_batch_that_the_next_step_of_a_run_waits_for(world: World) -> None:
    busy_for(world, 5.0)
    admit(world, "r", batched("a"), step("b", "a"))
    assert admit(world, "q", batched("c")).end_in_s == pytest.approx(7.0)


def test_a_request_for_several_devices_runs_in_front_of_the_bookings_of_each() -> None:
    world = world_with(device("d"), device("e", index=1), policy="slo")
    busy = [busy_for(world, 5.0, name) for name in ("x", "y")]
    admit(world, "r", step("a"))
    for lease in busy:
        world.release(lease)
    both = Request(count=2, compute_guarantee_pct=100, memory_mib=100)
    assert world.reserve("long", both, lease_s=6.0).outcome is answers.Outcome.WAITING
    assert world.granted("short", both, lease_s=4.0).attempt == "short"


def test_a_request_evicts_no_worker_that_a_booking_counts_on(world: World) -> None:
    busy = busy_for(world, 5.0)
    own = Request(compute_guarantee_pct=100, memory_mib=100, workload="w")
    steps = step("a", request=own, loading_s=1.0), step("b", "a", request=own, loading_s=1.0)
    assert [one.warm for one in admit(world, "r", *steps).steps] == [False, True]
    world.release(busy)
    large = Request(compute_guarantee_pct=100, memory_mib=950)
    assert world.reserve("large", large, lease_s=2.0).outcome is answers.Outcome.WAITING
    world.granted("small", WHOLE, lease_s=2.0)


def test_a_plan_counts_with_an_overrun_and_with_the_booking_behind_it(world: World) -> None:
    admit(world, "r", step("a"))
    world.granted("a", WHOLE)
    world.advance(3.0)
    assert admit(world, "q", step("b")).end_in_s == pytest.approx(2.2)  # a tenth of its length
    world.reserve("b", WHOLE)
    world.advance(1.0)
    assert admit(world, "p", step("c")).end_in_s == pytest.approx(4.0)  # b first, from now on


def test_a_step_that_is_requested_after_its_start_delays_no_other(world: World) -> None:
    admit(world, "r", step("a"))
    admit(world, "q", step("b"), latency_s=4.0)
    world.advance(1.0)
    assert world.reserve("a", WHOLE).outcome is answers.Outcome.WAITING
    world.advance(1.0)
    assert world.granted("b", WHOLE).attempt == "b"


def test_a_step_that_failed_has_lost_its_place(world: World) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a"), latency_s=2.0)
    lease = world.granted("a", WHOLE)
    world.ask(ops.Release, lease=lease.id, reason=EndReason.SESSION_LOST)
    assert admit(world, "q", step("b"), latency_s=2.0).outcome is answers.Outcome.GRANTED
    run = read_run(str(world.machine.state.memory.values["run/r"]))
    assert run.cause == MissCause.FAILED


def test_a_lease_that_nobody_accepts_is_no_execution(world: World) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("a"))
    world.attempt("a", request=WHOLE)
    seen = world.advance(200.0)
    world.actions = seen
    assert world.leases == []
    assert world.machine.state.memory.values.get("count/missed_FAILED") is None


def test_a_refusal_draws_nothing() -> None:
    world = world_with(device("d"), device("e", index=1), policy="slo")
    world.ask(ops.SetParameter, name="policy.slo.sample", value=1)
    for name in ("x", "y"):
        world.granted(name, WHOLE)
    before = world.machine.snapshot()
    assert admit(world, "r", step("a")).outcome is answers.Outcome.BUSY
    assert world.machine.snapshot() == before


def booking_of(world: World, job: str) -> Booking:
    return read_booking(str(world.machine.state.memory.values[f"book/{job}"]))


def test_a_step_may_end_no_later_than_the_next_one_of_its_run_begins_its_way(
    world: World,
) -> None:
    second = PromisedStep(
        name="b", job="b", request=WHOLE, after=("a",), times=TWO_SECONDS, way_s=1.5
    )
    third = PromisedStep(name="c", job="c", request=Request(count=0), after=("b",), way_s=4.0)
    admit(world, "r", step("a"), second, third, latency_s=20.0)
    begun_s = booking_of(world, "a").start_s
    assert booking_of(world, "a").latest_s - begun_s == pytest.approx(2.0)
    assert booking_of(world, "b").latest_s - begun_s == pytest.approx(16.0)
    assert [booking_of(world, one).final for one in "ab"] == [False, True]


def test_a_late_booking_holds_no_device_and_a_running_one_does(world: World) -> None:
    admit(world, "r", step("a"))
    lease = world.granted("a", WHOLE)
    world.advance(1.0)
    assert admit(world, "q", step("b")).end_in_s == pytest.approx(3.0)  # a runs for 1 s more
    world.ask(ops.Release, lease=lease.id, reason=EndReason.SESSION_LOST)
    assert booking_of(world, "a").late
    assert admit(world, "p", step("c", execution_s=1.0)).end_in_s == pytest.approx(1.0)


def test_a_late_step_that_runs_counts_until_the_end_of_its_time(world: World) -> None:
    busy = busy_for(world, 5.0)
    admit(world, "r", step("a"), latency_s=30.0)
    other = PromisedStep(name="o", job="o", request=WHOLE, times=TWO_SECONDS)
    admit(world, "other", other, latency_s=30.0)
    world.advance(5.5)
    world.reserve("a", WHOLE)  # after its start, with another run behind: it has lost its place
    world.release(busy)
    assert not world.leases
    world.ask(ops.Waive, run="other")
    assert [lease.attempt for lease in world.leases] == ["a"]
    assert booking_of(world, "a").late
    assert booking_of(world, "a").granted
    world.advance(0.5)
    assert admit(world, "q", step("b")).end_in_s == pytest.approx(3.5)


def test_a_step_begins_early_only_where_the_worker_of_a_later_one_is_not_idle_for_too_long() -> (
    None
):
    own = Request(compute_guarantee_pct=100, memory_mib=100, workload="w")
    for idle_s, early in ((60.0, True), (3.0, False)):
        world = world_with(device("d"), policy="slo", warm_idle_s_max=idle_s)
        world.alive["s1"] = None
        busy = busy_for(world, 5.0)
        first = step("a", request=own, loading_s=1.0)
        admit(world, "r", first, step("b", "a", request=own, loading_s=1.0))
        assert booking_of(world, "b").warm
        world.release(busy)
        # 5 s before its start; the worker would be idle for those until b begins
        outcome = world.reserve("a", own).outcome
        assert (outcome is answers.Outcome.GRANTED) is early, idle_s


def test_a_step_that_waits_for_a_minute_after_its_time_may_use_another_device(
    world: World,
) -> None:
    admit(world, "x", step("x"))
    world.told("h", world.granted("x", WHOLE), "opened")  # it will not end
    admit(world, "r", step("a"), latency_s=900.0)
    world.host("h2", device("e"))
    world.reserve("a", WHOLE)  # booked on d from 2 s to 4 s
    world.advance(63.5)
    assert [lease.attempt for lease in world.leases] == ["x"]
    world.advance(1.0)
    devices = {str(lease.attempt): lease.shares[0].device for lease in world.leases}
    assert devices == {"x": "d", "a": "e"}


def test_no_run_is_admitted_when_the_memory_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = 2 + 8  # of a step, and of its run with the counts
    monkeypatch.setattr(promising, "MEMORY_MAX", values)
    assert admit(world, "r", step("a")).outcome is answers.Outcome.GRANTED
    before = world.machine.snapshot()
    refused = admit(world, "q", step("b"))
    assert refused.outcome is answers.Outcome.BUSY
    assert refused.why == "1 steps are booked, the most that are remembered"
    assert refused.estimates
    assert world.machine.snapshot() == before


def test_two_steps_of_a_run_never_join_one_batch(world: World) -> None:
    busy_for(world, 5.0)
    admit(world, "q", batched("a"))
    both = admit(world, "r", batched("b"), batched("c"))
    starts = [one.start_in_s for one in both.steps]
    assert starts[0] == pytest.approx(5.0)
    assert booking_of(world, "a").end_s == booking_of(world, "b").end_s
    assert booking_of(world, "c").end_s - booking_of(world, "c").start_s == pytest.approx(2.0)


def test_a_sweep_sees_beyond_steps_that_wait_after_their_time(world: World) -> None:
    world.ask(ops.Watch, all=True)
    tenth = Request(compute_guarantee_pct=10, memory_mib=10)
    small = [step(f"w{i}", request=tenth) for i in range(9)]
    for one in small:
        admit(world, f"r{one.name}", one, latency_s=900.0)
    admit(world, "never", step("x", request=tenth), latency_s=900.0)
    world.ask(ops.Drain, host="h")
    for one in small:
        world.reserve(one.name, tenth)
    world.advance(3.0)
    world.ask(ops.Undrain, host="h")
    counts = world.machine.state.memory.values
    assert counts["count/missed_NOT_REQUESTED"] == 1
    assert "book/x" not in counts


def test_what_is_known_of_a_device_follows_its_bookings(world: World) -> None:
    admit(world, "r", step("a"))
    admit(world, "q", step("b"))
    assert admit(world, "p", step("c")).end_in_s == pytest.approx(6.0)
    world.ask(ops.Waive, run="q")
    assert admit(world, "o", step("d")).end_in_s == pytest.approx(4.0)
    world.ask(ops.Waive, run="p")
    lease = world.granted("a", WHOLE)
    assert admit(world, "n", step("e")).end_in_s == pytest.approx(6.0)
    world.advance(1.0)
    assert admit(world, "m", step("f")).end_in_s == pytest.approx(7.0)
    world.release(lease)
    assert admit(world, "l", step("g", execution_s=1.0)).end_in_s == pytest.approx(1.0)

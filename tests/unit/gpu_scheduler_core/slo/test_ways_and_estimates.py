"""The way of a step, steps without a device, learned starts, costs by the second, estimates."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.core.queue.bookings import RunPromise, read_run
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with

WHOLE = Request(compute_guarantee_pct=100, memory_mib=100)
LEARNED = Request(compute_guarantee_pct=100, memory_mib=100, workload="w")
NONE = Request(count=0, workload="w")


def step(name: str, *after: str, way_s: float | None = None, **times: Any) -> PromisedStep:
    stated = {"*": StepTimes(**{"execution_s": 2.0, **times})}
    return PromisedStep(name=name, job=name, request=WHOLE, after=after, times=stated, way_s=way_s)


def without_device(name: str, *after: str, way_s: float | None = None) -> PromisedStep:
    usd_per_s = {"*": 0.5}
    return PromisedStep(
        name=name, job=name, request=NONE, after=after, way_s=way_s, usd_per_s=usd_per_s
    )


def admit(world: World, run: str, *steps: PromisedStep, quote: bool = False, **slo: Any) -> Any:
    objectives = Slo(**slo) if slo else None
    return world.ask(ops.Admit, run=run, steps=steps, slo=objectives, quote=quote)


def learn(world: World, *executions_s: float, start_s: float = 0.0) -> None:
    for number, execution_s in enumerate(executions_s):
        lease = world.granted(f"x{number}", LEARNED)
        world.advance(start_s)
        world.told("h", lease, "opened")
        world.advance(execution_s)
        world.told("h", lease, "closed", loading_s=0.0)


def end_job(world: World, name: str, way_s: float | None) -> None:
    world.attempt(name, request=NONE)
    world.ask(
        ops.Finish,
        holder=JobId(name),
        outcome="SUCCEEDED",
        reason="OK",
        way_s=way_s,
        workload="w",
    )


@pytest.fixture
def world() -> World:
    made = world_with(device("d"), policy="slo")
    made.alive["s1"] = None
    return made


def test_a_step_begins_its_way_after_those_before_it(world: World) -> None:
    answer = admit(world, "r", step("a", way_s=0.5), step("b", "a", way_s=1.0), latency_s=6.0)
    assert [(one.start_in_s, one.end_in_s) for one in answer.steps] == [(0.5, 2.5), (3.5, 5.5)]
    assert admit(world, "q", step("c", way_s=4.0), latency_s=5.9).end_in_s is None


def test_a_step_without_a_device_takes_its_way_and_is_not_booked(world: World) -> None:
    steps = without_device("a", way_s=1.0), step("b", "a"), without_device("c", "b", way_s=3.0)
    answer = admit(world, "r", *steps, latency_s=6.5)
    assert (answer.outcome, answer.end_in_s) == (answers.Outcome.GRANTED, 6.0)
    assert answer.cost_usd == pytest.approx(2.0)
    assert [one.name for one in answer.steps] == ["b"]
    assert answer.critical == ("a", "b", "c")
    values = world.machine.state.memory.values
    assert [name for name in values if name.startswith("book/")] == ["book/b"]
    assert read_run(str(values["run/r"])).left == 1


def test_a_promise_is_missed_if_the_steps_without_a_device_cannot_end_in_time(
    world: World,
) -> None:
    world.ask(ops.Watch, all=True)
    admit(world, "r", step("b"), without_device("c", "b", way_s=3.0), latency_s=6.0)
    lease = world.granted("b", WHOLE)
    world.advance(3.5)
    world.release(lease)
    assert world.machine.state.memory.values["count/missed_LATE"] == 1


def test_a_run_without_devices_is_promised_and_books_nothing(world: World) -> None:
    answer = admit(world, "r", without_device("a", way_s=1.0), latency_s=2.0)
    assert (answer.outcome, answer.end_in_s, answer.steps) == (answers.Outcome.GRANTED, 1.0, ())
    assert dict(world.machine.state.memory.values) == {}
    refused = admit(world, "q", without_device("a", way_s=3.0), latency_s=2.0)
    assert refused.outcome is answers.Outcome.IMPOSSIBLE
    assert [one.end_in_s for one in refused.estimates] == [3.0, 3.0]


@pytest.mark.parametrize(("learned", "way_s"), [(0, 3.0), (4, 3.0), (5, 1.0)])
def test_a_stated_way_counts_until_five_jobs_have_shown_it(
    world: World, learned: int, way_s: float
) -> None:
    for number in range(learned):
        end_job(world, f"j{number}", 1.0)
    answer = admit(world, "r", without_device("a", way_s=3.0), latency_s=9.0, quote=True)
    assert [one.end_in_s for one in answer.estimates] == [way_s, way_s]


def test_ways_are_learned_from_the_ends_of_jobs(world: World) -> None:
    for number, way_s in enumerate((0.5, 0.5, 0.5, None, 4.0)):
        end_job(world, f"j{number}", way_s)
    end_job(world, "j0", 9.0)  # repeated: learned once
    answer = admit(world, "r", without_device("a"), latency_s=9.0, quote=True)
    assert [(one.quantile, one.end_in_s) for one in answer.estimates] == [(0.5, 0.5), (0.95, 4.0)]
    before = world.machine.snapshot()
    world.start()
    assert world.machine.state.learned_times.way_s("default", "w", 0.95) == 4.0
    assert [part for part in before[0].parts if "Way" in type(part).__name__]


def test_a_booking_with_learned_times_holds_its_device_from_the_grant(world: World) -> None:
    learn(world, 2.0, 2.0, 2.0, 2.0, 2.0, start_s=0.5)
    answer = admit(world, "r", PromisedStep(name="a", job="a", request=LEARNED), latency_s=9.0)
    assert answer.end_in_s == pytest.approx(2.5)


def test_estimates_are_of_the_median_and_of_the_quantile_of_the_policy(world: World) -> None:
    learn(world, 1.0, 1.0, 1.0, 1.0, 3.0)
    rates = {"cuda": 0.5, "*": 9.0}
    one = PromisedStep(name="a", job="a", request=LEARNED, usd_per_s=rates)
    answer = admit(world, "r", one, latency_s=9.0)
    found = [(one.quantile, one.end_in_s, one.cost_usd) for one in answer.estimates]
    assert found == [
        (0.5, pytest.approx(1.0), pytest.approx(0.5)),
        (0.95, pytest.approx(3.0), pytest.approx(1.5)),
    ]
    assert answer.critical == ("a",)
    busy = admit(world, "q", PromisedStep(name="b", job="b", request=LEARNED), latency_s=3.5)
    assert busy.outcome is answers.Outcome.BUSY
    assert [one.end_in_s for one in busy.estimates] == [pytest.approx(1.0), pytest.approx(3.0)]


def test_a_stated_cost_counts_and_else_the_rate_with_the_loading_of_a_cold_worker(
    world: World,
) -> None:
    times = {"*": StepTimes(execution_s=2.0, loading_s=1.0, release_s=1.0)}
    rated = PromisedStep(
        name="a", job="a", request=WHOLE, times=times, usd_per_s={"CUDA": 7.0, "cuda": 0.5}
    )
    assert admit(world, "r", rated, quote=True).cost_usd == pytest.approx(2.0)
    assert admit(world, "r", rated, cost_usd=1.9).outcome is answers.Outcome.BUSY
    assert admit(world, "r", rated, cost_usd=1.4).outcome is answers.Outcome.IMPOSSIBLE
    stated = {"*": StepTimes(execution_s=2.0, cost_usd=9.0)}
    priced = PromisedStep(name="a", job="a", request=WHOLE, times=stated, usd_per_s={"*": 0.5})
    assert admit(world, "r", priced, quote=True).cost_usd == 9.0


def test_only_a_quote_has_no_objective(world: World) -> None:
    quote = admit(world, "r", step("a"), quote=True)
    assert (quote.outcome, quote.end_in_s) == (answers.Outcome.GRANTED, 2.0)
    with pytest.raises(AppError, match="a promise needs an objective"):
        ops.Admit(run="r", steps=(step("a"),))
    with pytest.raises(AppError, match="has a way_s, but no times"):
        PromisedStep(name="a", job="a", request=NONE, times={"*": StepTimes(execution_s=1.0)})
    with pytest.raises(AppError, match="one device, or none"):
        PromisedStep(name="a", job="a", request=Request(count=2))


def test_a_promised_run_with_other_steps_or_another_objective_is_a_conflict(world: World) -> None:
    long = step("a", execution_s=30.0)
    admit(world, "r", long, latency_s=60.0)
    world.advance(20.0)
    assert admit(world, "r", long, latency_s=60.0).outcome is answers.Outcome.GRANTED
    assert admit(world, "r", long, latency_s=40.0).outcome is answers.Outcome.GRANTED
    for other in (
        admit(world, "r", long, latency_s=50.0),
        admit(world, "r", long, cost_usd=1.0),
        admit(world, "r", long, latency_s=60.0, cost_usd=1.0),
        admit(world, "r", step("a", execution_s=29.0), latency_s=60.0),
    ):
        assert other.code is ErrorCode.CONFLICT
        assert "promised with other steps or another objective" in other.message
    quote = admit(world, "r", step("a", execution_s=29.0), quote=True)
    assert quote.outcome is answers.Outcome.GRANTED


def test_a_run_of_an_older_version_has_no_fingerprint_and_is_repeated(world: World) -> None:
    admit(world, "r", step("a"), latency_s=60.0)
    values = world.machine.state.memory.values
    older = str(values["run/r"]).rsplit(" ", 2)[0]
    assert read_run(older).fingerprint == ""
    assert read_run(older)._replace(fingerprint="x") == read_run(f"{older} x")


def test_a_tenant_with_spaces_is_read_as_it_was_written() -> None:
    for mark in ("8fab", ""):
        run = RunPromise(1.0, 2.0, 0.5, 3, fingerprint=mark, tenant="lab a b")
        assert read_run(run.text()) == run

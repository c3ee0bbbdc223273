"""`max_cost` of a workflow: the results are added, and each job has what is left as its own cap."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.result import Result
from contract.states import Reason, RunState, StepState
from corekit.values import replace
from gpu_scheduler.promises import Slo
from orchgpu.core.routing import InputEvent, classify
from orchgpu.core.runs.actions import CloseJobs, EndRun
from orchgpu.core.runs.machine import next_actions
from orchgpu.core.runs.records import Retry, RunResult
from orchgpu.core.runs.state import state_of
from tests.unit.orchgpu.runs.run_world import Function, World, step, workflow


def costing(cost_usd: float | None) -> Function:
    return Function(lambda _job, _n: ["1.x"], cost_usd=cost_usd)


def cap_of(world: World, body: str, name: str) -> float | None:
    source = classify(body, replace(world.of, name=name))
    assert isinstance(source, InputEvent)
    return source.max_cost_usd


def end_of(world: World) -> RunResult:
    assert world.ended is not None
    return world.ended[0]


CHAIN = (step("a"), step("b", "a"), step("c", "b"))


def test_the_jobs_of_a_run_without_a_cap_have_none() -> None:
    world = World(workflow(step("a")), {"a": costing(None)})
    world.fold()
    assert "max_cost_usd" not in world.jobs[0]
    world.settle()
    assert end_of(world).cost_usd is None


def test_each_job_has_what_is_left() -> None:
    world = World(workflow(*CHAIN, max_cost_usd=1.0), dict.fromkeys("abc", costing(0.25)))
    world.fold()
    assert cap_of(world, world.jobs[0], "a") == 1.0
    world.run_job(world.jobs.pop())
    world.fold()
    assert cap_of(world, world.jobs[0], "b") == 0.75
    world.settle()
    assert (end_of(world).state, end_of(world).cost_usd) == (RunState.SUCCEEDED, 0.75)


def test_the_parts_of_a_map_share_what_is_left() -> None:
    of = workflow(step("a"), step("b", "a", each=True), max_cost_usd=1.0)
    many = Function(lambda _job, _n: [f"{n}.x" for n in range(5)], cost_usd=0.5)
    world = World(of, {"a": many, "b": costing(0.05)})
    world.fold()
    world.run_job(world.jobs.pop())
    world.fold()
    assert [cap_of(world, body, "b") for body in world.jobs] == [0.1] * 5


def test_a_run_whose_cost_is_used_up_ends_with_that_reason() -> None:
    world = World(workflow(*CHAIN, max_cost_usd=0.5), dict.fromkeys("abc", costing(0.25)))
    world.settle()
    result = end_of(world)
    assert (result.state, result.reason) == (RunState.FAILED, Reason.MAX_COST)
    states = [one.state for one in result.steps]
    assert states == [StepState.DONE, StepState.DONE, StepState.CANCELLED]
    assert world.tries.total() == 2


def test_a_run_that_costs_exactly_its_cap_succeeds() -> None:
    world = World(workflow(*CHAIN, max_cost_usd=0.75), dict.fromkeys("abc", costing(0.25)))
    world.settle()
    assert end_of(world).state is RunState.SUCCEEDED


def test_live_jobs_end_when_the_others_have_used_up_the_cost() -> None:
    of = workflow(step("a"), step("b", "a"), step("c", "a"), max_cost_usd=0.5)
    world = World(of, dict.fromkeys("abc", costing(0.25)))
    world.fold()
    world.run_job(world.jobs.pop())
    world.fold()
    world.run_job(world.jobs.pop(0))
    facts = world.facts()
    (closing,) = next_actions(facts, state_of(facts))
    assert isinstance(closing, CloseJobs)
    assert (closing.step, closing.reason) == ("c", Reason.MAX_COST)
    world.perform(closing)
    assert world.state().reason is Reason.MAX_COST  # as any later fold sees it
    world.settle()
    assert (end_of(world).state, end_of(world).reason) == (RunState.FAILED, Reason.MAX_COST)


def test_a_job_that_ends_at_its_cap_ends_the_run_with_its_reason() -> None:
    world = World(workflow(*CHAIN, max_cost_usd=0.4), dict.fromkeys("abc", costing(0.25)))
    world.settle()
    result = end_of(world)
    assert (result.state, result.reason) == (RunState.FAILED, Reason.MAX_COST)
    assert result.cost_usd == pytest.approx(0.4)


def test_a_retry_pays_only_what_it_repeats() -> None:
    world = World(workflow(*CHAIN, max_cost_usd=0.6), dict.fromkeys("abc", costing(0.25)))
    world.settle()
    assert end_of(world).reason == Reason.MAX_COST
    world.functions = {**world.functions, "c": costing(0.05)}
    world.retries.append(Retry(at_s=world.now_s))
    world.settle()
    assert (end_of(world).state, world.ran.total()) == (RunState.SUCCEEDED, 3)


@pytest.mark.parametrize(("most_usd", "outcome"), [(0.75, "kept"), (0.6, "missed_COST")])
def test_a_run_that_cost_more_than_it_promised_missed_its_promise(
    most_usd: float, outcome: str
) -> None:
    of = workflow(*CHAIN, slo=Slo(latency_s=1e6, cost_usd=most_usd))
    world = World(of, dict.fromkeys("abc", costing(0.25)))
    world.settle()
    result = end_of(world)
    assert (result.state, result.cost_usd) == (RunState.SUCCEEDED, 0.75), "it is no cap"
    world.ended = None
    facts = world.facts()
    (end,) = next_actions(facts, state_of(facts))
    assert isinstance(end, EndRun)
    assert end.promised is not None
    assert end.promised.outcome == outcome


@pytest.mark.parametrize("stated", ["0.2", None, float("nan"), float("inf"), -1.0])
def test_what_a_function_states_of_its_cost_is_checked(stated: object) -> None:
    world = World(workflow(step("a"), max_cost_usd=0.5), {"a": costing(0.1)})
    world.fold()
    world.run_job(world.jobs.pop())
    ((job, (result, etag)),) = world.results.items()
    world.results[job] = (with_cost(result, stated), etag)
    assert world.state().cost_usd == 0.0


def with_cost(result: Result, stated: object) -> Result:
    """As a function of any version may have written it."""
    return Result.from_json(json.dumps({**asdict(result), "cost_usd": stated}).encode())


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.1, 2.0), st.lists(st.floats(0.0, 0.6), min_size=5))
def test_a_chain_never_costs_more_than_its_cap(seed: int, cap: float, costs: list[float]) -> None:
    """In any weather: the results that count cost no more than the cap, whatever the reason."""
    names = "abcde"
    steps = [step("a"), *(step(b, a) for a, b in pairwise(names))]
    of = workflow(*steps, max_cost_usd=cap)
    functions = {name: costing(cost) for name, cost in zip(names, costs, strict=False)}
    world = World(of, functions, random.Random(seed))
    world.fold()
    for _ in range(40):
        world.any_step()
    world.settle()
    stated = [result.cost_usd or 0.0 for result, _ in world.results.values()]
    assert sum(stated) <= cap * (1 + 1e-9)
    fits = sum(costs[:5]) < cap * (1 - 1e-9)
    if fits:
        assert end_of(world).state is RunState.SUCCEEDED
    if end_of(world).state is not RunState.SUCCEEDED:
        assert end_of(world).reason == Reason.MAX_COST

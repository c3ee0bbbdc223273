"""Random graphs in bad weather: whatever happens, each step commits once, and the run ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.states import Reason, RunState, StepState
from corekit.values import replace
from gpu_scheduler.promises import Slo
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core.runs.records import Cancel, Retry
from orchgpu.core.runs.state import state_of
from orchgpu.core.runs.workflow import Workflow, WorkflowStep
from tests.unit.orchgpu.runs.run_world import (
    SURE,
    UNSURE,
    Function,
    World,
    passes,
    step,
    workflow,
)

SLO = Slo(latency_s=1e6)
REFUSALS = {Outcome.BUSY: Reason.SLO_BUSY, Outcome.IMPOSSIBLE: Reason.SLO_IMPOSSIBLE}
NAMES = ("a", "b", "c", "d", "e", "f")


@st.composite
def graphs(draw: st.DrawFn) -> Workflow:
    count = draw(st.integers(1, len(NAMES)))
    steps: list[WorkflowStep] = [step("a")]
    for n in range(1, count):
        feeders = draw(st.sets(st.sampled_from(NAMES[:n]), min_size=1, max_size=3))
        suffixes = draw(st.sampled_from([(), (".x",), (".y",)]))
        each = draw(st.booleans())
        when = draw(st.sampled_from(["", "", SURE, UNSURE]))
        steps.append(step(NAMES[n], *sorted(feeders), each=each, suffixes=suffixes, when=when))
    promised = draw(st.booleans())
    return workflow(*steps, slo=SLO if promised else None)


def functions(seed: int, *, failing: bool) -> dict[str, Function]:
    """Functions whose files depend on the job alone, as of any deterministic code."""

    def writes(job: str, n: int) -> list[str]:
        drawn = random.Random(f"{seed}{job}")
        return [f"{job}-{k}{drawn.choice(['.x', '.y'])}" for k in range(drawn.randrange(0, 4))]

    def fails(job: str, n: int) -> bool:
        return failing and n == 1 and random.Random(f"{seed}{job}!").random() < 0.3

    def document(job: str) -> dict[str, object]:
        return {"sure": random.Random(f"{seed}{job}?").random() < 0.5}

    return {name: Function(writes, fails, document=document) for name in NAMES}


def ended(world: World) -> RunState:
    """What holds of a run at rest."""
    state = world.state()
    assert world.ended is not None
    assert world.over
    assert all(one.state.terminal for one in state.steps.values())
    assert not world.promises, "nothing is booked for a run that has ended"
    assert state.state is world.ended[0].state
    for one in state.steps.values():
        assert not one.open_jobs, "nothing of it runs"
    assert state_of(world.facts()) == state, "equal facts, equal state"
    for of in world.of.steps:
        if state.state is RunState.SUCCEEDED and of.feeds:
            fed = any(
                feed.takes(str(file["bucket"]), str(file["key"]))
                for feed in of.feeds
                for job in state.steps[feed.step].jobs
                if job.result is not None and passes(feed, job.result)
                for file in job.result.files
            )
            done = StepState.DONE if fed else StepState.SKIPPED
            assert state.steps[of.name].state is done, "a step runs if a feed gives it a file"
    return state.state


@settings(max_examples=40)
@given(graphs(), st.integers(0, 2**32))
def test_every_step_commits_once_whatever_happens(of: Workflow, seed: int) -> None:
    world = World(of, functions(seed, failing=False), random.Random(seed))
    world.fold()
    for _ in range(60):
        world.any_step()
    world.settle()
    assert ended(world) is RunState.SUCCEEDED
    assert set(world.ran.values()) <= {1}
    done = [one for one in world.state().steps.values() if one.state is StepState.DONE]
    assert sum(world.ran.values()) == sum(len(one.jobs) for one in done)


@settings(max_examples=40)
@given(graphs(), st.integers(0, 2**32))
def test_a_run_whose_steps_fail_ends_and_retries_keep_what_is_done(of: Workflow, seed: int) -> None:
    world = World(of, functions(seed, failing=True), random.Random(seed))
    world.fold()
    for _ in range(40):
        world.any_step()
    world.settle()
    for _ in range(60):  # each job fails once at most
        if ended(world) is RunState.SUCCEEDED:
            break
        done = dict(world.ran)
        world.retries.append(Retry(at_s=world.now_s))
        for _ in range(20):
            world.any_step()
        world.settle()
        assert all(world.ran[job] == count for job, count in done.items()), "kept"
    assert ended(world) is RunState.SUCCEEDED
    assert set(world.ran.values()) <= {1}


@settings(max_examples=40)
@given(graphs(), st.integers(0, 2**32), st.integers(0, 40))
def test_a_cancel_at_any_time_leaves_nothing_running(of: Workflow, seed: int, when: int) -> None:
    world = World(of, functions(seed, failing=False), random.Random(seed))
    world.fold()
    for _ in range(when):
        world.any_step()
    world.cancel = Cancel(at_s=world.now_s)
    for _ in range(20):
        world.any_step()
    world.settle()
    assert ended(world) in (RunState.CANCELLED, RunState.SUCCEEDED)
    world.retries.append(Retry(at_s=world.now_s))
    world.settle()
    assert ended(world) is RunState.SUCCEEDED


@settings(max_examples=40)
@given(graphs(), st.integers(0, 2**32), st.sampled_from(NAMES))
def test_a_retry_from_a_step_repeats_it_and_all_after_it(
    of: Workflow, seed: int, first: str
) -> None:
    world = World(of, functions(seed, failing=False), random.Random(seed))
    world.fold()
    world.settle()
    before = {one.name: one for one in world.state().steps.values()}
    world.retries.append(Retry(at_s=world.now_s, from_step=first))
    for _ in range(30):
        world.any_step()
    world.settle()
    assert ended(world) is RunState.SUCCEEDED
    after = world.state().steps
    reached = {first} if first in after else set()
    for one in of.steps:
        if any(feed.step in reached for feed in one.feeds):
            reached.add(one.name)
    for name, found in after.items():
        twice = {world.ran[job.id] for job in found.jobs}
        assert twice <= ({1, 2} if name in reached else {1})
        if name not in reached:
            assert found == before[name]
    if first in after and after[first].state is StepState.DONE:
        ids = {job.id for job in before[first].jobs} & {job.id for job in after[first].jobs}
        assert all(world.ran[job] == 2 for job in ids)


@pytest.mark.parametrize("late_s", [0.0, 5.0])
@settings(max_examples=40)
@given(of=graphs(), seed=st.integers(0, 2**32), when=st.integers(0, 20))
def test_a_deadline_ends_what_still_runs(late_s: float, of: Workflow, seed: int, when: int) -> None:
    world = World(replace(of, deadline_s=950.0), functions(seed, failing=False))
    world.stream = random.Random(seed)
    world.fold()
    for _ in range(when):
        world.any_step()
    before = world.over
    world.now_s = 1050.0 + late_s
    world.settle()
    allowed = {RunState.SUCCEEDED} if before else {RunState.SUCCEEDED, RunState.DEADLINE}
    assert ended(world) in allowed


@settings(max_examples=40)
@given(graphs(), st.integers(0, 2**32), st.lists(st.sampled_from(list(REFUSALS)), max_size=3))
def test_a_refused_run_begins_no_step_until_a_retry_is_promised(
    of: Workflow, seed: int, refusals: list[Outcome]
) -> None:
    answers = dict(enumerate(refusals))
    world = World(replace(of, slo=SLO), functions(seed, failing=False), random.Random(seed))
    world.refuses = lambda n: answers.get(n, Outcome.GRANTED)
    for refusal in refusals:
        for _ in range(10):
            world.any_step()
        world.settle()
        assert ended(world) is RunState.REJECTED
        assert world.state().reason is REFUSALS[refusal]
        assert not world.tries, "no job ran"
        world.retries.append(Retry(at_s=world.now_s))
    world.settle()
    assert ended(world) is RunState.SUCCEEDED

"""The fold and the actions of a run, case by case."""

from __future__ import annotations

import json

import pytest

from contract.run import FILES_MAX, inputs_key, part_of, step_job_id
from contract.states import JobState, Reason, RunState, StepState
from corekit.decode import decode_json_known
from corekit.values import replace
from gpu_scheduler.promises import PlannedStep, Slo
from orchgpu.core.routing import InputEvent, Rejected, classify
from orchgpu.core.runs.actions import Admit, CloseJobs, EndRun, ResendLost, StartStep
from orchgpu.core.runs.facts import Read, after
from orchgpu.core.runs.machine import next_actions, waived_steps
from orchgpu.core.runs.messages import Advance, advance_body, classify_run
from orchgpu.core.runs.records import Cancel, InputFile, Retry, local_names
from orchgpu.core.runs.state import Stop, state_of
from orchgpu.core.runs.workflow import Feed
from tests.unit.orchgpu.runs.run_world import (
    BUCKET,
    INPUT,
    RUN,
    SURE,
    UNSURE,
    Function,
    World,
    step,
    workflow,
)

S = StepState


def files(*names: str) -> Function:
    return Function(lambda _job, _n: list(names))


def per_job(_job: str, _n: int) -> list[str]:
    return [f"{_job}.x"]


def states(world: World) -> dict[str, StepState]:
    return {name: one.state for name, one in world.state().steps.items()}


def end_of(world: World) -> RunState:
    assert world.ended is not None
    return world.ended[0].state


def test_a_chain_starts_step_after_step() -> None:
    world = World(workflow(step("a"), step("b", "a")), {"a": files("1.x"), "b": files("2.x")})
    assert states(world) == {"a": S.READY, "b": S.BLOCKED}
    world.fold()
    assert states(world) == {"a": S.STARTED, "b": S.BLOCKED}
    world.run_job(world.jobs.pop())
    assert states(world) == {"a": S.DONE, "b": S.READY}
    world.fold()
    source = classify(world.jobs[0], replace(world.of, name="b"))
    assert isinstance(source, InputEvent)
    assert (source.key, source.step and source.step.feeder) == ("a/1.x", "a")
    world.settle()
    assert world.ended is not None
    result = world.ended[0]
    assert (result.state, [file.key for file in result.files]) == (RunState.SUCCEEDED, ["b/2.x"])


def test_a_result_states_how_many_files_it_does_not_name() -> None:
    world = World(workflow(step("a")), {"a": files(*map(str, range(FILES_MAX + 2)))}, checks=False)
    world.settle()
    assert world.ended is not None
    result = world.ended[0]
    assert (len(result.files), result.files_left_out) == (FILES_MAX, 2)


def test_the_files_of_a_run_are_those_that_no_step_takes_whoever_wrote_them() -> None:
    of = workflow(step("a"), step("b", "a", suffixes=(".x",)))
    world = World(of, {"a": files("1.x", "notes.log"), "b": files("2.x")}, checks=False)
    world.settle()
    assert world.ended is not None
    assert [file.key for file in world.ended[0].files] == ["a/notes.log", "b/2.x"]


def test_the_first_job_reads_the_input_of_the_run() -> None:
    world = World(workflow(step("a")), {"a": files()})
    world.fold()
    source = classify(world.jobs[0], replace(world.of, name="a"))
    assert isinstance(source, InputEvent)
    assert (source.bucket, source.key, source.version_id) == (BUCKET, INPUT.key, INPUT.version_id)
    assert source.step is not None
    assert source.step.job == step_job_id(RUN, "a")


def test_a_map_has_a_job_for_each_file_and_a_gather_one_for_all() -> None:
    of = workflow(step("cut"), step("small", "cut", each=True), step("table", "small"))
    world = World(of, {"cut": files("1", "2", "3"), "small": Function(per_job), "table": files()})
    world.settle()
    small = world.state().steps["small"]
    assert [job.files[0].key for job in small.jobs] == ["cut/1", "cut/2", "cut/3"]
    part = part_of(BUCKET, "cut/1", small.jobs[0].files[0].pin)
    assert small.jobs[0].id == step_job_id(RUN, "small", part)
    inputs, _ = world.lists["table"]
    assert [file.step for file in inputs.files] == ["small"] * 3
    assert world.tries[step_job_id(RUN, "table")] == 1


def test_a_join_waits_for_both_and_reads_both() -> None:
    of = workflow(step("a"), step("l", "a"), step("r", "a"), step("join", "l", "r"))
    world = World(of, {n: files(f"{n}.x") for n in ("a", "l", "r", "join")})
    world.fold()
    world.run_job(world.jobs.pop(0))
    world.fold()
    assert len(world.jobs) == 2
    world.run_job(world.jobs.pop(0))
    assert states(world)["join"] is S.BLOCKED
    world.settle()
    assert {file.key for file in world.lists["join"][0].files} == {"l/l.x", "r/r.x"}


def test_a_cascade_skips_what_got_no_file_and_a_join_needs_one() -> None:
    of = workflow(
        step("first"),
        step("again", "first", suffixes=(".again",)),
        step("more", "again"),
        step("table", "first", "more"),
    )
    functions = {name: files("1.answer") for name in ("first", "again", "more", "table")}
    world = World(of, functions)
    world.settle()
    assert states(world) == {
        "first": S.DONE,
        "again": S.SKIPPED,
        "more": S.SKIPPED,
        "table": S.DONE,
    }
    assert world.ended is not None
    assert world.ended[0].state is RunState.SUCCEEDED


def sure(value: object, *names: str) -> Function:
    return Function(lambda _job, _n: list(names), document=lambda _job: {"sure": value})


@pytest.mark.parametrize("certain", [True, False])
def test_a_cascade_by_confidence_starts_the_next_step_only_where_it_is_needed(
    certain: bool,
) -> None:
    of = workflow(step("small"), step("large", "small", when=UNSURE), step("all", "large"))
    functions = {"small": sure(certain, "1.x"), "large": files("2.x"), "all": files("3.x")}
    world = World(of, functions)
    world.settle()
    state = S.SKIPPED if certain else S.DONE
    assert states(world) == {"small": S.DONE, "large": state, "all": state}
    assert world.ended is not None
    # what no step took is of the run
    left = ["small/1.x"] if certain else ["all/3.x"]
    assert [file.key for file in world.ended[0].files] == left


def test_a_condition_is_about_each_result_of_a_map() -> None:
    def write(job: str, _n: int) -> list[str]:
        return [f"{job}.x"]

    of = workflow(step("cut"), step("a", "cut", each=True), step("b", "a", when=SURE))
    certain = step_job_id(RUN, "a", part_of(BUCKET, "cut/1", step_job_id(RUN, "cut") + "-1"))
    of_a = Function(write, document=lambda job: {"sure": job == certain})
    world = World(of, {"cut": files("1", "2", "3"), "a": of_a, "b": files("end")})
    world.settle()
    (job,) = world.state().steps["b"].jobs
    assert [file.key for file in job.files] == [f"a/{certain}.x"]
    assert world.ended is not None
    assert len(world.ended[0].files) == 3, "two that b did not take, and its own"


@pytest.mark.parametrize(
    ("value", "why"),
    [(None, "it is null, neither true nor false"), (1, "it is int, neither true nor false")],
)
def test_a_condition_without_an_answer_fails_its_step_with_its_text(
    value: object, why: str
) -> None:
    of = workflow(step("a"), step("b", "a", when=SURE), step("c", "b"))
    world = World(of, {"a": sure(value, "1.x"), "b": files(), "c": files()}, checks=False)
    world.settle()
    assert states(world) == {"a": S.DONE, "b": S.FAILED, "c": S.CANCELLED}
    assert world.ended is not None
    result = world.ended[0]
    assert (result.state, result.reason) == (RunState.FAILED, Reason.CONDITION_ERROR)
    assert result.detail == f"step b: `when` of its input: {SURE}: {why}"


def test_a_feed_of_an_older_version_has_no_condition() -> None:
    old = b'{"step":"a","bucket":"b","prefix":"p","suffixes":[]}'
    assert decode_json_known(Feed, old, "f")[0] == Feed(step="a", bucket="b", prefix="p")


def test_a_failed_step_starts_nothing_more_and_ends_what_runs() -> None:
    of = workflow(step("a"), step("bad", "a"), step("slow", "a"), step("last", "bad", "slow"))
    world = World(of, {n: files("x") for n in ("a", "slow", "last")})
    world.functions = {**world.functions, "bad": Function(lambda *_: [], lambda *_: True)}
    world.fold()
    world.run_job(world.jobs.pop(0))
    world.fold()
    world.run_job(world.jobs.pop(0))  # bad
    facts = world.facts()
    (action,) = next_actions(facts, state_of(facts))
    assert isinstance(action, CloseJobs)
    assert (action.step, action.reason) == ("slow", Reason.RUN_ENDED)
    world.fold()
    world.settle()
    assert states(world) == {
        "a": S.DONE,
        "bad": S.FAILED,
        "slow": S.CANCELLED,
        "last": S.CANCELLED,
    }
    assert world.ended is not None
    assert world.ended[0].state is RunState.FAILED
    assert world.ended[0].reason == Reason.EXIT_NONZERO


def test_one_failed_part_is_seen_at_once_by_the_hint_of_its_message() -> None:
    of = workflow(step("a"), step("m", "a", each=True))
    world = World(of, {"a": files("1", "2"), "m": Function(lambda *_: [], lambda *_: True)})
    world.fold()
    world.run_job(world.jobs.pop(0))
    world.fold()
    world.run_job(world.jobs.pop(0))
    assert world.state().stop is None, "without the hint only a LIST is made"
    hint = world.advances[-1]
    assert hint.failed
    facts = world.facts(hint)
    assert state_of(facts).stop is Stop.FAILED


def test_a_thousand_parts_are_one_listing_until_all_are_there() -> None:
    of = workflow(step("a"), step("m", "a", each=True))
    world = World(of, {"a": files(*map(str, range(FILES_MAX))), "m": files()}, checks=False)
    world.fold()
    world.run_job(world.jobs.pop(0))
    world.fold()
    assert len(world.jobs) == FILES_MAX
    for body in world.jobs[:-1]:
        world.run_job(body)
    facts = world.facts()
    assert len(facts.listed["m"]) == FILES_MAX - 1
    assert len(facts.reads) == 1, "of the first step alone"
    assert next_actions(facts, state_of(facts)) == ()


def test_more_files_than_a_step_may_get_end_the_run_with_the_reason() -> None:
    of = workflow(step("a"), step("b", "a"))
    world = World(of, {"a": files(*map(str, range(FILES_MAX + 1))), "b": files()})
    world.settle()
    assert world.ended is not None
    assert world.ended[0].reason == Reason.TOO_MANY_FILES
    assert "step b would get 1,001 files; at most 1,000" in world.ended[0].detail


def test_a_patrol_sends_again_only_what_has_no_result() -> None:
    of = workflow(step("a"), step("m", "a", each=True))
    world = World(of, {"a": files("1", "2"), "m": files()})
    world.fold()
    world.run_job(world.jobs.pop(0))
    world.fold()
    world.run_job(world.jobs.pop(0))
    facts = world.facts()
    assert next_actions(facts, state_of(facts)) == ()
    (action,) = next_actions(facts, state_of(facts), patrol=True)
    assert isinstance(action, ResendLost)
    assert len(action.jobs) == len(action.start.bodies) == 1


def test_a_retry_sends_the_failed_jobs_as_redriven_ones() -> None:
    of = workflow(step("a"), step("b", "a"))
    world = World(of, {"a": files("1"), "b": Function(lambda *_: [], lambda _job, n: n == 1)})
    world.settle()
    assert world.over
    world.retries.append(Retry(at_s=world.now_s))
    facts = world.facts()
    (action,) = next_actions(facts, state_of(facts))
    assert isinstance(action, StartStep)
    assert (action.step, action.facts.dead_at_s) == ("b", world.now_s)
    world.settle()
    assert world.ended is not None
    assert (world.ended[0].state, world.ended[0].retries) == (RunState.SUCCEEDED, 1)


def test_a_cancel_older_than_a_retry_does_not_count() -> None:
    world = World(workflow(step("a")), {"a": files()})
    world.cancel = Cancel(at_s=world.now_s)
    world.settle()
    assert end_of(world) is RunState.CANCELLED
    world.retries.append(Retry(at_s=world.now_s))
    world.settle()
    assert end_of(world) is RunState.SUCCEEDED


def test_a_job_that_a_user_cancels_ends_its_run() -> None:
    world = World(workflow(step("a"), step("b", "a")), {"a": files("1"), "b": files()})
    world.fold()
    job = step_job_id(RUN, "a")
    cancelled = world.result(job, JobState.CANCELLED, reason=Reason.CANCELLED_BY_USER)
    world.results[job] = (cancelled, "e")
    world.settle()
    assert world.ended is not None
    assert world.ended[0].state is RunState.CANCELLED


def test_only_an_end_that_knows_of_all_retries_stands() -> None:
    world = World(workflow(step("a")), {"a": files()})
    world.settle()
    facts = replace(world.facts(), retries=(Retry(at_s=5000.0, from_step="a"),))
    (start,) = next_actions(facts, state_of(facts))
    assert isinstance(start, StartStep), "not EndRun"


def test_a_run_ends_with_the_etag_of_the_end_that_it_replaces() -> None:
    world = World(workflow(step("a")), {"a": Function(lambda *_: [], lambda *_: True)})
    world.settle()
    assert world.ended is not None
    etag = world.ended[1]
    world.retries.append(Retry(at_s=world.now_s))
    world.fold()
    world.run_job(world.jobs.pop())
    facts = world.facts()
    (action,) = next_actions(facts, state_of(facts))
    assert isinstance(action, EndRun)
    assert action.replace_etag == etag


def test_what_later_folds_need_not_read_again() -> None:
    of = workflow(step("a"), step("b", "a"))
    world = World(of, {"a": files("1"), "b": files()})
    world.fold()
    world.run_job(world.jobs.pop())
    assert list(world.facts().reads) == [step_job_id(RUN, "a")], "b is not started yet"
    world.fold()
    facts = world.facts()
    assert list(facts.lasting()) == [step_job_id(RUN, "a")], "not the absent result of b"
    again = replace(facts, retries=(Retry(at_s=world.now_s, from_step="a"),))
    assert again.lasting() == {}
    assert Read(result=None) in facts.reads.values()


def test_the_steps_after_one() -> None:
    steps = (step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"))
    assert after(steps, "b") == {"b", "d"}
    assert after(steps, "a") == {"a", "b", "c", "d"}


# ---------------------------------------------------------------------- messages


def test_an_advance_names_its_run() -> None:
    body = advance_body(RUN, "a", "j1", "FAILED")
    found = classify_run(body, workflow(step("a")))
    assert found == Advance(run=RUN, step="a", job="j1", state="FAILED")
    assert classify_run(advance_body(RUN), workflow(step("a"))) == Advance(run=RUN)


@pytest.mark.parametrize(
    "body",
    [
        '{"orchgpu": {"advance": {"run": "no id"}}}',
        '{"orchgpu": {"advance": []}}',
        '{"orchgpu": {"advance": {"run": 5}}}',
        '"advance"',
        '{"advance"',
    ],
)
def test_what_is_no_advance_is_refused(body: str) -> None:
    assert isinstance(classify_run(body, workflow(step("a"))), Rejected)


def test_an_upload_starts_a_run() -> None:
    assert classify_run(json.dumps(INPUT.as_s3_event()), workflow(step("a"))) == INPUT


@pytest.mark.parametrize(
    "note",
    [
        {"run": RUN, "workflow": "films", "step": "other"},
        {"run": RUN},
        {"run": "x"},
        [],
        {"run": 1},
    ],
)
def test_a_job_of_another_step_is_refused(note: object) -> None:
    body = json.dumps({"orchgpu": {"step": note}, **INPUT.as_s3_event()})
    assert isinstance(classify(body, workflow(step("films"))), Rejected)


# ---------------------------------------------------------------------- names on the disk


def named(*keys: str, prefix: str = "out") -> list[str]:
    given = [(InputFile(step="a", bucket=BUCKET, key=key, etag=key), prefix) for key in keys]
    return [file.name for file in local_names(given)]


def test_files_are_named_below_the_prefix_of_their_input() -> None:
    assert named("out/1.x", "out/deep/2.x") == ["1.x", "deep/2.x"]


@pytest.mark.parametrize("key", ["out/../../etc/passwd", "out//x", "out/./x", "out/" + "y" * 900])
def test_a_key_that_is_no_path_has_a_name_of_its_own(key: str) -> None:
    (name,) = named(key)
    assert "/" not in name
    assert name not in ("", ".", "..")
    assert len(name.encode()) < 200


def test_no_two_files_are_in_each_others_way() -> None:
    names = named("out/a", "out/a", "out/a/b", "out/c/d", "out/c")
    assert len(set(names)) == 5
    folders = {name.rpartition("/")[0] for name in names}
    assert not folders & set(names)


def test_a_list_of_files_is_known_by_its_key() -> None:
    event = replace(INPUT, key=inputs_key(RUN, "a"))
    assert not event.lists_files


def test_the_bookings_of_skipped_steps_are_given_back() -> None:
    of = workflow(step("a"), step("b", "a", suffixes=(".y",)), slo=Slo(latency_s=9.0))
    world = World(of, {"a": files("1.x"), "b": files()})
    world.fold()
    assert waived_steps(world.facts(), world.state()) == ()
    world.admissions[0] = replace(world.admissions[0], steps=tuple(map(booked, "ab")))
    assert waived_steps(world.facts(), world.state()) == ()
    world.run_job(world.jobs.pop())
    (waived,) = waived_steps(world.facts(), world.state())
    assert (waived.promise, waived.jobs) == (RUN, (step_job_id(RUN, "b"),))
    world.settle()
    assert waived_steps(world.facts(), world.state()) == ()


def booked(name: str) -> PlannedStep:
    device = {"host": "h", "device": "d", "kind": "cpu", "model": "M"}
    return PlannedStep(name=name, job=name, start_in_s=0.0, end_in_s=1.0, warm=False, **device)


def test_the_admission_of_a_run_has_the_steps_that_are_not_done() -> None:
    of = workflow(step("a"), step("b", "a"), slo=Slo(latency_s=9.0))
    fails = Function(lambda _job, _n: ["2.x"], lambda _job, n: n == 1)
    world = World(of, {"a": files("1.x"), "b": fails})
    (first,) = next_actions(world.facts(), world.state())
    assert isinstance(first, Admit)
    assert (first.retries, first.done, first.begun_at_s) == (0, frozenset(), 100.0)
    world.settle()
    assert end_of(world) is RunState.FAILED
    world.retries.append(Retry(at_s=world.now_s))
    (again,) = next_actions(world.facts(), world.state())
    assert isinstance(again, Admit)
    assert (again.retries, again.done) == (1, frozenset({"a"}))
    assert again.begun_at_s == world.retries[0].at_s
    world.settle()
    assert end_of(world) is RunState.SUCCEEDED


def test_a_cancel_comes_before_the_promise() -> None:
    world = World(workflow(step("a"), slo=Slo(latency_s=9.0)), {"a": files()})
    world.cancel = Cancel(at_s=world.now_s)
    world.settle()
    assert end_of(world) is RunState.CANCELLED
    assert not world.admissions


def test_the_jobs_of_a_step_know_when_they_could_begin() -> None:
    world = World(workflow(step("a"), step("b", "a")), {"a": files("1.x"), "b": files()})
    world.fold()
    first = classify(world.jobs[0], replace(world.of, name="a"))
    assert isinstance(first, InputEvent)
    assert first.ready_at_s == 100.0, "the input was stored"
    world.run_job(world.jobs.pop())
    world.fold()
    second = classify(world.jobs[0], replace(world.of, name="b"))
    assert isinstance(second, InputEvent)
    assert second.ready_at_s == world.state().steps["a"].ended_at_s

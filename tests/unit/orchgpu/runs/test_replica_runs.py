"""Runs on replicas over the memory adapters, on virtual time; functions are played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from functools import partial

import pytest

from contract.envelope import Job
from contract.keys import result_key
from contract.result import Result
from contract.run import (
    cancel_key,
    retry_key,
    step_job_id,
)
from contract.states import StepState
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.decode import decode_json, encode_json
from corekit.errors import AppError
from corekit.tracing.context import named_context
from corekit.values import replace
from orchgpu.core.routing import StepOf
from orchgpu.core.runs.messages import step_note
from orchgpu.core.runs.newest import newest_prefix, newest_run
from orchgpu.core.runs.records import Retry
from orchgpu.replica.actions.function_failures import record_of
from orchgpu.replica.actions.run_facts import RunFacts
from simulator.faults.memory_cloud import Faults
from simulator.faults.requester import SimRequester
from tests.tracing import Recorder
from tests.unit.orchgpu.runs.run_bench import KEY, Bench, function, on_virtual_time
from tests.unit.orchgpu.runs.run_world import BUCKET, step

FILM = (step("cut"), step("small", "cut", each=True), step("table", "small"))


def parts(count: int, job: Job) -> list[str]:
    """`cut` writes the parts; each `small` one of its own; `table` one."""
    if job.function == "cut":
        return [f"{n}.part" for n in range(count)]
    return [f"{job.job_id}.out"] if job.function == "small" else ["table.csv"]


async def film_is_one_table(bench: Bench, run: str, count: int) -> None:
    result = await bench.end_of(run)
    assert result.state == "SUCCEEDED", result
    assert [file.key for file in result.files] == ["table/table.csv"]
    assert len(await bench.inputs(run, "table")) == count, "every part once"
    assert set(bench.commits.values()) == {1}
    assert len(bench.commits) == count + 2


def test_parts_become_one_table() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await film_is_one_table(bench, run, 40)
        named = await bench.store.etags(BUCKET, newest_prefix(bench.flow.name))
        assert list(map(newest_run, named)) == [run], "the list of runs has it"

    on_virtual_time(FILM, partial(parts, 40), test)


def test_no_message_of_a_run_is_left_once_it_has_ended() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await bench.end_of(run, within_s=bench.budget.reconcile_every_s / 2)

    on_virtual_time(FILM, partial(parts, 3), test)


def test_the_jobs_of_a_run_are_one_trace_whichever_replica_ends_them() -> None:
    recorder = Recorder()

    async def test(bench: Bench) -> None:
        for _ in range(2):
            await bench.replica(bench.nursery, tracer=recorder)
        run = await bench.upload()
        await film_is_one_table(bench, run, 5)
        context = named_context(run, sampled=True)
        jobs = [span for span in recorder.spans if span.name == "job"]
        assert len(jobs) == 7
        assert {span.parent for span in jobs} == {context}
        assert {span.context.trace_id for span in recorder.spans} == {context.trace_id}
        (span,) = [span for span in recorder.spans if span.name == "run"]
        assert (span.context, span.parent, span.error) == (context, None, "")
        assert span.attributes["orchgpu.workflow"] == bench.flow.name
        assert all(span.start_s <= one.start_s <= one.end_s <= span.end_s for one in jobs)

    on_virtual_time(FILM, partial(parts, 5), test)


@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_die_while_the_cloud_fails_make_one_table(seed: int) -> None:
    async def test(bench: Bench) -> None:
        stream = random.Random(seed)
        run = await bench.upload()
        bench.cloud.queues.get("films").send(  # its event comes twice
            bench.clock.wall_s(), json.dumps({"orchgpu": {"advance": {"run": run}}}), attributes={}
        )
        for _ in range(6):
            faults = Faults(rate=0.05, stream=random.Random(stream.random()), delay_s_max=0.05)

            async def live(weather: Faults = faults) -> None:
                async with Nursery("replica") as nursery:
                    await bench.replica(nursery, weather)
                    await asyncio.sleep(stream.uniform(0.1, 8.0))
                    raise TimeoutError  # killed: nothing is handed back

            with contextlib.suppress(AppError, TimeoutError):
                await live()
        await bench.replica(bench.nursery)
        await film_is_one_table(bench, run, 12)

    on_virtual_time(FILM, partial(parts, 12), test)


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_as_many_parts_as_a_step_may_have(count: int) -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        await film_is_one_table(bench, await bench.upload(), count)

    on_virtual_time(FILM, partial(parts, count), test)


def test_two_readers_and_a_join_and_a_step_that_is_skipped() -> None:
    steps = (
        step("a"),
        step("l", "a"),
        step("r", "a"),
        step("again", "a", suffixes=(".unsure",)),
        step("join", "l", "r", "again"),
    )

    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        result = await bench.end_of(run)
        states = {one.name: one.state.value for one in result.steps}
        assert states == {"a": "DONE", "l": "DONE", "r": "DONE", "again": "SKIPPED", "join": "DONE"}
        assert await bench.inputs(run, "join") == ["l/l.txt", "r/r.txt"]

    on_virtual_time(steps, lambda job: [f"{job.function}.txt"], test)


@pytest.mark.parametrize("versioned", [True, False])
def test_the_metadata_of_the_input_reaches_every_step_and_every_try(versioned: bool) -> None:
    given = {"orchgpu-set": '{"K":"v"}', "owner": "lab", "orchgpu-revision": "1"}
    seen: dict[str, list[object]] = {}

    def plays(job: Job) -> list[str] | None:
        seen.setdefault(job.function, []).append(job.metadata)
        return None if len(seen.get("table", [])) == 1 else parts(3, job)

    async def test(bench: Bench) -> None:
        if versioned:
            bench.cloud.bucket(BUCKET).set_versioning("Enabled")
        await bench.replica(bench.nursery)
        run = await bench.upload(metadata=given)
        assert (await bench.end_of(run)).state == "FAILED"
        if versioned:  # a newer version is another run
            await bench.store.put(BUCKET, KEY, b"other")
        retry = Retry(at_s=bench.clock.wall_s())
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json())
        body = json.dumps({"orchgpu": {"advance": {"run": run, "token": "input"}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        assert (await bench.end_of(run, retries=1)).state == "SUCCEEDED"
        (wanted,) = {str(one) for every in seen.values() for one in every}
        assert wanted == str({"orchgpu-set": '{"K":"v"}', "owner": "lab"})
        assert {name: len(every) for name, every in seen.items()} == {
            "cut": 1,
            "small": 3,
            "table": 2,
        }

    on_virtual_time(FILM, plays, test)


def test_an_input_without_metadata_changes_no_message() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload(metadata={"orchgpu-sha256": "0", "orchgpu-revision": "1"})
        assert (await bench.end_of(run)).state == "SUCCEEDED"

    def plays(job: Job) -> list[str]:
        assert job.metadata is None
        return parts(3, job)

    on_virtual_time(FILM, plays, test)
    assert step_note(StepOf(run="r", workflow="w", step="s")) == {
        "run": "r",
        "workflow": "w",
        "step": "s",
    }


def test_a_failed_run_is_retried_and_keeps_what_is_done() -> None:
    repaired: list[bool] = []

    def plays(job: Job) -> list[str] | None:
        return None if job.function == "table" and not repaired else parts(3, job)

    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        failed = await bench.end_of(run)
        assert (failed.state, failed.reason) == ("FAILED", "EXIT_NONZERO")
        repaired.append(True)
        retry = Retry(at_s=bench.clock.wall_s())
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json(), if_absent=True)
        body = json.dumps({"orchgpu": {"advance": {"run": run}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        result = await bench.end_of(run, retries=1)
        assert result.state == "SUCCEEDED"
        table = step_job_id(run, "table")
        assert bench.commits[table] == 2
        assert {count for job, count in bench.commits.items() if job != table} == {1}

    on_virtual_time(FILM, plays, test)


def test_a_cancel_ends_a_run_whose_function_never_ends() -> None:
    async def test(bench: Bench) -> None:
        bench.starting = False
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await asyncio.sleep(20.0)
        cancel = encode_json({"at_s": bench.clock.wall_s()})
        await bench.store.put(BUCKET, cancel_key(run), cancel)
        body = json.dumps({"orchgpu": {"advance": {"run": run}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        result = await bench.end_of(run)
        assert (result.state, result.reason) == ("CANCELLED", "CANCELLED_BY_USER")

    on_virtual_time(FILM, partial(parts, 3), test)


def test_a_job_of_a_removed_function_is_ended_with_its_run() -> None:
    async def test(bench: Bench) -> None:
        bench.starting = False
        await bench.replica(bench.nursery)
        looker = SimRequester(
            bench.scheduler, "looker", Budget(), random.Random(1), delay_s_max=0.0, loss_rate=0.0
        )
        bench.nursery.start_eternal(looker.beat(), "looker")
        run = await bench.upload()
        await asyncio.sleep(20.0)
        before = await record_of(looker, step_job_id(run, "cut"))
        assert before is not None
        assert before.outcome is None
        bench.registry.remove("cut")
        await asyncio.sleep(2 * Budget().registry_poll_s)
        body = json.dumps({"orchgpu": {"advance": {"run": run}}})
        await bench.queue.send(bench.flow.queue_url, [body])
        result = await bench.end_of(run)
        assert (result.state, result.reason) == ("FAILED", "UNKNOWN_FUNCTION")
        record = await record_of(looker, step_job_id(run, "cut"))
        assert record is None or record.outcome == "CANCELLED"

    on_virtual_time(FILM, partial(parts, 3), test)


def test_a_replica_reads_again_what_a_retry_made_void() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        other = RunFacts(bench.store, bench.clock, lambda: {n: function(n) for n in names})
        run, cut = await bench.upload(), ""
        while not cut:
            await asyncio.sleep(0.01)
            seen = await other.fold(bench.flow, run, ())
            if seen is not None and seen[1].steps["cut"].state is StepState.DONE:
                assert not seen[0].stands, "the other replica sees the run before its end"
                cut = seen[1].steps["cut"].jobs[0].id
        await bench.end_of(run)
        retry = Retry(at_s=bench.clock.wall_s(), from_step="cut")
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json(), if_absent=True)
        stored = await bench.store.get(BUCKET, result_key(cut), bytes_max=10**7)
        again = replace(decode_json(Result, stored.body or b""), ended_at_s=retry.at_s + 1.0)
        await bench.store.put(BUCKET, result_key(cut), again.to_json())
        seen = await other.fold(bench.flow, run, ())
        assert seen is not None
        assert seen[1].steps["cut"].state is StepState.DONE

    names = [one.name for one in FILM]
    on_virtual_time(FILM, partial(parts, 3), test)

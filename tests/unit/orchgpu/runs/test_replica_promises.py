"""Promised runs on replicas over the memory adapters and the scheduler's own core."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from contract.envelope import Job
from contract.run import admission_key
from contract.states import Reason, RunState, StepState
from corekit.aio.supervise import Nursery
from corekit.decode import decode_json
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core.runs.records import Admission
from orchgpu.replica.actions.admitting import request_promise
from simulator.faults.memory_cloud import Faults
from tests.unit.orchgpu.runs.run_bench import Bench, on_virtual_time
from tests.unit.orchgpu.runs.run_world import BUCKET, step

CHAIN = (step("a"), step("b", "a"))
SLO = Slo(latency_s=3600.0)


def plays(job: Job) -> list[str]:
    return [f"{job.function}.txt"]


async def admission(bench: Bench, run: str) -> Admission:
    stored = await bench.store.get(BUCKET, admission_key(run, 0), bytes_max=10**6)
    return decode_json(Admission, stored.body or b"")


def test_a_promised_run_ends_and_its_promise_with_it() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        result = await bench.end_of(run)
        assert result.state is RunState.SUCCEEDED
        assert (await admission(bench, run)).outcome is Outcome.GRANTED
        remembered = bench.scheduler.machine.state.memory.values
        assert not [name for name in remembered if name.startswith(("run/", "book/"))]

    on_virtual_time(CHAIN, plays, test, SLO, "slo")


@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_die_while_the_cloud_fails_begin_no_step_without_a_promise(
    seed: int,
) -> None:
    async def test(bench: Bench) -> None:
        stream = random.Random(seed)
        run = await bench.upload()
        for _ in range(4):
            faults = Faults(rate=0.1, stream=random.Random(stream.random()), delay_s_max=0.05)

            async def live(weather: Faults = faults) -> None:
                async with Nursery("replica") as nursery:
                    await bench.replica(nursery, weather)
                    await asyncio.sleep(stream.uniform(0.05, 3.0))
                    raise TimeoutError  # killed: nothing is handed back

            with contextlib.suppress(AppError, TimeoutError):
                await live()
        await bench.replica(bench.nursery)
        result = await bench.end_of(run)
        assert result.state is RunState.SUCCEEDED, result
        assert (await admission(bench, run)).granted
        assert set(bench.commits.values()) == {1}

    on_virtual_time(CHAIN, plays, test, SLO, "slo")


@pytest.mark.parametrize(
    ("slo", "policy", "why", "reason"),
    [
        (SLO, "fifo", "ssgm set policy slo", Reason.NO_PROMISES),
        (Slo(latency_s=1e-9), "slo", "had passed", Reason.SLO_IMPOSSIBLE),
    ],
)
def test_a_run_that_cannot_be_promised_is_rejected(
    slo: Slo, policy: str, why: str, reason: Reason
) -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        run = await bench.upload()
        result = await bench.end_of(run)
        assert (result.state, result.reason) == (RunState.REJECTED, reason)
        assert {one.state for one in result.steps} == {StepState.SKIPPED}, "none began"
        assert why in result.detail
        assert not bench.commits

    on_virtual_time(CHAIN, plays, test, slo, policy)


def test_a_step_with_jobs_for_each_file_is_no_promise() -> None:
    async def test(bench: Bench) -> None:
        await bench.replica(bench.nursery)
        result = await bench.end_of(await bench.upload())
        assert (result.state, result.reason) == (RunState.REJECTED, Reason.SLO_IMPOSSIBLE)
        assert "each: true" in result.detail

    on_virtual_time((step("a"), step("b", "a", each=True)), plays, test, SLO, "slo")


class Denying:
    """A scheduler whose keys let the caller promise nothing."""

    async def ask(self, _op: object) -> object:
        raise AppError(ErrorCode.DENIED, "key 'orch' may request priority 0 at most")


def test_a_promise_that_the_key_may_not_have_is_refused_and_not_asked_for_again() -> None:
    steps = (PromisedStep(name="a", job="j", request=Request()),)
    scheduler: Any = Denying()
    refusal = asyncio.run(request_promise(scheduler, "r", steps, SLO, gone_s=0.0, wall_s=1.0))
    assert not refusal.granted
    assert "priority 0 at most" in refusal.why

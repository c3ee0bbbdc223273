"""A job without a device: rejected, repeated for any cpu, or queued again."""

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, Request, Sharing, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Phase
from tests.unit.orchgpu.jobs import EXPLANATION, FUNCTION, JOB, Bench, record, report

WANTS = Request(
    count=2,
    kinds=(DeviceKind.CUDA,),
    models=("A100",),
    memory_mib=512,
    min_driver="550",
    sharing=Sharing.EXCLUSIVE,
    max_wait_s=60.0,
    priority=7,
)


def bench_for(**changes: Any) -> Bench:
    bench = Bench()
    bench.machine.set_functions({"search": replace(FUNCTION, request=WANTS, **changes)})
    return bench


def refuse(bench: Bench, *, busy: bool, pushed: int | None = None) -> do.RecordAttemptFailure:
    bench.on(on.AttemptImpossible, explanation=EXPLANATION, busy=busy, attempt=pushed)
    return bench.one(do.RecordAttemptFailure)


def again(bench: Bench, n: int) -> do.OpenAttempt:
    """The refused attempt n is on record, and the next one is asked for."""
    failed = record(Step.RECEIVED, revision=10 + n, attempt=n)
    pause_s = bench.one(do.RecordAttemptFailure).pause_s
    bench.on(on.AttemptFailureRecorded, record=failed, pause_s=pause_s)
    bench.retried()
    return bench.one(do.OpenAttempt)


@pytest.mark.parametrize("busy", [True, False])
def test_any_cpu_will_do_once_no_device_came(busy: bool) -> None:
    bench = bench_for(on_unavailable="cpu").read()
    assert bench.one(do.OpenAttempt).request == WANTS
    assert refuse(bench, busy=busy).attempt == 1
    opening = again(bench, 1)
    assert (opening.attempt, opening.revision) == (2, 11)
    assert opening.payload["fell_back"] is True
    assert opening.request == Request(kinds=(DeviceKind.CPU,), memory_mib=512, priority=7)


def test_no_cpu_either_is_the_end() -> None:
    bench = bench_for(on_unavailable="cpu").read()
    refuse(bench, busy=True)
    again(bench, 1)
    bench.on(on.AttemptImpossible, explanation=EXPLANATION)
    assert bench.one(do.WriteResult).result.reason == "IMPOSSIBLE"


def test_a_job_that_fell_back_requests_a_cpu_after_its_adoption() -> None:
    bench = bench_for(on_unavailable="cpu").read()
    refuse(bench, busy=True)
    block = again(bench, 1).payload
    heir = bench_for(on_unavailable="cpu")
    orphan = record(Step.RECEIVED, owner=None, block=block, attempt=2)
    heir.on(on.Orphaned, function="search", record=orphan)
    heir.on(on.Adopted, record=record(Step.RECEIVED, block=block), granted=None)
    heir.on(on.ResultRead, result=None)
    assert heir.one(do.OpenAttempt).request.kinds == (DeviceKind.CPU,)


def test_a_requeued_job_waits_again_after_a_pause_and_nothing_is_counted() -> None:
    bench = bench_for(on_unavailable="requeue", attempts_max=1).read()
    for n in range(1, 5):
        waiting = record(Step.WAITING, revision=n, attempt=n)
        bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
        failure = refuse(bench, busy=True, pushed=n)
        assert (failure.attempt, failure.reason) == (n, "BUSY")
        assert Budget().retry_base_s / 2 <= failure.pause_s <= Budget().retry_base_s
        assert again(bench, n).attempt == n + 1
    assert bench.machine.jobs[JOB].first_attempt == 5


def test_what_can_never_be_is_not_requeued() -> None:
    bench = bench_for(on_unavailable="requeue").read()
    bench.on(on.AttemptImpossible, explanation=EXPLANATION)
    assert bench.one(do.WriteResult).result.reason == "IMPOSSIBLE"


@pytest.mark.parametrize("attempts_max", [1, 5])
def test_a_function_sets_the_number_of_attempts(attempts_max: int) -> None:
    bench = bench_for(attempts_max=attempts_max).running()
    job = bench.machine.jobs[JOB]
    for n in range(1, attempts_max + 1):
        job.attempt, job.phase = n, Phase.EXPLAINING
        bench.on(on.ReportRead, attempt=n, report=report(attempt=n))
        kind = do.WriteResult if n == attempts_max else do.RecordAttemptFailure
        bench.one(kind)


@pytest.mark.parametrize("way", ["fail", "cpu", "requeue"])
def test_a_job_past_its_deadline_is_of_no_use_on_any_device(way: str) -> None:
    bench = bench_for(on_unavailable=way).read()
    late = replace(EXPLANATION, late=True)
    bench.on(on.AttemptImpossible, explanation=late)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason) == ("REJECTED", "DEADLINE")


def test_an_input_by_reference_is_never_wanted_here() -> None:
    bench = bench_for(envelope="reference").received()
    assert bench.one(do.ReadInput).inline is False
    assert bench_for().received().one(do.ReadInput).inline is True

"""`max_cost`: a cap of dollars as a time, summed over attempts and replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.states import JobState, Reason
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndReason, JobLease, LeaseState, Record, Request, Step
from gpu_scheduler.promises import Slo
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.execution import Place
from orchgpu.core.function import Function
from orchgpu.core.job import Job, Phase, input_from_payload
from orchgpu.core.max_cost import ATTEMPT_S_MIN, usd_per_s
from orchgpu.core.prices import Prices
from orchgpu.core.routing import InputEvent, StepOf, classify
from orchgpu.core.runs.messages import JobFacts, step_body
from orchgpu.core.runs.records import InputFile
from tests.unit.orchgpu.jobs import (
    FUNCTION,
    JOB,
    NOW,
    Bench,
    Now,
    granted,
    record,
    report,
    result,
)

WALL_S = NOW["wall_s"]
MEMORY_MIB = 1024
RATE = Prices().function_usd_per_s(MEMORY_MIB) + Prices().device_usd_per_s  #: USD per second
CAP_S = 60.0
CAPPED = replace(FUNCTION, memory_mib=MEMORY_MIB, max_cost_usd=CAP_S * RATE, attempts_max=10)
WITHOUT = replace(
    CAPPED,
    request=Request(count=0),
    max_cost_usd=CAP_S * Prices().function_usd_per_s(MEMORY_MIB),
)


def at(seconds: float) -> Now:
    return {"at_s": NOW["at_s"] + seconds, "wall_s": WALL_S + seconds}


def bench_of(function: Function = CAPPED) -> Bench:
    bench = Bench()
    bench.machine.set_functions({"search": function})
    return bench


@pytest.fixture
def bench() -> Bench:
    return bench_of()


def armed(bench: Bench) -> list[float]:
    timers = [a for a in bench.actions if isinstance(a, do.ArmTimer)]
    return [timer.in_s for timer in timers if timer.timer is do.Timer.COST]


def fire(bench: Bench, after_s: float) -> None:
    bench.tell(on.TimerFired(**at(after_s), job=JOB, timer=do.Timer.COST))


def fails(bench: Bench, n: int, after_s: float) -> None:
    """The lease of attempt n ends then, without a result, and the failure is recorded."""
    ended = LeaseState.ENDED
    bench.tell(
        on.LeaseChanged(
            **at(after_s), job=JOB, attempt=n, state=ended, reason=EndReason.DONE, detail=""
        )
    )
    bench.tell(on.ResultRead(**at(after_s), job=JOB, result=None))
    bench.tell(on.ReportRead(**at(after_s), job=JOB, attempt=n, report=report(attempt=n)))
    if bench.kinds() == ["RecordAttemptFailure"]:
        bench.tell(
            on.AttemptFailureRecorded(**at(after_s), job=JOB, record=record(attempt=n), pause_s=0.0)
        )


def opens(bench: Bench, n: int, after_s: float) -> None:
    """Attempt n gets its device then, and runs."""
    if n > 1:
        bench.tell(on.TimerFired(**at(after_s), job=JOB, timer=do.Timer.NEXT_ATTEMPT))
        bench.tell(on.ResultRead(**at(after_s), job=JOB, result=None))
    bench.one(do.OpenAttempt)
    bench.tell(
        on.AttemptGranted(
            **at(after_s), job=JOB, attempt=n, granted=granted(n), record=record(attempt=n)
        )
    )
    timers = armed(bench)
    bench.staged(n)
    bench.actions = tuple(do.ArmTimer(job=JOB, timer=do.Timer.COST, in_s=in_s) for in_s in timers)


def test_a_job_without_a_cap_is_as_before() -> None:
    bench = Bench().read()
    assert "paid_usd" not in bench.one(do.OpenAttempt).payload
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert armed(bench) == []
    assert bench.one(do.StageEnvelope).cost is None


def test_the_cap_is_a_time_from_the_grant_on(bench: Bench) -> None:
    bench.read()
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert armed(bench) == [pytest.approx(CAP_S)]
    cost = bench.one(do.StageEnvelope).cost
    assert cost == {
        "paid_usd": 0.0,
        "usd_per_s": pytest.approx(RATE),
        "since_s": WALL_S,
        "cap_usd": CAP_S * RATE,
    }


def test_a_job_at_its_cap_ends_with_a_result_then_its_lease(bench: Bench) -> None:
    bench.running()
    fire(bench, CAP_S)
    written = bench.one(do.WriteResult)
    assert (written.result.state, written.result.reason) == ("FAILED", Reason.MAX_COST)
    assert written.result.cost_usd == pytest.approx(CAP_S * RATE, rel=1e-6)
    assert "max_cost is" in written.result.detail
    bench.on(on.ResultWritten, result=written.result)
    assert bench.kinds() == ["SendDeadLetter"]
    bench.on(on.DeadLetterSent)
    assert bench.one(do.FinishJob).reason == Reason.MAX_COST


def test_a_result_that_was_there_first_stands(bench: Bench) -> None:
    bench.running()
    fire(bench, CAP_S)
    done = replace(bench.one(do.WriteResult).result, state="SUCCEEDED", reason="NONE")
    bench.on(on.ResultWritten, result=done)
    assert bench.one(do.FinishJob).outcome == "SUCCEEDED"


def test_a_timer_of_an_earlier_attempt_ends_nothing(bench: Bench) -> None:
    bench.running()
    fire(bench, 20.0)
    assert armed(bench) == [pytest.approx(CAP_S - 20.0)]
    assert bench.kinds() == []


def test_a_pushed_grant_is_paid_from_its_acceptance_on(bench: Bench) -> None:
    bench.read()
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=None, pushed=True)
    assert armed(bench) == []
    bench.tell(on.LeaseRenewed(**at(5.0), job=JOB, attempt=1))
    assert armed(bench) == [pytest.approx(CAP_S)]


def test_the_sum_goes_on_over_attempts(bench: Bench) -> None:
    bench.read()
    opens(bench, 1, 0.0)
    fails(bench, 1, 25.0)
    opens(bench, 2, 100.0)
    assert armed(bench) == [pytest.approx(CAP_S - 25.0)]
    fails(bench, 2, 120.0)
    bench.tell(on.TimerFired(**at(130.0), job=JOB, timer=do.Timer.NEXT_ATTEMPT))
    bench.tell(on.ResultRead(**at(130.0), job=JOB, result=None))
    payload = bench.one(do.OpenAttempt).payload
    assert payload["paid_usd"] == pytest.approx(45.0 * RATE)
    assert payload["paid_attempt"] == 2


def test_an_attempt_that_could_not_begin_under_the_cap_does_not(bench: Bench) -> None:
    bench.read()
    opens(bench, 1, 0.0)
    fails(bench, 1, CAP_S - ATTEMPT_S_MIN / 2)
    result = bench.one(do.WriteResult).result
    assert (result.reason, result.exit_code) == (Reason.MAX_COST, 3)
    assert "EXIT_NONZERO exit code 3" in result.detail
    assert result.log_tail == "last words"


def test_the_last_attempt_keeps_its_own_reason(bench: Bench) -> None:
    bench = bench_of(replace(CAPPED, attempts_max=1))
    bench.read()
    opens(bench, 1, 0.0)
    fails(bench, 1, CAP_S)
    assert bench.one(do.WriteResult).result.reason == Reason.EXIT_NONZERO


def test_without_a_device_the_claim_is_taken_too() -> None:
    bench = bench_of(WITHOUT).read()
    left = record(Step.RECEIVED, with_device=False, ended_owners=())
    bench.on(on.AttemptOpened, attempt=1, record=left)
    assert armed(bench) == [pytest.approx(CAP_S)]
    bench.staged()
    fire(bench, CAP_S)
    assert bench.kinds() == ["CloseAttempt", "WriteResult"]


def test_without_a_device_a_look_for_the_end_comes_first() -> None:
    bench = bench_of(WITHOUT).read()
    left = record(Step.RECEIVED, with_device=False, ended_owners=())
    bench.on(on.AttemptOpened, attempt=1, record=left)
    bench.staged()
    bench.on(on.ResultNoticed)
    fire(bench, CAP_S)
    assert (bench.kinds(), len(armed(bench))) == ([], 1)


def test_a_redriven_job_has_a_new_sum(bench: Bench) -> None:
    bench.read()
    job = bench.machine.jobs[JOB]
    job.paid_usd, job.replace_etag = 59.9 * RATE, "e"
    bench.on(on.RecordConflict, record=record(Step.ENDED, outcome="FAILED"))
    bench.on(on.Reopened, record=record(Step.RECEIVED, attempt=2))
    assert bench.one(do.OpenAttempt).payload["paid_usd"] == 0.0


# ---------------------------------------------------------------------- other replicas


def left_by(step: Step, *, paid_s: float, attempt: int, held: tuple[float, float | None]) -> Record:
    """The record of a job whose owner died; attempt `attempt` was paid from…to."""
    since_s, ended_s = held
    return record(
        step,
        owner=None,
        attempt=attempt,
        ended_owners=(),
        reason=Reason.EXIT_NONZERO if ended_s is not None else None,
        lease=LeaseId(f"lease-{attempt}"),
        block={
            "function": "search",
            "paid_usd": paid_s * RATE,
            "paid_attempt": attempt - 1,
            "input": {
                "bucket": "in",
                "key": "k",
                "version_id": "v1",
                "etag": "e",
                "size": 1,
                "event_name": "ObjectCreated:Put",
                "event_time": "",
            },
        },
        leases=(
            JobLease(
                lease=LeaseId(f"lease-{attempt}"),
                attempt=attempt,
                shares=granted().lease.shares,
                share_count=1,
                granted_s=WALL_S + since_s,
                ended_s=None if ended_s is None else WALL_S + ended_s,
            ),
        ),
        updated_s=WALL_S + (ended_s or since_s),
    )


def adopts(bench: Bench, left: Record, after_s: float) -> None:
    bench.tell(on.Orphaned(**at(after_s), job=JOB, function="search", record=left))
    running = left.step in (Step.STAGED, Step.RUNNING)
    bench.tell(
        on.Adopted(
            **at(after_s), job=JOB, record=left, granted=granted(left.attempt) if running else None
        )
    )


def test_another_replica_continues_the_sum_of_a_running_attempt(bench: Bench) -> None:
    left = left_by(Step.RUNNING, paid_s=30.0, attempt=2, held=(0.0, None))
    adopts(bench, left, 10.0)
    assert armed(bench) == [pytest.approx(CAP_S - 40.0)]
    fire(bench, 30.0)
    assert bench.one(do.WriteResult).result.reason == Reason.MAX_COST


def test_another_replica_adds_an_attempt_that_ended_before(bench: Bench) -> None:
    left = left_by(Step.RECEIVED, paid_s=30.0, attempt=2, held=(0.0, 20.0))
    adopts(bench, left, 500.0)
    job = bench.machine.jobs[JOB]
    assert (job.phase, job.paid_attempt) == (Phase.RECHECKING, 2)
    assert job.paid_usd == pytest.approx(50.0 * RATE)


@given(st.lists(st.tuples(st.floats(0.5, 40.0), st.booleans()), min_size=1, max_size=9))
def test_a_job_never_costs_more_than_its_cap(attempts: list[tuple[float, bool]]) -> None:
    """Attempts of any length, each perhaps at another replica: the sum stays exact."""
    bench, now_s, paid_s = bench_of(), 0.0, 0.0
    bench.read()
    for n, (length_s, moves) in enumerate(attempts, start=1):
        opens(bench, n, now_s)
        (left_s,) = armed(bench)
        assert left_s == pytest.approx(CAP_S - paid_s, abs=1e-3)
        if moves:
            before_s, bench = paid_s, bench_of()
            left = left_by(Step.RUNNING, paid_s=before_s, attempt=n, held=(now_s, None))
            adopts(bench, left, now_s + length_s / 2)
            (left_s,) = armed(bench)
            assert left_s == pytest.approx(max(0.0, CAP_S - paid_s - length_s / 2), abs=1e-3)
        if paid_s + length_s >= CAP_S:
            fire(bench, now_s + CAP_S - paid_s + 1e-3)
            result = bench.one(do.WriteResult).result
            assert result.reason == Reason.MAX_COST
            assert result.cost_usd == pytest.approx(CAP_S * RATE, rel=1e-3)
            return
        now_s, paid_s = now_s + length_s, paid_s + length_s
        fails(bench, n, now_s)
        if CAP_S - paid_s < ATTEMPT_S_MIN:
            assert bench.one(do.WriteResult).result.reason == Reason.MAX_COST
            return
        now_s += 100.0


@pytest.mark.parametrize(("place", "memory_mib"), [("lambda", 1024), ("host", 0), ("batch", 0)])
def test_memory_has_a_price_in_lambda_alone(place: str, memory_mib: int) -> None:
    source = next(iter(bench_of(WITHOUT).read().machine.jobs.values()))
    source.place = Place(place)
    assert usd_per_s(source) == pytest.approx(Prices().job_usd_per_s(memory_mib, 0))


# ---------------------------------------------------------------------- steps of a run


def test_the_job_of_a_step_has_what_its_run_has_left() -> None:
    of = StepOf(run="r" + "0" * 25, workflow="films", step="search")
    file = InputFile(step="", bucket="in", key="k", version="v1")
    bench = bench_of(replace(CAPPED, max_cost_usd=None))
    bench.tell(
        on.MessageReceived(
            **NOW,
            function="search",
            message_id="m1",
            receipt_handle="h1",
            body=step_body(of, file, JobFacts(stored_at_s=1.0, max_cost_usd=20.0 * RATE)),
        )
    )
    (job,) = bench.machine.jobs.values()
    assert job.max_cost_usd == pytest.approx(20.0 * RATE)
    payload = job.payload()["input"]
    assert isinstance(payload, dict)
    assert payload["max_cost_usd"] == pytest.approx(20.0 * RATE)
    assert job.state is JobState.RECEIVED


# ---------------------------------------------------------------------- a promise of cost

#: Its promise may cost what a minute does; it has no cap.
COSTED = replace(CAPPED, max_cost_usd=None, slo=Slo(latency_s=1e6, cost_usd=CAP_S * RATE))


@pytest.mark.parametrize(("share", "cause"), [(0.5, ""), (1.5, "COST")])
def test_the_cost_of_a_promised_job_is_counted_and_compared_at_its_end(
    share: float, cause: str
) -> None:
    bench = bench_of(COSTED).read()
    bench.on(on.PromiseAnswered, admission=None)
    assert bench.one(do.OpenAttempt).payload["paid_usd"] == 0.0
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert armed(bench) == [], "it has no cap"
    cost = bench.one(do.StageEnvelope).cost
    assert cost == {"paid_usd": 0.0, "usd_per_s": pytest.approx(RATE), "since_s": WALL_S}
    bench.on(on.ResultRead, result=result(cost_usd=share * CAP_S * RATE))
    finish = bench.one(do.FinishJob)
    assert finish.promised is not None
    assert finish.promised.cause == cause
    assert finish.payload is not None, "lists show it by the record"
    assert finish.payload["cost_usd"] == share * CAP_S * RATE


def test_the_cost_of_a_step_is_counted_if_its_run_promises_one() -> None:
    of = StepOf(run="r" + "0" * 25, workflow="films", step="search")
    file = InputFile(step="", bucket="in", key="a.txt", version="v1", name="a.txt")
    for counts in (True, False):
        verdict = classify(
            step_body(of, file, JobFacts(stored_at_s=1.0, counts_cost=counts)),
            CAPPED,
        )
        assert isinstance(verdict, InputEvent)
        job = Job(
            id=of.job,
            function=replace(CAPPED, max_cost_usd=None),
            input=verdict,
            receipt_handles={},
            received_at_s=0.0,
        )
        assert job.counts_cost is counts
        assert ("paid_usd" in job.payload()) is counts
        again = input_from_payload(job.payload())
        assert again is not None
        assert again.counts_cost is counts

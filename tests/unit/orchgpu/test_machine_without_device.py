"""The watch over attempts without a device: notices in any order, deadlines, adoption."""

from __future__ import annotations

from typing import Any

import pytest

from contract.claim import Claim
from contract.result import Report
from contract.states import JobState, Reason
from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import EndReason, Record, Request, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.function import Function
from orchgpu.core.job import Phase
from tests.unit.orchgpu.jobs import (
    FUNCTION,
    JOB,
    NOW,
    Bench,
    body,
    granted,
    input_read,
    message,
    record,
    report,
    result,
    s3_record,
)

WALL_S = NOW["wall_s"]
BUDGET = Budget()
WITHOUT = replace(FUNCTION, request=Request(count=0))


def opened(step: Step = Step.RECEIVED, **changes: Any) -> Record:
    return record(step, with_device=False, **{"ended_owners": (), **changes})


def claim(request: str = "start-1", ends_in_s: float = 60.0) -> Claim:
    ends_at_s = WALL_S + ends_in_s
    return Claim(job_id=JOB, attempt=1, request=request, claimed_at_s=WALL_S, ends_at_s=ends_at_s)


def at(seconds: float) -> dict[str, float]:
    return {"at_s": NOW["at_s"] + seconds, "wall_s": WALL_S + seconds}


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.machine.set_functions({"search": WITHOUT})
    return made.read()


@pytest.fixture
def watched(bench: Bench) -> Bench:
    bench.on(on.AttemptOpened, attempt=1, record=opened())
    assert bench.kinds() == ["StageEnvelope"], "no lease is renewed"
    assert bench.one(do.StageEnvelope).granted is None
    bench.on(on.EnvelopeStaged, attempt=1)
    assert bench.one(do.RecordStaged).lease is None
    bench.on(on.StagedRecorded, attempt=1)
    return bench


def armed(bench: Bench, timer: do.Timer) -> list[float]:
    found = [a for a in bench.actions if isinstance(a, do.ArmTimer)]
    return [action.in_s for action in found if action.timer is timer]


def nothing(bench: Bench) -> None:
    """Neither a result nor a report."""
    bench.one(do.ReadResult)
    bench.on(on.ResultRead, result=None)
    bench.one(do.ReadReport)
    bench.on(on.ReportRead, attempt=1, report=None)


def fire(bench: Bench, timer: do.Timer, after_s: float = 200.0) -> None:
    bench.tell(on.TimerFired(**at(after_s), job=JOB, timer=timer))


def test_it_asks_for_no_device(bench: Bench) -> None:
    assert bench.one(do.OpenAttempt).request.count == 0
    assert bench.machine.jobs[JOB].state is JobState.RECEIVED


def test_the_watch_has_a_deadline_and_a_backup(watched: Bench) -> None:
    assert armed(watched, do.Timer.DEADLINE) == [BUDGET.connect_by_s]
    assert armed(watched, do.Timer.CHECK) == [BUDGET.result_check_s]
    assert watched.machine.jobs[JOB].state is JobState.STAGED


def test_a_result_ends_it(watched: Bench) -> None:
    watched.on(on.ResultNoticed)
    watched.on(on.ResultRead, result=result())
    watched.one(do.FinishJob)
    watched.on(on.Finished)
    assert watched.one(do.RemoveEnvelope).fence == 0


def test_a_report_fails_the_attempt_after_a_look_for_the_result(watched: Bench) -> None:
    watched.on(on.ReportNoticed, attempt=1)
    watched.one(do.ReadResult)
    watched.unresolved(report())
    assert watched.one(do.RecordAttemptFailure).reason is Reason.EXIT_NONZERO


def test_a_notice_that_comes_before_the_watch_is_not_forgotten(bench: Bench) -> None:
    """A function of milliseconds is faster than the scheduler's answer."""
    bench.on(on.AttemptOpened, attempt=1, record=opened())
    bench.on(on.AttemptStarted, attempt=1, claim=claim())
    bench.on(on.ResultNoticed)
    bench.on(on.EnvelopeStaged, attempt=1)
    assert bench.machine.jobs[JOB].state is JobState.RUNNING
    bench.on(on.StagedRecorded, attempt=1)
    bench.one(do.ReadResult)


def test_a_notice_during_a_look_makes_another(watched: Bench) -> None:
    watched.on(on.ReportNoticed, attempt=1)
    watched.on(on.ResultRead, result=None)
    watched.on(on.ResultNoticed)
    watched.on(on.ReportRead, attempt=1, report=None)
    watched.one(do.ReadResult)


def test_a_look_that_finds_nothing_goes_on_watching(watched: Bench) -> None:
    fire(watched, do.Timer.CHECK, 5.0)
    nothing(watched)
    assert watched.kinds() == []
    assert len(armed(watched, do.Timer.CHECK)) == 1
    assert watched.machine.jobs[JOB].phase is Phase.RUNNING


def test_without_a_start_the_attempt_is_closed_and_does_not_count(watched: Bench) -> None:
    fire(watched, do.Timer.DEADLINE)
    assert watched.kinds() == ["CloseAttempt"]
    watched.on(on.AttemptClosed, attempt=1, claim=claim(request=""))
    nothing(watched)
    assert watched.one(do.RecordAttemptFailure).reason is Reason.NOT_STARTED
    assert watched.machine.jobs[JOB].first_attempt == 2


def test_a_result_that_stands_at_the_deadline_comes_first(watched: Bench) -> None:
    fire(watched, do.Timer.DEADLINE)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(request=""))
    watched.on(on.ResultRead, result=result())
    watched.one(do.FinishJob)


def test_a_late_start_that_has_the_claim_runs_out_its_time(watched: Bench) -> None:
    fire(watched, do.Timer.DEADLINE)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(ends_in_s=60.0))
    assert armed(watched, do.Timer.DEADLINE) == [90.0]
    nothing(watched)
    assert watched.machine.jobs[JOB].phase is Phase.RUNNING
    fire(watched, do.Timer.DEADLINE)
    watched.tell(on.AttemptClosed(**at(90.0), job=JOB, attempt=1, claim=claim(ends_in_s=60.0)))
    nothing(watched)
    assert watched.one(do.RecordAttemptFailure).reason is Reason.FUNCTION_TIMEOUT


def test_a_deadline_during_a_look_comes_again(watched: Bench) -> None:
    fire(watched, do.Timer.CHECK)
    fire(watched, do.Timer.DEADLINE)
    assert armed(watched, do.Timer.DEADLINE) == [BUDGET.failure_grace_s]


@pytest.mark.parametrize("reason", ["NOT_STARTED", "EVENT_EXPIRED", "THROTTLED"])
def test_an_attempt_that_lambda_never_ran_does_not_count(watched: Bench, reason: str) -> None:
    failed(watched, report(reason))
    watched.one(do.RecordAttemptFailure)
    assert watched.machine.jobs[JOB].first_attempt == 2


@pytest.mark.parametrize("reason", ["START_TIMED_OUT", "OUT_OF_MEMORY", "FUNCTION_CRASHED"])
def test_a_start_that_failed_counts(watched: Bench, reason: str) -> None:
    failed(watched, report(reason))
    assert watched.one(do.RecordAttemptFailure).reason is Reason(reason)
    assert watched.machine.jobs[JOB].first_attempt == 1


def failed(bench: Bench, why: Report) -> None:
    bench.on(on.FunctionFailureRecorded, attempt=1)
    bench.unresolved(why)


def test_an_envelope_that_cannot_be_stored_fails_the_attempt(bench: Bench) -> None:
    bench.on(on.AttemptOpened, attempt=1, record=opened())
    action = bench.one(do.StageEnvelope)
    bench.on(on.CallFailed, action=action, retryable=False, message="no")
    assert bench.one(do.RecordAttemptFailure).reason is Reason.STAGING_ERROR


def adopted(step: Step, **changes: Any) -> Bench:
    bench = Bench()
    bench.machine.set_functions({"search": WITHOUT})
    block = Bench().read().one(do.OpenAttempt).payload
    found = opened(step, owner=None, block=block, **changes)
    bench.on(on.Orphaned, function="search", record=found)
    adoption = bench.one(do.AdoptRecord)
    assert adoption.suspect is found.packing
    bench.on(on.Adopted, record=found, granted=None)
    return bench


def test_an_adopter_of_a_packing_job_packs_it() -> None:
    assert adopted(Step.RECEIVED).kinds() == ["StageEnvelope"]


def test_four_ends_of_owners_while_packing_are_poison() -> None:
    bench = adopted(Step.RECEIVED)
    assert bench.kinds() == ["StageEnvelope"]
    bench = Bench()
    bench.machine.set_functions({"search": WITHOUT})
    block = Bench().read().one(do.OpenAttempt).payload
    ended = tuple(f"owner-{n}" for n in range(BUDGET.strikes_max + 1))
    found = replace(opened(owner=None, block=block), ended_owners=ended)
    bench.adopted(found)
    assert bench.one(do.WriteResult).result.reason == "POISON"


@pytest.mark.parametrize("step", [Step.STAGED, Step.RUNNING])
def test_an_adopter_of_a_staged_job_looks_at_once(step: Step) -> None:
    """Its predecessor may have taken the notice and died."""
    bench = adopted(step, times={"STAGED": WALL_S - 50.0})
    bench.one(do.ReadResult)
    assert armed(bench, do.Timer.DEADLINE) == [BUDGET.connect_by_s - 50.0]


def test_an_adopter_between_attempts_opens_the_next() -> None:
    bench = adopted(Step.RECEIVED, reason="EXIT_NONZERO")
    bench.one(do.ReadResult)
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).attempt == 2


def test_foreign_code_claims_nothing_so_only_the_end_of_its_time_is_known() -> None:
    bench = Bench()
    foreign = replace(WITHOUT, object_bucket="out", object_key="{job}.txt", timeout_s=40.0)
    bench.machine.set_functions({"search": foreign})
    bench.read()
    bench.on(on.AttemptOpened, attempt=1, record=opened())
    bench.staged()
    assert armed(bench, do.Timer.DEADLINE) == [BUDGET.connect_by_s + 40.0 + 30.0]
    fire(bench, do.Timer.DEADLINE)
    nothing(bench)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.NO_OBJECT


def test_a_redriven_job_that_the_scheduler_forgot_goes_on_counting() -> None:
    """Claims and reports of the earlier attempts still stand: their numbers are used."""
    bench = Bench()
    bench.machine.set_functions({"search": WITHOUT})
    bench.tell(message(body(s3_record(), orchgpu={"dead_at": 500.0})))
    bench.tell(input_read())
    bench.on(on.ResultRead, result=result("FAILED", attempt=3), etag="r1")
    opening = bench.one(do.OpenAttempt)
    assert (opening.attempt, opening.payload["first_attempt"]) == (4, 4)


def failed_by_then(bench: Bench, now: Function) -> None:
    """Attempt 1 failed, and the function was deployed again before attempt 2."""
    bench.machine.set_functions({"search": now})
    pause_s = bench.one(do.RecordAttemptFailure).pause_s
    over = record(Step.RECEIVED, revision=20, reason="EXIT_NONZERO", ended_owners=())
    bench.on(on.AttemptFailureRecorded, record=over, pause_s=pause_s)
    fire(bench, do.Timer.NEXT_ATTEMPT, 5.0)
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).request == now.request


def test_the_deadline_of_an_attempt_without_a_device_ends_no_attempt_with_one(
    watched: Bench,
) -> None:
    failed(watched, report())
    failed_by_then(watched, FUNCTION)
    given = record(attempt=2, revision=21)
    watched.on(on.AttemptGranted, attempt=2, granted=granted(2), record=given)
    watched.staged(2)
    fire(watched, do.Timer.DEADLINE)
    assert watched.actions == ()
    assert watched.machine.jobs[JOB].phase is Phase.RUNNING


def test_the_renewal_of_an_ended_lease_is_nothing_to_an_attempt_without_a_device() -> None:
    bench = Bench().running().ended(EndReason.DONE)
    bench.unresolved(report())
    failed_by_then(bench, WITHOUT)
    next_one = opened(attempt=2, revision=21)
    bench.on(on.AttemptOpened, attempt=2, record=next_one)
    fire(bench, do.Timer.RENEW, 10.0)
    assert bench.actions == ()


def test_a_stored_envelope_takes_the_strikes_back() -> None:
    bench = adopted(Step.RECEIVED, ended_owners=("s-dead",))
    assert bench.machine.jobs[JOB].strikes == 1
    bench.staged()
    assert bench.machine.jobs[JOB].strikes == 0

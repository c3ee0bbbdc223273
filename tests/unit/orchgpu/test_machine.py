"""The job machine as event tables: what happened, and what is done about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.states import JobState, Reason
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseState, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Phase
from tests.unit.orchgpu.jobs import (
    EXPLANATION,
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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_received_message_reads_input_and_result_together(bench: Bench) -> None:
    bench.received()
    assert bench.kinds() == ["ReadInput", "ReadResult"]
    assert bench.one(do.ArmTimer).timer is do.Timer.BEAT
    assert bench.one(do.ReadInput).input.key == "seqs/a b.fasta"


def test_the_whole_way_of_a_job_that_succeeds(bench: Bench) -> None:
    bench.read()
    opening = bench.one(do.OpenAttempt)
    assert (opening.attempt, opening.revision, opening.receipt_handle) == (1, 0, "h1")
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert bench.kinds() == ["StageEnvelope"]
    bench.on(on.EnvelopeStaged, attempt=1)
    assert bench.one(do.RecordStaged).lease == "lease-1"
    bench.on(on.StagedRecorded, attempt=1)
    assert bench.machine.jobs[JOB].state is JobState.STAGED
    bench.on(on.LeaseChanged, attempt=1, state=LeaseState.ACTIVE, reason=None, detail="")
    assert bench.machine.jobs[JOB].state is JobState.RUNNING
    bench.ended(EndReason.DONE)
    assert bench.kinds() == ["ReadResult"]
    bench.on(on.ResultRead, result=result(), etag="r1")
    assert bench.one(do.FinishJob).outcome == "SUCCEEDED"
    bench.on(on.Finished)
    assert bench.one(do.DeleteMessages).receipt_handles == ("h1",)
    bench.on(on.MessagesDeleted)
    assert bench.kinds() == ["ForgetJob"]
    assert not bench.machine.jobs


@pytest.mark.parametrize(
    ("event", "state", "reason"),
    [
        (on.InputMissing(**NOW, job=JOB), "INPUT_GONE", Reason.INPUT_DELETED),
        (on.InputChanged(**NOW, job=JOB), "SUPERSEDED", Reason.INPUT_OVERWRITTEN),
    ],
)
def test_an_input_that_is_not_there_any_more_ends_the_job_without_a_reservation(
    bench: Bench, event: on.JobEvent, state: str, reason: Reason
) -> None:
    bench.received()
    bench.tell(event)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason) == (state, reason)
    bench.on(on.ResultWritten, result=written)
    assert bench.kinds() == ["FinishJob"]  # no dead letter: nothing to run again


def test_an_impossible_request_is_rejected_at_once_with_its_reason(bench: Bench) -> None:
    bench.read()
    bench.on(on.AttemptImpossible, explanation=EXPLANATION)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason) == ("REJECTED", "IMPOSSIBLE")
    assert written.detail == "waits for memory"
    bench.on(on.ResultWritten, result=written)
    letter = json.loads(bench.one(do.SendDeadLetter).body)
    assert letter["orchgpu"]["reason"] == "IMPOSSIBLE"
    assert letter["Records"][0]["s3"]["object"]["key"] == "seqs/a%20b.fasta"
    bench.on(on.DeadLetterSent)
    assert bench.kinds() == ["FinishJob"]


def test_a_pushed_grant_is_taken_and_staged(bench: Bench) -> None:
    bench.read()
    waiting = record(Step.WAITING, revision=1, attempt=1)
    bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
    assert bench.machine.jobs[JOB].state is JobState.WAITING
    push = on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=granted(), record=None, pushed=True)
    bench.tell(push)
    assert bench.kinds() == ["RenewLease"]
    bench.on(on.LeaseRenewed, attempt=1)
    assert bench.kinds() == ["StageEnvelope"]
    bench.on(on.LeaseRenewed, attempt=1)
    assert bench.kinds() == []


def test_a_grant_that_was_taken_too_late_costs_no_attempt(bench: Bench) -> None:
    bench.read()
    waiting = record(Step.WAITING, revision=1, attempt=1)
    bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=None, pushed=True)
    bench.ended(EndReason.NOT_ACCEPTED)
    assert bench.kinds() == []
    bench.on(on.LeaseGone, attempt=1)
    bench.one(do.ReadRecord)
    bench.on(on.RecordConflict, record=waiting)
    assert bench.one(do.AdoptRecord).revision == 1
    bench.on(on.Adopted, record=waiting, granted=None)
    assert bench.machine.jobs[JOB].state is JobState.WAITING
    again = granted(fence=9)
    bench.on(on.AttemptGranted, attempt=1, granted=again, record=None, pushed=True)
    bench.on(on.LeaseRenewed, attempt=1)
    staging = bench.one(do.StageEnvelope)
    assert staging.granted is not None
    assert (staging.attempt, staging.granted.lease.fence) == (1, 9)


@pytest.mark.parametrize(("ahead_s", "first"), [(40.0, "ArmTimer"), (-1.0, "ReadResult")])
def test_an_adopter_waits_out_the_pause_before_the_next_attempt(
    bench: Bench, ahead_s: float, first: str
) -> None:
    times = {"RETRY_AT": NOW["wall_s"] + ahead_s}
    block = Bench().read().one(do.OpenAttempt).payload
    failed = record(Step.RECEIVED, owner=None, times=times, block=block)
    bench.adopted(failed)
    (action,) = bench.actions
    assert type(action).__name__ == first
    if isinstance(action, do.ArmTimer):
        assert action.in_s == pytest.approx(ahead_s)
        bench.on(on.TimerFired, timer=action.timer)
        bench.one(do.ReadResult)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (EndReason.NOT_STARTED, "NOT_STARTED"),
        (EndReason.HOST_LOST, "HOST_LOST"),
        (EndReason.REVOKED, "REVOKED"),
        (EndReason.EXPIRED, "RESERVATION_EXPIRED"),
        (EndReason.DEVICE_BAD, "DEVICE_BAD"),
    ],
)
def test_an_ended_lease_without_result_fails_the_attempt_with_its_reason(
    bench: Bench, end: EndReason, reason: str
) -> None:
    bench.running().ended(end)
    bench.on(on.ResultRead, result=None)
    assert bench.kinds() == ["ReadReport"]
    bench.on(on.ReportRead, attempt=1, report=None)
    assert bench.one(do.RecordAttemptFailure).reason == reason


def test_a_lost_session_waits_a_moment_for_lambdas_own_record(bench: Bench) -> None:
    bench.running().ended(EndReason.SESSION_LOST, "reset by peer")
    bench.unresolved(None)
    assert bench.one(do.ArmTimer).timer is do.Timer.GRACE
    bench.on(on.FunctionFailureRecorded, attempt=1)
    assert bench.kinds() == ["ReadReport"]
    bench.on(on.ReportRead, attempt=1, report=report("FUNCTION_CRASHED"))
    assert bench.one(do.RecordAttemptFailure).reason is Reason.FUNCTION_CRASHED


def test_without_any_explanation_the_lost_session_is_the_reason(bench: Bench) -> None:
    bench.running().ended(EndReason.SESSION_LOST, "reset by peer")
    bench.unresolved(None)
    bench.on(on.TimerFired, timer=do.Timer.GRACE)
    bench.on(on.ReportRead, attempt=1, report=None)
    failure = bench.one(do.RecordAttemptFailure)
    assert (failure.reason, failure.detail) == (Reason.SESSION_LOST, "reset by peer")


def _fail(bench: Bench, n: int) -> None:
    bench.on(on.LeaseChanged, attempt=n, state=LeaseState.ENDED, reason=EndReason.DONE, detail="")
    bench.unresolved(report(attempt=n), attempt=n)


def _next(bench: Bench, n: int) -> None:
    pause_s = bench.one(do.RecordAttemptFailure).pause_s
    failed = record(Step.RECEIVED, attempt=n - 1, revision=10 * n)
    bench.on(on.AttemptFailureRecorded, record=failed, pause_s=pause_s)
    assert bench.one(do.ArmTimer).in_s == pause_s
    bench.on(on.TimerFired, timer=do.Timer.NEXT_ATTEMPT)
    assert bench.kinds() == ["ReadResult"]  # the last look before another attempt
    bench.on(on.ResultRead, result=None)
    opening = bench.one(do.OpenAttempt)
    assert (opening.attempt, opening.revision) == (n, 10 * n)
    opened = record(attempt=n, revision=10 * n + 1)
    bench.on(on.AttemptGranted, attempt=n, granted=granted(n), record=opened)
    bench.staged(n)


def deployed_again(bench: Bench, **changes: Any) -> None:
    bench.machine.set_functions({"search": replace(FUNCTION, **changes)})


def test_the_next_attempt_is_of_what_is_deployed_by_then(bench: Bench) -> None:
    bench.running()
    deployed_again(bench, revision="2", variables={"MODE": "new"})
    _fail(bench, 1)
    assert bench.machine.jobs[JOB].function.variables == {}  # attempt 1 ends as it began
    pause_s = bench.one(do.RecordAttemptFailure).pause_s
    failed = record(Step.RECEIVED, revision=20)
    bench.on(on.AttemptFailureRecorded, record=failed, pause_s=pause_s)
    bench.retried()
    opened = record(attempt=2, revision=21)
    bench.on(on.AttemptGranted, attempt=2, granted=granted(2), record=opened)
    assert bench.one(do.StageEnvelope).function.variables == {"MODE": "new"}


def test_a_job_that_is_being_read_is_of_what_is_deployed_when_it_opens(bench: Bench) -> None:
    bench.received()
    deployed_again(bench, request=replace(FUNCTION.request, memory_mib=64))
    bench.tell(input_read())
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).request.memory_mib == 64


def test_a_job_stays_with_the_places_where_its_records_lie(bench: Bench) -> None:
    bench.received()
    deployed_again(bench, intermediate_bucket="elsewhere")
    bench.tell(input_read())
    bench.on(on.ResultRead, result=None)
    assert bench.machine.jobs[JOB].function is FUNCTION


def test_three_attempts_then_a_failed_result_a_dead_letter_and_the_end(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    for n in (2, 3):
        _next(bench, n)
        _fail(bench, n)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason, written.attempt) == ("FAILED", "EXIT_NONZERO", 3)
    assert (written.exit_code, written.log_tail) == (3, "last words")
    assert written.device == {"host": "gpu-a", "kind": "cpu", "model": "EPYC"}
    bench.on(on.ResultWritten, result=written)
    assert json.loads(bench.one(do.SendDeadLetter).body)["orchgpu"]["dead_at"] == NOW["wall_s"]
    bench.on(on.DeadLetterSent)
    bench.on(on.Finished)
    assert bench.kinds() == ["RemoveEnvelope", "DeleteMessages"]


def test_an_envelope_goes_when_its_attempt_is_over(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    failed = record(Step.RECEIVED, revision=9)
    bench.on(on.AttemptFailureRecorded, record=failed, pause_s=1.0)
    gone = bench.one(do.RemoveEnvelope)
    assert (gone.attempt, gone.fence) == (1, 7)
    bench.on(on.TimerFired, timer=do.Timer.NEXT_ATTEMPT)
    bench.on(on.ResultRead, result=result())
    bench.on(on.Finished)
    assert bench.kinds() == ["RemoveEnvelope", "DeleteMessages"]
    assert bench.one(do.RemoveEnvelope).fence is None, "no lease is ours: whatever is left goes"


def test_envelopes_of_a_replica_that_died_go_with_the_job(bench: Bench) -> None:
    """It saw neither the lease nor its end; a duplicate of an event is the same case."""
    bench.tell(message())
    bench.on(on.ResultRead, result=result())
    bench.on(on.Finished)
    assert bench.kinds() == ["RemoveEnvelope", "DeleteMessages"]
    gone = bench.one(do.RemoveEnvelope)
    assert (gone.fence, gone.function) == (None, FUNCTION)


def test_a_commit_that_came_first_wins_over_our_failure(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    for n in (2, 3):
        _next(bench, n)
        _fail(bench, n)
    bench.on(on.ResultWritten, result=result())
    assert bench.kinds() == ["FinishJob"]
    assert bench.one(do.FinishJob).outcome == "SUCCEEDED"


def test_a_late_commit_is_seen_before_the_next_attempt_opens(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    failed = record(Step.RECEIVED, revision=9)
    bench.on(on.AttemptFailureRecorded, record=failed, pause_s=1.0)
    bench.on(on.TimerFired, timer=do.Timer.NEXT_ATTEMPT)
    bench.on(on.ResultRead, result=result())
    assert bench.kinds() == ["FinishJob"]


def test_pushes_about_an_earlier_attempt_change_nothing(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    _next(bench, 2)
    assert bench.ended(EndReason.SESSION_LOST).actions == ()


def test_notice_and_lease_end_together_read_once_and_decide_once(bench: Bench) -> None:
    bench.running()
    bench.on(on.ResultNoticed)
    assert bench.kinds() == ["ReadResult"]
    bench.ended(EndReason.DONE)
    assert bench.kinds() == []
    bench.on(on.ResultRead, result=result())
    assert bench.kinds() == ["FinishJob"]
    assert bench.on(on.ResultRead, result=result()) == ()


def test_a_read_that_began_before_the_lease_ended_is_not_the_last_word(bench: Bench) -> None:
    bench.running()
    bench.on(on.ResultNoticed)
    bench.ended(EndReason.DONE)
    bench.on(on.ResultRead, result=None)
    assert bench.kinds() == ["ReadResult"]
    bench.on(on.ResultRead, result=None)
    assert bench.kinds() == ["ReadReport"]


def test_a_duplicate_event_adds_its_message_and_no_second_run(bench: Bench) -> None:
    bench.running()
    assert bench.tell(message(message_id="m2", receipt_handle="h2")) == ()
    bench.ended(EndReason.DONE)
    bench.on(on.ResultRead, result=result())
    bench.on(on.Finished)
    assert bench.one(do.DeleteMessages).receipt_handles == ("h1", "h2")


def test_a_duplicate_after_success_is_finished_and_deleted(bench: Bench) -> None:
    bench.received()
    bench.on(on.ResultRead, result=result(), etag="r")
    assert bench.kinds() == ["FinishJob"]


def test_a_duplicate_after_failure_sends_no_second_dead_letter(bench: Bench) -> None:
    bench.received()
    bench.on(on.ResultRead, result=result("FAILED"), etag="r")
    assert bench.kinds() == ["ReadRecord"]
    closed = record(Step.ENDED, outcome="FAILED", owner=None)
    bench.on(on.RecordConflict, record=closed)
    assert bench.kinds() == ["DeleteMessages"]


def test_a_failure_without_a_dead_letter_is_adopted_and_dead_lettered(bench: Bench) -> None:
    bench.received()
    bench.on(on.ResultRead, result=result("FAILED"), etag="r")
    bench.on(on.RecordConflict, record=record(Step.RUNNING, owner=None))
    assert bench.kinds() == ["AdoptRecord"]
    bench.on(on.Adopted, record=record(Step.RUNNING), granted=None)
    assert bench.kinds() == ["SendDeadLetter"]


def test_a_job_of_another_replica_gets_the_newer_handle_and_is_left_alone(bench: Bench) -> None:
    bench.read()
    theirs = record(Step.RUNNING, owner="session-other")
    bench.on(on.RecordConflict, record=theirs)
    assert bench.kinds() == ["StoreReceiptHandle", "ForgetJob"]
    assert bench.one(do.StoreReceiptHandle).receipt_handle == "h1"
    assert not bench.machine.jobs


@pytest.mark.parametrize(
    ("step", "has_lease", "kinds"),
    [
        (Step.WAITING, False, []),
        (Step.RESERVED, True, ["StageEnvelope"]),
        (Step.RESERVED, False, ["ReadResult"]),
        (Step.STAGED, True, []),
        (Step.RUNNING, True, []),
        (Step.RUNNING, False, ["ReadResult"]),
        (Step.RECEIVED, False, ["ReadResult"]),
        (Step.ENDED, False, ["DeleteMessages"]),
    ],
)
def test_an_orphan_is_adopted_and_resumes_at_its_step(
    bench: Bench, step: Step, has_lease: bool, kinds: list[str]
) -> None:
    other = Bench()
    other.read()
    block = other.one(do.OpenAttempt).payload
    orphan = record(step, owner=None, block=block)
    bench.on(on.Orphaned, function="search", record=orphan)
    assert bench.kinds() == ["AdoptRecord", "ExtendVisibility"]
    lease = granted() if has_lease else None
    bench.on(on.Adopted, record=record(step, block=block), granted=lease)
    assert bench.kinds() == kinds


def test_one_more_end_after_three_strikes_is_poison(bench: Bench) -> None:
    block = Bench().read().one(do.OpenAttempt).payload
    dead = record(owner=None, block=block, ended_owners=("s1", "s2", "s3", "s4"))
    bench.on(on.Orphaned, function="search", record=dead)
    bench.on(on.Adopted, record=dead, granted=granted())
    assert bench.one(do.WriteResult).result.reason == "POISON"


def test_a_redriven_copy_replaces_the_failed_result_with_a_new_budget(bench: Bench) -> None:
    bench.tell(message(body(s3_record(), orchgpu={"dead_at": 500.0})))
    bench.tell(input_read())
    bench.on(on.ResultRead, result=result("FAILED"), etag="r1")
    bench.one(do.OpenAttempt)
    closed = record(Step.ENDED, outcome="FAILED", owner=None, attempt=3, revision=20)
    bench.on(on.RecordConflict, record=closed)
    assert bench.one(do.ReopenRecord).revision == 20
    reopened = record(Step.RECEIVED, attempt=3, revision=21)
    bench.on(on.Reopened, record=reopened)
    opening = bench.one(do.OpenAttempt)
    assert (opening.attempt, opening.payload["first_attempt"]) == (4, 4)
    opened = record(attempt=4, revision=22)
    bench.on(on.AttemptGranted, attempt=4, granted=granted(4), record=opened)
    assert bench.one(do.StageEnvelope).replace_etag == "r1"
    bench.staged(4)
    # the old failed result is still there while attempt 4 runs: it decides nothing
    bench.on(on.TimerFired, timer=do.Timer.CHECK)
    bench.on(on.ResultRead, result=result("FAILED"), etag="r1")
    assert bench.kinds() == []
    assert bench.machine.jobs[JOB].phase is Phase.RUNNING


def test_a_stale_redriven_copy_does_not_run_again(bench: Bench) -> None:
    bench.tell(message(body(s3_record(), orchgpu={"dead_at": 400.0})))
    bench.on(on.ResultRead, result=result("FAILED"), etag="r2")
    assert bench.kinds() == ["ReadRecord"]


def test_a_late_refusal_of_an_earlier_attempt_rejects_nothing(bench: Bench) -> None:
    bench.running()
    _fail(bench, 1)
    _next(bench, 2)
    late = on.AttemptImpossible(**NOW, job=JOB, explanation=EXPLANATION, attempt=1)
    assert bench.tell(late) == ()

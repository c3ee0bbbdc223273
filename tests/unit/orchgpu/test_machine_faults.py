"""The job machine when calls fail, owners change and messages are odd."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.states import Reason
from gpu_scheduler.model import EndReason, LeaseState, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Phase
from tests.unit.orchgpu.jobs import (
    EXPLANATION,
    JOB,
    NOW,
    Bench,
    body,
    granted,
    message,
    record,
    report,
    result,
    s3_record,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_failed_call_is_repeated_with_growing_pauses(bench: Bench) -> None:
    bench.read()
    action = bench.one(do.OpenAttempt)
    pauses = []
    for _ in range(6):
        bench.on(on.CallFailed, action=action, retryable=True, message="away")
        later = bench.one(do.RepeatLater)
        pauses.append(later.in_s)
        bench.on(on.RepeatDue, action=later.action)
        assert bench.actions == (action,)
    assert pauses[-1] > pauses[0]
    assert max(pauses) <= 10.0


def test_an_envelope_that_cannot_be_stored_gives_the_device_back(bench: Bench) -> None:
    bench.reserved()
    action = bench.one(do.StageEnvelope)
    bench.on(on.CallFailed, action=action, retryable=False, message="AccessDenied")
    assert bench.kinds() == ["ReleaseLease"]
    bench.ended(EndReason.RELEASED)
    bench.unresolved(None)
    failure = bench.one(do.RecordAttemptFailure)
    assert (failure.reason, failure.detail) == (Reason.STAGING_ERROR, "AccessDenied")


def test_a_drain_hands_back_what_has_not_started_and_leaves_the_rest(bench: Bench) -> None:
    bench.running()
    bench.tell(message(body(s3_record("other")), message_id="m2", receipt_handle="h2"))
    bench.tell(on.DrainRequested(**NOW))
    assert bench.kinds() == ["HandBack", "ForgetJob"]
    assert bench.one(do.HandBack).receipt_handles == ("h2",)
    assert list(bench.machine.jobs) == [JOB]
    bench.tell(message(body(s3_record("third")), message_id="m3", receipt_handle="h3"))
    assert bench.kinds() == ["HandBack"]


@pytest.mark.parametrize("phase", ["opening", "staging"])
def test_a_drain_hands_back_what_could_not_be_packed_in_time(bench: Bench, phase: str) -> None:
    bench.read() if phase == "opening" else bench.reserved()
    bench.tell(on.DrainRequested(**NOW))
    assert bench.kinds() == []  # it has some time
    bench.tell(on.DrainRequested(**NOW, last=True))
    assert bench.kinds() == ["HandBack", "ForgetJob"]
    assert bench.one(do.HandBack).even_granted
    assert not bench.machine.jobs


def test_the_end_of_a_drain_leaves_a_stored_envelope_to_its_record(bench: Bench) -> None:
    bench.reserved()
    bench.on(on.EnvelopeStaged, attempt=1)
    bench.tell(on.DrainRequested(**NOW))
    bench.tell(on.DrainRequested(**NOW, last=True))
    assert bench.kinds() == []


def test_a_drain_opens_no_further_attempt(bench: Bench) -> None:
    """Found by seed 986 of simulator.faults: the replica ended while it packed, a strike."""
    bench.running()
    bench.tell(on.DrainRequested(**NOW))
    bench.tell(on.DrainRequested(**NOW, last=True))
    bench.ended(EndReason.DONE).unresolved(report())
    between = record(Step.RECEIVED, revision=3)
    bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    bench.retried()
    assert bench.kinds() == ["HandBack", "ForgetJob"]
    assert not bench.machine.jobs


def test_after_an_hour_of_waiting_the_message_goes_back_and_the_place_is_kept(
    bench: Bench,
) -> None:
    bench.read()
    waiting = record(Step.WAITING, revision=2)
    bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
    assert bench.one(do.ArmTimer).in_s == 3600.0
    bench.on(on.TimerFired, timer=do.Timer.HAND_BACK)
    back = bench.one(do.HandBack)
    assert (back.revision, back.receipt_handles) == (2, ("h1",))
    bench.on(on.HandedBack)
    assert not bench.machine.jobs


def test_a_hand_back_that_meets_an_adoption_forgets_no_job(bench: Bench) -> None:
    """The scheduler came back meanwhile: the adoption may make this replica the owner once more."""
    bench.read()
    waiting = record(Step.WAITING, revision=2)
    bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
    bench.tell(on.LeaveRequested(**NOW))
    bench.tell(on.SchedulerReturned(**NOW))
    bench.on(on.RecordConflict, record=waiting)
    assert bench.kinds() == ["AdoptRecord"]
    bench.on(on.HandedBack)
    assert list(bench.machine.jobs) == [JOB]


def test_the_beat_extends_every_handle_we_hold(bench: Bench) -> None:
    bench.received()
    bench.tell(message(message_id="m1", receipt_handle="h1-again"))
    bench.on(on.ReceiptHandleRenewed, receipt_handle="h-elsewhere")
    bench.on(on.TimerFired, timer=do.Timer.BEAT)
    assert bench.one(do.ExtendVisibility).receipt_handles == ("h1-again", "h-elsewhere")
    assert bench.one(do.ArmTimer).timer is do.Timer.BEAT


def test_an_unversioned_object_is_known_by_what_one_read_says(bench: Bench) -> None:
    text = body(s3_record(version=None))
    bench.tell(message(text))
    assert bench.kinds() == ["ReadInput"]
    event = on.InputRead(**NOW, job="m1", etag="e1", version_id=None, last_modified="t1", size=1)
    bench.tell(event)
    assert bench.kinds() == ["ForgetJob", "ReadResult"]
    (name,) = bench.machine.jobs
    bench.tell(message(text, message_id="m2", receipt_handle="h2"))
    bench.tell(
        on.InputRead(**NOW, job="m2", etag="e1", version_id=None, last_modified="t1", size=1)
    )
    assert list(bench.machine.jobs) == [name]
    assert list(bench.machine.jobs[name].receipt_handles.values()) == ["h1", "h2"]


def test_after_the_scheduler_was_away_everything_that_waits_on_it_is_asked_for(
    bench: Bench,
) -> None:
    bench.running()
    bench.tell(on.SchedulerReturned(**NOW))
    assert bench.kinds() == ["ReadRecord"]
    bench.on(on.RecordConflict, record=record(Step.RUNNING, revision=8))
    assert bench.one(do.AdoptRecord).revision == 8
    bench.on(on.Adopted, record=record(Step.RUNNING), granted=None)
    assert bench.kinds() == ["ReadResult"]


def test_an_event_without_a_version_on_a_versioned_bucket_is_known_by_the_version_read(
    bench: Bench,
) -> None:
    """moto's events carry no versionId: the job is the same as the one AWS would name."""
    bench.tell(message(body(s3_record(version=None))))
    bench.tell(
        on.InputRead(**NOW, job="m1", etag="e1", version_id="v1", last_modified="t1", size=1)
    )
    assert list(bench.machine.jobs) == [JOB]
    assert bench.machine.jobs[JOB].input.version_id == "v1"


def test_an_input_we_may_never_read_ends_the_job_with_the_refusal(bench: Bench) -> None:
    bench.received()
    action = bench.one(do.ReadInput)
    refusal = on.CallFailed(
        **NOW, job=JOB, action=action, retryable=False, message="s3:GetObject: AccessDenied"
    )
    for _ in range(4):
        bench.tell(refusal)
        assert bench.kinds() == []  # a permission may be given yet
    bench.tell(refusal)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason) == ("FAILED", "INPUT_ERROR")
    assert "AccessDenied" in written.detail


def test_a_request_the_scheduler_refuses_ends_the_job(bench: Bench) -> None:
    bench.read()
    action = bench.one(do.OpenAttempt)
    refusal = on.CallFailed(**NOW, job=JOB, action=action, retryable=False, message="invalid")
    for _ in range(5):
        bench.tell(refusal)
    assert bench.one(do.WriteResult).result.reason == "REQUEST_REFUSED"


def test_an_adopter_learns_from_the_record_why_the_lease_ended(bench: Bench) -> None:
    block = Bench().read().one(do.OpenAttempt).payload
    orphan = record(Step.RUNNING, owner=None, block=block, reason="HOST_LOST")
    bench.on(on.Orphaned, function="search", record=orphan)
    mine = record(Step.RUNNING, block=block, reason="HOST_LOST")
    bench.on(on.Adopted, record=mine, granted=None)
    bench.unresolved(None)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.HOST_LOST


def test_a_lease_that_is_gone_is_explained_by_its_record(bench: Bench) -> None:
    bench.reserved()
    bench.on(on.LeaseGone, attempt=1)
    assert bench.kinds() == ["ReadRecord"]
    stands = record(Step.RESERVED, reason="DEVICE_BAD")
    bench.on(on.RecordConflict, record=stands)
    bench.on(on.Adopted, record=stands, granted=None)
    bench.unresolved(None)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.DEVICE_BAD


def test_an_adoption_that_comes_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.running()
    bench.tell(on.SchedulerReturned(**NOW))
    bench.on(on.RecordConflict, record=record(Step.RUNNING))
    bench.ended(EndReason.DONE)
    assert bench.on(on.Adopted, record=record(Step.RUNNING), granted=None) == ()
    assert bench.machine.jobs[JOB].phase is Phase.CHECKING


def end_preempted(bench: Bench, n: int) -> do.RecordAttemptFailure:
    """The lease of attempt `n` ended as PREEMPTED, and its script reported an exit status."""
    ended = on.LeaseChanged(
        **NOW,
        job=JOB,
        attempt=n,
        state=LeaseState.ENDED,
        reason=EndReason.PREEMPTED,
        detail="for a request of higher priority",
    )
    bench.tell(ended)
    bench.unresolved(report(attempt=n), attempt=n)
    return bench.one(do.RecordAttemptFailure)


def test_a_preempted_attempt_does_not_count_whatever_it_reported(bench: Bench) -> None:
    bench.running()
    for n in range(1, 8):  # more than a function has attempts
        failed = end_preempted(bench, n)
        assert (failed.reason, failed.pause_s) == (Reason.PREEMPTED, 0.0)
        between = record(Step.RECEIVED, attempt=n, lease=None)
        bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
        bench.retried()
        opened = bench.one(do.OpenAttempt)
        assert (opened.attempt, opened.payload["first_attempt"]) == (n + 1, n + 1)
        next_one = on.AttemptGranted(
            **NOW,
            job=JOB,
            attempt=n + 1,
            record=record(attempt=n + 1),
            granted=granted(n + 1),
        )
        bench.tell(next_one)


def test_a_result_written_before_the_end_of_a_preempted_lease_stands(bench: Bench) -> None:
    bench.running()
    bench.ended(EndReason.PREEMPTED)
    bench.on(on.ResultRead, result=result())
    assert bench.kinds() == ["FinishJob"]


@pytest.mark.parametrize("reason", ["PREEMPTED", "NOT_ON_HOST", "BUSY", "THROTTLED"])
def test_an_adopter_does_not_count_what_its_predecessor_did_not(bench: Bench, reason: str) -> None:
    block = Bench().read().one(do.OpenAttempt).payload
    between = record(Step.RECEIVED, owner=None, block=block, reason=reason, lease=None)
    bench.adopted(between)
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).payload["first_attempt"] == 2


def test_a_grant_pushed_before_its_jobs_adoption_was_answered_and_ended_at_once(
    bench: Bench,
) -> None:
    """The record alone shows that the request does not wait any more."""
    block = Bench().read().one(do.OpenAttempt).payload
    waiting = record(Step.WAITING, block=block, lease=None)
    orphan = record(Step.WAITING, owner=None, block=block, lease=None)
    bench.on(on.Orphaned, function="search", record=orphan)
    pushed = on.AttemptGranted(
        **NOW, job=JOB, attempt=1, granted=granted(), record=None, pushed=True
    )
    bench.tell(pushed)
    bench.on(on.Adopted, record=waiting, granted=None)
    bench.ended(EndReason.PREEMPTED)
    bench.one(do.ReadRecord)
    over = record(Step.RESERVED, block=block, reason="PREEMPTED", lease=None)
    bench.on(on.RecordConflict, record=over)
    bench.one(do.AdoptRecord)
    bench.on(on.Adopted, record=over, granted=None)
    bench.unresolved(None)
    assert bench.one(do.RecordAttemptFailure).attempt == 1


def _ended_with(bench: Bench, reason: Reason) -> None:
    bench.running()
    bench.ended(EndReason.DONE)
    bench.on(on.ResultRead, result=None)
    failed = replace(report(), reason=reason, detail="secret TOKEN (ssm:/token) cannot be read")
    bench.on(on.ReportRead, attempt=1, report=failed)


def test_a_secret_that_cannot_be_read_ends_the_job_with_its_first_attempt(bench: Bench) -> None:
    _ended_with(bench, Reason.SECRET_ERROR)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason, written.attempt) == ("FAILED", "SECRET_ERROR", 1)
    assert written.detail == "secret TOKEN (ssm:/token) cannot be read"


def test_a_store_that_does_not_answer_is_asked_again(bench: Bench) -> None:
    _ended_with(bench, Reason.SECRET_UNAVAILABLE)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.SECRET_UNAVAILABLE

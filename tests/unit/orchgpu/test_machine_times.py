"""The times that only the orchestrator knows, as the scheduler gets them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from contract.states import Reason
from gpu_scheduler.model import EndReason, LeaseState, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from tests.unit.orchgpu.jobs import (
    JOB,
    Bench,
    Now,
    body,
    granted,
    message,
    record,
    report,
    result,
    s3_record,
)

LATER: Now = {"at_s": 130.0, "wall_s": 1_000_030.0}


def test_an_attempt_carries_the_time_of_its_message() -> None:
    bench = Bench().received()
    bench.tell(on.ResultRead(**LATER, job=JOB, result=None))
    bench.tell(on.InputRead(**LATER, job=JOB, etag="e", version_id="v1", last_modified="t", size=1))
    assert bench.one(do.OpenAttempt).received_at_s == 100.0


def test_a_finish_carries_the_time_of_the_result() -> None:
    bench = Bench().running()
    bench.tell(on.ResultNoticed(**LATER, job=JOB))
    bench.tell(on.ResultRead(**LATER, job=JOB, result=result()))
    finish = bench.one(do.FinishJob)
    assert (finish.received_at_s, finish.committed_at_s) == (100.0, 130.0)
    assert finish.payload is None


@pytest.mark.parametrize("lost", [on.InputMissing, on.InputChanged])
def test_a_job_without_a_record_gets_one_with_its_end(lost: type[on.JobEvent]) -> None:
    bench = Bench().received()
    bench.tell(lost(**LATER, job=JOB))
    written = bench.one(do.WriteResult).result
    bench.tell(on.ResultWritten(**LATER, job=JOB, result=written))
    finish = bench.one(do.FinishJob)
    assert finish.payload is not None
    assert finish.payload["function"] == "search"
    source = finish.payload["input"]
    assert isinstance(source, Mapping)
    assert source["key"] == "seqs/a b.fasta"


def test_a_failure_without_a_record_is_dead_lettered_with_its_result() -> None:
    """Its replica may have died between the result and the dead-letter copy."""
    bench = Bench().received()
    refused = result("FAILED", reason="INPUT_ERROR", attempt=0)
    bench.tell(on.ResultRead(**LATER, job=JOB, result=refused))
    bench.one(do.ReadRecord)
    bench.tell(on.RecordConflict(**LATER, job=JOB, record=None))
    bench.one(do.SendDeadLetter)
    bench.tell(on.DeadLetterSent(**LATER, job=JOB))
    assert bench.one(do.FinishJob).payload is not None


def test_a_failure_after_an_attempt_was_buried_before_it_was_forgotten() -> None:
    bench = Bench().received()
    bench.tell(on.ResultRead(**LATER, job=JOB, result=result("FAILED")))
    bench.tell(on.RecordConflict(**LATER, job=JOB, record=None))
    assert bench.kinds() == ["DeleteMessages"]


# ---------------------------------------------------------------------- code that never started


def later(seconds: float) -> Now:
    return {"at_s": 100.0 + seconds, "wall_s": 1_000_000.0 + seconds}


def end_not_started(bench: Bench, n: int, at_s: float, reason: str | None = None) -> None:
    """Lambda dropped the event of attempt `n`, and its record may be the attempt's report."""
    ended = on.LeaseChanged(
        **later(at_s),
        job=JOB,
        attempt=n,
        state=LeaseState.ENDED,
        reason=EndReason.NOT_STARTED,
        detail="no session in time",
    )
    bench.tell(ended)
    bench.tell(on.ResultRead(**later(at_s), job=JOB, result=None))
    found = None if reason is None else report(reason, attempt=n)
    bench.tell(on.ReportRead(**later(at_s), job=JOB, attempt=n, report=found))


def open_next(bench: Bench, n: int, at_s: float) -> do.OpenAttempt:
    """The pause after attempt `n` is over; the next attempt opens, and its function is invoked."""
    between = record(Step.RECEIVED, attempt=n, lease=None)
    bench.tell(on.AttemptFailureRecorded(**later(at_s), job=JOB, record=between, pause_s=0.0))
    bench.tell(on.TimerFired(**later(at_s), job=JOB, timer=do.Timer.NEXT_ATTEMPT))
    bench.tell(on.ResultRead(**later(at_s), job=JOB, result=None))
    opened = bench.one(do.OpenAttempt)
    bench.tell(
        on.AttemptGranted(
            **later(at_s),
            job=JOB,
            attempt=n + 1,
            record=record(attempt=n + 1),
            granted=granted(n + 1),
        )
    )
    bench.tell(on.EnvelopeStaged(**later(at_s), job=JOB, attempt=n + 1))
    bench.tell(on.StagedRecorded(**later(at_s), job=JOB, attempt=n + 1))
    return opened


@pytest.mark.parametrize("reported", [None, "NOT_STARTED"])
def test_an_attempt_whose_code_never_started_does_not_count(reported: str | None) -> None:
    """More of them than a function has attempts, with growing pauses."""
    bench = Bench().running()
    pauses = []
    for n in range(1, 8):
        end_not_started(bench, n, at_s=100.0 * n, reason=reported)
        failed = bench.one(do.RecordAttemptFailure)
        assert failed.reason is Reason.NOT_STARTED
        pauses.append(failed.pause_s)
        assert open_next(bench, n, at_s=100.0 * n).payload["first_attempt"] == n + 1
    assert 5.0 <= pauses[0] <= 10.0
    assert 150.0 <= pauses[-1] <= 300.0


def test_such_attempts_end_with_the_job_an_hour_after_the_first() -> None:
    bench = Bench().running()
    end_not_started(bench, 1, at_s=10.0)
    open_next(bench, 1, at_s=20.0)
    end_not_started(bench, 2, at_s=3609.0)
    open_next(bench, 2, at_s=3609.0)
    end_not_started(bench, 3, at_s=3610.0)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason, written.attempt) == ("FAILED", "NOT_STARTED", 3)


def test_code_that_failed_before_its_session_counts() -> None:
    """Lambda ran it: its handler could not be imported."""
    bench = Bench().running()
    end_not_started(bench, 1, at_s=1.0, reason="FUNCTION_ERROR")
    assert bench.one(do.RecordAttemptFailure).reason is Reason.FUNCTION_ERROR
    assert open_next(bench, 1, at_s=2.0).payload["first_attempt"] == 1


def test_code_that_started_ends_the_series() -> None:
    bench = Bench().running()
    end_not_started(bench, 1, at_s=10.0)
    open_next(bench, 1, at_s=20.0)
    end_not_started(bench, 2, at_s=30.0, reason="FUNCTION_ERROR")
    opened = open_next(bench, 2, at_s=40.0).payload
    assert (opened["not_started"], opened["not_started_at_s"]) == (0, 0.0)


def test_an_adopter_continues_the_series() -> None:
    block = {**Bench().read().one(do.OpenAttempt).payload}
    block.update({"not_started": 2, "not_started_at_s": 1_000_000.0 - 3500.0})
    between = record(Step.RECEIVED, owner=None, block=block, reason="NOT_STARTED", lease=None)
    bench = Bench()
    bench.tell(on.Orphaned(**later(0.0), job=JOB, function="search", record=between))
    bench.tell(on.Adopted(**later(0.0), job=JOB, record=between, granted=None))
    bench.tell(on.ResultRead(**later(0.0), job=JOB, result=None))
    opened = bench.one(do.OpenAttempt).payload
    assert (opened["first_attempt"], opened["not_started"]) == (2, 3)
    assert opened["not_started_at_s"] == 1_000_000.0 - 3500.0


# ---------------------------------------------------------------------- an input that is not there


def uploaded(seconds_before: float) -> str:
    """The event of an upload so long before `later(0)`."""
    at = datetime.fromtimestamp(1_000_000.0 - seconds_before, UTC).isoformat()
    return body({**s3_record(), "eventTime": at})


def test_a_404_of_a_young_upload_is_no_end() -> None:
    """A bucket whose versioning was just enabled may answer so for 15 minutes."""
    bench = Bench()
    bench.tell(message(uploaded(5.0)))
    bench.tell(on.ResultRead(**later(0.0), job=JOB, result=None))
    pauses = []
    for _ in range(6):
        bench.tell(on.InputMissing(**later(0.0), job=JOB))
        again = bench.one(do.RepeatLater)
        assert isinstance(again.action, do.ReadInput)
        pauses.append(again.in_s)
        bench.tell(on.RepeatDue(**later(0.0), job=JOB, action=again.action))
        assert bench.kinds() == ["ReadInput"]
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    found = on.InputRead(
        **later(9.0), job=JOB, etag="e", version_id="v1", last_modified="t", size=1
    )
    bench.tell(found)
    assert bench.kinds() == ["OpenAttempt"]


@pytest.mark.parametrize("before_s", [901.0, -901.0])
def test_a_404_of_an_older_upload_ends_the_job(before_s: float) -> None:
    bench = Bench()
    bench.tell(message(uploaded(before_s)))
    bench.tell(on.InputMissing(**later(0.0), job=JOB))
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason) == ("INPUT_GONE", "INPUT_DELETED")


def test_a_404_while_the_envelope_is_packed_keeps_the_lease() -> None:
    bench = Bench()
    bench.tell(message(uploaded(5.0)))
    bench.tell(on.ResultRead(**later(0.0), job=JOB, result=None))
    read = on.InputRead(**later(0.0), job=JOB, etag="e", version_id="v1", last_modified="t", size=1)
    bench.tell(read)
    bench.tell(
        on.AttemptGranted(**later(0.0), job=JOB, attempt=1, record=record(), granted=granted())
    )
    staging = bench.one(do.StageEnvelope)
    bench.tell(on.InputMissing(**later(0.0), job=JOB))
    assert bench.one(do.RepeatLater).action == staging
    bench.tell(on.TimerFired(**later(15.0), job=JOB, timer=do.Timer.RENEW))
    bench.one(do.RenewLease)

"""The times that only the orchestrator knows, as the scheduler gets them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchgpu.core import actions as do
from orchgpu.core import events as on
from tests.unit.orchgpu.jobs import JOB, Bench, Now, result

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

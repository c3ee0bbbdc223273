"""The result that `orchgpu cancel` writes, and its refusals."""

from __future__ import annotations

import pytest

from contract.result import Result
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.model import Record, Step
from orchgpu.jobs.cancelling import _refuse_ended, cancelled_result
from orchgpu.jobs.known import Known, Scheduled
from tests.commandline import run

JOB = "j" + "0" * 25


def test_a_cancelled_jobs_result_is_one_of_its_newest_attempt() -> None:
    record = Record(
        holder=JobId(JOB),
        revision=3,
        owner="o",
        attempt=2,
        step=Step.RUNNING,
        waiting_since_s=None,
        handle="h",
    )
    known = Known(
        job=JOB, function=None, scheduled=Scheduled(record=record), result=None, reports={}
    )
    written = Result.from_json(cancelled_result(known, "cancelled: why", 9.0).to_json())
    assert (written.job_id, written.state, written.attempt) == (JOB, "CANCELLED", 2)
    assert (written.reason, written.detail) == ("CANCELLED_BY_USER", "cancelled: why")
    assert (written.nonce, written.ended_at_s) == ("", 9.0)


def test_only_a_cancelled_job_may_be_over() -> None:
    _refuse_ended(JOB, "CANCELLED")
    with pytest.raises(AppError, match="ended before it could be cancelled: SUCCEEDED") as refused:
        _refuse_ended(JOB, "SUCCEEDED")
    assert refused.value.code is ErrorCode.CONFLICT


@pytest.mark.parametrize("name", ["x", "../x", JOB + "0", JOB.upper(), ""])
def test_a_malformed_id_is_refused_before_any_question(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cancel", JOB, name]) == 2
    assert "is not an id of a job" in capsys.readouterr().err

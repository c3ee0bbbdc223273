"""AWS Batch in the embedded cloud: states, lists, ends."""

from __future__ import annotations

import pytest

from corekit.ids import IdSource
from local_cloud.model.arns import Account
from local_cloud.model.batch import Batch, BatchJob
from local_cloud.model.errors import CloudError


@pytest.fixture
def batch() -> Batch:
    return Batch(Account(), IdSource(1), places=1)


def submitted(batch: Batch, name: str = "j-1", queue: str = "gpus") -> BatchJob:
    body = {"jobName": name, "jobQueue": queue, "jobDefinition": "fold:2"}
    return batch.submit(1.0, body)


def begun(batch: Batch) -> BatchJob:
    job = batch.next()
    assert job is not None
    batch.started(2.0, job)
    return job


def test_jobs_start_in_order_while_there_is_a_place(batch: Batch) -> None:
    first, second = submitted(batch), submitted(batch, "j-2")
    assert (first.status, first.definition) == ("SUBMITTED", "fold")
    assert begun(batch) is first
    assert (first.status, second.status, batch.next()) == ("RUNNING", "RUNNABLE", None)
    batch.ended(3.0, first, 0)
    assert (first.status, first.stopped_s) == ("SUCCEEDED", 3.0)
    assert batch.next() is second
    assert second.status == "STARTING"


@pytest.mark.parametrize("code", [1, None])
def test_a_container_that_fails_or_never_starts_fails_its_job(
    batch: Batch, code: int | None
) -> None:
    submitted(batch)
    job = begun(batch)
    batch.ended(3.0, job, code, "why")
    assert (job.status, job.exit_code, job.container_reason) == ("FAILED", code, "why")


def test_a_queued_job_is_taken_from_its_queue(batch: Batch) -> None:
    job = submitted(batch)
    assert batch.terminate(2.0, job.id, "enough") is None
    assert (job.status, job.reason, job.started_s, batch.next()) == ("FAILED", "enough", None, None)


def test_a_running_job_ends_with_its_container(batch: Batch) -> None:
    submitted(batch)
    job = begun(batch)
    assert batch.terminate(2.0, job.id, "enough") is job
    assert job.status == "RUNNING"
    batch.ended(3.0, job, 0)  # whatever its status is
    assert (job.status, job.reason) == ("FAILED", "enough")
    assert batch.terminate(4.0, job.id, "again") is None
    assert batch.terminate(4.0, "unknown", "again") is None


def test_lists_are_of_one_queue_by_name(batch: Batch) -> None:
    old, new = submitted(batch, "J-1"), submitted(batch, "j-1")
    submitted(batch, "j-1", queue="other")
    longer = submitted(batch, "j-10", queue="arn:aws:batch:r:1:job-queue/gpus")
    assert batch.listed("gpus", "j-1") == [new, old]
    assert batch.listed("gpus", "j-10") == [longer]


def test_what_is_not_there_is_refused(batch: Batch) -> None:
    body = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "arrayProperties": {}}
    with pytest.raises(CloudError, match="arrayProperties is not part"):
        batch.submit(1.0, body)


def test_overrides_that_are_too_long_for_aws_are_refused(batch: Batch) -> None:
    variables = [{"name": "V", "value": "ä" * 8120}]
    body = {"jobName": "j", "jobQueue": "q", "jobDefinition": "d"}
    batch.submit(1.0, {**body, "containerOverrides": {"environment": variables}})
    variables[0]["value"] += 40 * "ä"
    with pytest.raises(CloudError, match="Container Overrides length must be at most 8192"):
        batch.submit(1.0, {**body, "containerOverrides": {"environment": variables}})

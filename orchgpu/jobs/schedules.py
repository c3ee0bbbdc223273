"""Deployed schedules: their next run, the newest object that they put, and a run by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from contract.keys import job_id
from corekit.cron import aws_times
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from fdl.plan.schedules import SCHEDULED_TIME
from orchgpu.deploy.ports import ScheduleState
from orchgpu.jobs.cloud import JobCloud


class ScheduledRun(Value):
    """One object that a schedule put."""

    bucket: str
    key: str
    at_s: float  #: wall clock of the store
    job: str  #: that it became, in a function with jobs
    state: str = ""  #: of the job, once it has ended


def next_run_s(found: ScheduleState, now_s: float) -> float | None:
    """The time of the next run; None while it is paused."""
    schedule = found.schedule
    return None if found.paused else next(aws_times(schedule.cron, schedule.timezone, now_s), None)


def last_run(cloud: JobCloud, found: ScheduleState, now_s: float) -> ScheduledRun | None:
    """The newest object, of today or of the day of the newest time before now."""
    bucket, key = _place(cloud, found)
    schedule = found.schedule
    before_s = next(aws_times(schedule.cron, schedule.timezone, now_s, back=True), now_s)
    for at_s in (now_s, before_s):
        prefix = key.partition(SCHEDULED_TIME)[0] + _written(at_s).partition("T")[0]
        keys = [one.key for one in cloud.objects(bucket, prefix)]
        if keys:
            return _run(cloud, found, bucket, keys[-1])
    return None


def run_now(cloud: JobCloud, found: ScheduleState, now_s: float) -> ScheduledRun:
    """Put the object of a run at this second. Raises CONFLICT where it is there."""
    at = _written(now_s)
    bucket, key = _place(cloud, found)
    body = str(found.schedule.put["Body"]).replace(SCHEDULED_TIME, at)
    key = key.replace(SCHEDULED_TIME, at)
    cloud.services.write_once(bucket, key, body.encode(), replaces=None)
    return _run(cloud, found, bucket, key)


def _place(cloud: JobCloud, found: ScheduleState) -> tuple[str, str]:
    put = found.schedule.put
    bucket = str(put["Bucket"])
    cloud.services.expect_owners({bucket: str(put["ExpectedBucketOwner"])})
    return bucket, str(put["Key"])


def _run(cloud: JobCloud, found: ScheduleState, bucket: str, key: str) -> ScheduledRun:
    head = cloud.head(bucket, key)
    job = job_id(bucket, key, head.versions[0], found.function)
    return ScheduledRun(
        bucket=bucket,
        key=key,
        at_s=head.modified.timestamp(),
        job=job,
        state=_state(cloud, found.function, job),
    )


def _state(cloud: JobCloud, function: str, job: str) -> str:
    try:
        result = cloud.result(cloud.function(function), job)
    except AppError as error:  # a function without jobs, or one that is being removed
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return ""
    return "" if result is None else str(result.state)


def _written(at_s: float) -> str:
    """As EventBridge writes the time of a run."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

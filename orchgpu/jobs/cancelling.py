"""The end of a job that waits or runs, in two steps: its result, then its lease and its record.

A job is over when its result exists, so a CANCELLED result is committed first, on the condition
that there is none; then its lease is revoked, which makes its orchestrator finish it. A job without
a lease or an orchestrator is finished from here, by the same steps in the same order. Without a
device the attempt's claim is taken, so that no later start runs it; a running one finds the result
within some seconds and ends its code.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from contract.result import Result
from contract.states import JobState, Reason
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import EndReason, Step
from gpu_scheduler.protocol import ops
from orchgpu.core.execution import Place
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import Known, look, scheduled
from orchgpu.jobs.rights import JobRights, KeyRights, rights_of
from orchgpu.jobs.scheduler import ask

#: A live orchestrator needs less time to finish a job whose lease was revoked.
FINISHED_WITHIN_S = 5.0
#: The pause between two checks.
LOOK_EVERY_S = 0.2


def cancel_job(
    cloud: JobCloud, address: str | None, job: str, function: str | None, detail: str
) -> None:
    """End one job. Raises CONFLICT when it ended before, NOT_FOUND when it is unknown, DENIED."""
    known = _known(cloud, address, job, function)
    if (rights := rights_on(known, address)) is not None:
        rights.require_cancel()
    commit_cancelled(cloud, known, detail)
    if address is not None and known.record is not None:
        handle = ask(address, lambda client: finish_cancelled(client, known, detail))
        delete_message(cloud, known, handle)


def _known(cloud: JobCloud, address: str | None, job: str, function: str | None) -> Known:
    """The job; with a function given, also one not received yet. Raises NOT_FOUND."""
    found = None if address is None else ask(address, lambda client: scheduled(client, job))
    if found is None and function is not None:
        deployed = cloud.function(function)
        result = cloud.result(deployed, job)
        return Known(job=job, function=deployed, scheduled=None, result=result, reports={})
    try:
        return look(cloud, found, job)
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        message = f"{error.message}; if its message waits in a queue, give --function NAME"
        raise AppError(error.code, message) from error


def rights_on(known: Known, address: str | None) -> JobRights | None:
    """The rights of this program's key on a job; None where the scheduler states none."""

    async def welcomed(client: SchedulerClient) -> KeyRights | None:
        return rights_of(client.session, client.welcome)

    key = None if address is None else ask(address, welcomed)
    if key is None:
        return None
    return JobRights(key=key, job=known.job, record=known.record, function=known.function)


def commit_cancelled(cloud: JobCloud, known: Known, detail: str) -> None:
    """The terminal result, unless there is one. Raises CONFLICT when the job ended otherwise."""
    function = known.function
    if function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    if known.over:
        _refuse_ended(known.job, known.state)
        return
    replaced = known.record.block.get("replace_etag") if known.record else None
    result = cancelled_result(known, detail, time.time())
    try:
        cloud.commit(function, result, replaced if isinstance(replaced, str) else None)
    except AppError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise
        _refuse_ended(known.job, _state_of(cloud, function, known.job))
    if known.record is not None and not known.record.with_device:
        cloud.close_attempt(function, known.job, known.attempt)


def cancelled_result(known: Known, detail: str, now_s: float) -> Result:
    return Result(
        job_id=known.job,
        state=JobState.CANCELLED.value,
        reason=Reason.CANCELLED_BY_USER.value,
        attempt=known.attempt,
        nonce="",
        exit_code=None,
        files=[],
        times={},
        log_tail="",
        detail=detail,
        ended_at_s=now_s,
    )


def _refuse_ended(job: str, state: str) -> None:
    if state != "CANCELLED":
        raise AppError(ErrorCode.CONFLICT, f"{job} ended before it could be cancelled: {state}")


def _state_of(cloud: JobCloud, function: Function, job: str) -> str:
    found = cloud.result(function, job)
    return found.state if found is not None else "unknown"


async def finish_cancelled(client: SchedulerClient, known: Known, detail: str) -> str | None:
    """Revoke the job's lease; then its orchestrator, or this process, finishes the job.

    Only orchestrators may end runs in Batch: without one, such a run starts and finds the end.

    Returns the receipt handle of the job's message where the caller is to delete it.
    """
    lease = known.scheduled.lease if known.scheduled else None
    if lease is not None:
        await _revoke(client, lease.id)
    in_batch = known.record is not None and known.record.block.get("place") == Place.BATCH
    if (lease is not None or in_batch) and await _ended(client, known.job):
        return None
    op = ops.Finish(
        holder=JobId(known.job),
        outcome="CANCELLED",
        reason="CANCELLED_BY_USER",
        detail=detail,
        committed_ago_s=0.0,
    )
    record = (await client.ask(op)).record
    return None if record is None else record.handle or None


def delete_message(cloud: JobCloud, known: Known, handle: str | None) -> None:
    """Delete the message of a cancelled job: else it is received again, and deleted then."""
    if handle is not None and known.function is not None:
        with contextlib.suppress(AppError):
            cloud.services.delete(known.function.queue_url, handle)


async def _revoke(client: SchedulerClient, lease: str) -> None:
    try:
        await client.release(lease, EndReason.REVOKED, "its job was cancelled")
    except AppError as error:
        if error.code is not ErrorCode.DENIED:
            raise  # without an operator's key: finishing the job ends its lease too


async def _ended(client: SchedulerClient, job: str) -> bool:
    """True when the job's orchestrator finishes it within a few seconds."""
    for _ in range(int(FINISHED_WITHIN_S / LOOK_EVERY_S)):
        record = (await client.ask(ops.RecordOf(holder=JobId(job)))).record
        if record is None or record.step is Step.ENDED:
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False

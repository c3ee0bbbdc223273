"""End a job that waits or runs.

A job is over when its result exists, so a CANCELLED result is committed first, on the condition
that there is none; then its lease is revoked, which makes its orchestrator finish it. A job without
a lease or an orchestrator is finished from here, by the same steps in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import closing

import click

from contract.result import Result
from contract.states import JobState, Reason
from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import EndReason, Step
from orchgpu.cli.cloud import JobCloud
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.completing import live_job
from orchgpu.cli.jobs.ids import JOB_ID, PREFIX_MIN, is_prefix, resolve_ids
from orchgpu.cli.jobs.known import Known, look, scheduled
from orchgpu.cli.scheduler import ask, scheduler_option, scheduler_or_none
from orchgpu.core.function import Function

#: A live orchestrator needs less time to finish a job whose lease was revoked.
FINISHED_WITHIN_S = 5.0
#: The pause between two checks.
LOOK_EVERY_S = 0.2


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True, metavar="ID...", shell_complete=live_job)
@click.option(
    "--function",
    metavar="NAME",
    shell_complete=function_name,
    help="The function of the jobs; needed only before they are received.",
)
@click.option("--reason", default="", metavar="TEXT", help="Recorded in the result.")
@scheduler_option
@json_option
def command(
    jobs: tuple[str, ...], function: str | None, reason: str, scheduler: str | None, as_json: bool
) -> None:
    """End the jobs ID, queued or running: they become CANCELLED and their leases are revoked.

    A job that has already ended keeps its result, and the command ends with 4. A cancelled job
    leaves no dead letter. The command may be repeated.

    \b
    Example:  orchgpu cancel j1f0c2a9b3d4e5f60718293a4b --reason "wrong file"
    """
    for job in jobs:
        if not JOB_ID.fullmatch(job) and not is_prefix(job):
            raise invalid(
                f"{job!r} is not an id of a job: j and 25 hexadecimal digits, or the "
                f"first {PREFIX_MIN} characters or more of them"
            )
    whole = resolve_ids(jobs, scheduler)
    address = scheduler_or_none(scheduler)
    detail = f"cancelled: {reason}" if reason else "cancelled by its user"
    with closing(JobCloud()) as cloud:
        for job in whole:
            cancel_job(cloud, address, job, function, detail)
            if not as_json:
                echo(f"{job} CANCELLED")
    if as_json:
        echo_json({"jobs": [{"job_id": job, "state": "CANCELLED"} for job in whole]})


def cancel_job(
    cloud: JobCloud, address: str | None, job: str, function: str | None, detail: str
) -> None:
    """End one job. Raises CONFLICT when it ended before, NOT_FOUND when it is unknown."""
    known = _known(cloud, address, job, function)
    _commit(cloud, known, detail)
    if address is not None and known.record is not None:
        ask(address, lambda client: _finish(client, cloud, known, detail))


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


def _commit(cloud: JobCloud, known: Known, detail: str) -> None:
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


def cancelled_result(known: Known, detail: str, now_s: float) -> Result:
    """The final result of a cancelled job."""
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


async def _finish(client: SchedulerClient, cloud: JobCloud, known: Known, detail: str) -> None:
    """Revoke the job's lease; then its orchestrator, or this process, finishes the job."""
    lease = known.scheduled.lease if known.scheduled else None
    if lease is not None:
        await _revoke(client, lease.id)
        if await _ended(client, known.job):
            return
    record = await client.finish(
        known.job, "CANCELLED", "CANCELLED_BY_USER", detail, committed_ago_s=0.0
    )
    if record is not None and record.handle and known.function is not None:
        with contextlib.suppress(AppError):  # the message is received again, and deleted then
            cloud.services.delete(known.function.queue_url, record.handle)


async def _revoke(client: SchedulerClient, lease: str) -> None:
    try:
        await client.release(lease, EndReason.REVOKED, "its job was cancelled")
    except AppError as error:
        if error.code is not ErrorCode.DENIED:
            raise  # without an operator's key: finishing the job ends its lease too


async def _ended(client: SchedulerClient, job: str) -> bool:
    """True when the job's orchestrator finishes it within a few seconds."""
    for _ in range(int(FINISHED_WITHIN_S / LOOK_EVERY_S)):
        record = await client.record(job)
        if record is None or record.step is Step.ENDED:
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False

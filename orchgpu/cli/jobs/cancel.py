"""`orchgpu cancel`: the job's result says CANCELLED, and everything else follows from it.

A job is over when its result exists, so the result is committed first, on the condition that there
is none; then its lease is revoked, which makes its orchestrator finish it. A job without a lease or
an orchestrator is finished from here: the steps and their order are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.jobs.ids import JOB_ID, PREFIX_MIN, is_prefix, whole_id
from orchgpu.cli.scheduler import scheduler_option, scheduler_or_none
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.completing import live_job
from orchgpu.cli.terminal.screen import json_option, say, say_json

if TYPE_CHECKING:
    from contract.result import Result
    from gpu_scheduler.client import SchedulerClient
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.known import Known
    from orchgpu.core.function import Function

#: An orchestrator that lives finishes a job whose lease was revoked long before.
FINISHED_WITHIN_S = 5.0
#: How often it looks.
LOOK_EVERY_S = 0.2


@click.command(short_help="End a job that waits or runs.")
@click.argument("jobs", nargs=-1, required=True, metavar="ID...", shell_complete=live_job)
@click.option(
    "--function",
    metavar="NAME",
    shell_complete=function_name,
    help="Whose jobs they are; needed only before they are received.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for those who look at it later.")
@scheduler_option
@json_option
def cancel(
    jobs: tuple[str, ...], function: str | None, reason: str, scheduler: str | None, as_json: bool
) -> None:
    """End the jobs ID, queued or running: they become CANCELLED and their leases are revoked.

    A job that ended first stays as it ended, and ends the command (exit code 4). A cancelled job
    leaves no dead letter. Repeating the command is no error.

    \b
    Example:  orchgpu cancel j1f0c2a9b3d4e5f60718293a4b --reason "wrong file"
    """
    from orchgpu.cli.cloud import JobCloud

    for job in jobs:
        if not JOB_ID.fullmatch(job) and not is_prefix(job):
            raise invalid(
                f"{job!r} is not an id of a job: j and 25 hexadecimal digits, or the "
                f"first {PREFIX_MIN} characters or more of them"
            )
    jobs = tuple(whole_id(job, scheduler) for job in jobs)
    address = scheduler_or_none(scheduler)
    detail = f"cancelled: {reason}" if reason else "cancelled by its user"
    with closing(JobCloud()) as cloud:
        for job in jobs:
            _cancel(cloud, address, job, function, detail)
            if not as_json:
                say(f"{job} CANCELLED")
    if as_json:
        say_json({"jobs": [{"job_id": job, "state": "CANCELLED"} for job in jobs]})


def _cancel(
    cloud: JobCloud, address: str | None, job: str, function: str | None, detail: str
) -> None:
    from orchgpu.cli.scheduler import ask

    known = _known(cloud, address, job, function)
    _commit(cloud, known, detail)
    if address is not None and known.record is not None:
        ask(address, lambda client: _finish(client, cloud, known, detail))


def _known(cloud: JobCloud, address: str | None, job: str, function: str | None) -> Known:
    """What is known; with a function given, a job nobody has seen yet too. Raises NOT_FOUND."""
    from orchgpu.cli.jobs.known import Known, look, scheduled
    from orchgpu.cli.scheduler import ask

    told = None if address is None else ask(address, lambda client: scheduled(client, job))
    if told is None and function is not None:
        deployed = cloud.function(function)
        result = cloud.result(deployed, job)
        return Known(job=job, function=deployed, scheduled=None, result=result, reports={})
    try:
        return look(cloud, told, job)
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        message = f"{error.message}; if its message waits in a queue, say --function NAME"
        raise AppError(error.code, message) from error


def _commit(cloud: JobCloud, known: Known, detail: str) -> None:
    """The terminal result, unless there is one. Raises CONFLICT when the job ended otherwise."""
    function = known.function
    if function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is not deployed any more")
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
    """What stands as the job's end from now on."""
    from contract.result import Result
    from contract.states import JobState, Reason

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
    """Revoke what it holds; then its orchestrator finishes it, or we do."""
    lease = known.scheduled.lease if known.scheduled else None
    if lease is not None:
        await _revoke(client, lease.id)
        if await _ended(client, known.job):
            return
    record = await client.finish(
        known.job, "CANCELLED", "CANCELLED_BY_USER", detail, committed_ago_s=0.0
    )
    if record is not None and record.handle and known.function is not None:
        with contextlib.suppress(AppError):  # else it is received again, and deleted then
            cloud.delete(known.function.queue_url, record.handle)


async def _revoke(client: SchedulerClient, lease: str) -> None:
    from gpu_scheduler.model import EndReason

    try:
        await client.release(lease, EndReason.REVOKED, "its job was cancelled")
    except AppError as error:
        if error.code is not ErrorCode.DENIED:
            raise  # else: somebody else's lease, without an operator's key; finishing ends it too


async def _ended(client: SchedulerClient, job: str) -> bool:
    """Whether its orchestrator finishes it within a few seconds."""
    from gpu_scheduler.model import Step

    for _ in range(int(FINISHED_WITHIN_S / LOOK_EVERY_S)):
        record = await client.record(job)
        if record is None or record.step is Step.ENDED:
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False

"""One job, looked up by the id of a command line, with the scheduler's part where it answers."""

from __future__ import annotations

from contextlib import closing

from corekit.cli.screen import echo
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.client import SchedulerClient
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import Known, look, scheduled
from orchgpu.jobs.rights import JobRights, KeyRights, rights_of
from orchgpu.jobs.scheduler import NO_ANSWER, ask, scheduler_or_none


def known_job(job: str, scheduler: str | None, *, despite_scheduler: bool = False) -> Known:
    """All that is known of a job. Raises NOT_FOUND for an unknown job.

    `despite_scheduler`: a scheduler that does not answer is an error only when the cloud has no
    result either; commands that change a job must not rely on that.
    """
    address, known, scheduler_error = scheduler_or_none(scheduler), None, None
    try:
        known = None if address is None else ask(address, lambda client: scheduled(client, job))
    except AppError as error:
        if not despite_scheduler or error.code not in NO_ANSWER:
            raise
        scheduler_error = error
    with closing(JobCloud()) as cloud:
        try:
            return replace(look(cloud, known, job), scheduler_error=scheduler_error)
        except AppError as error:
            if scheduler_error is None or error.code is not ErrorCode.NOT_FOUND:
                raise
            raise scheduler_error from error


def rights_on(known: Known, address: str | None) -> JobRights | None:
    """The rights of this program's key on a job; None where the scheduler states none."""

    async def welcomed(client: SchedulerClient) -> KeyRights | None:
        return rights_of(client.session, client.welcome)

    key = None if address is None else ask(address, welcomed)
    if key is None:
        return None
    return JobRights(key=key, job=known.job, record=known.record, function=known.function)


def echo_scheduler_error(known: Known) -> None:
    """Report on standard error that the output is incomplete."""
    if known.scheduler_error is not None:
        echo(f"orchgpu: {known.scheduler_error.message}; only the cloud's part is shown", err=True)

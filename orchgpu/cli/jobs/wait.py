"""`orchgpu wait`: follow jobs that were started before, by whomever, to their end."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import click

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.ids import whole_id
from orchgpu.cli.scheduler import scheduler_option, scheduler_or_none
from orchgpu.cli.terminal.completing import live_job
from orchgpu.cli.terminal.screen import json_option, say_json

if TYPE_CHECKING:
    from orchgpu.cli.cloud import Submitted
    from orchgpu.cli.jobs.known import Known

#: Ends `wait` when a job did not succeed, as it ends `run --wait`.
NOT_SUCCEEDED_STATUS = 1


@click.command(short_help="Wait until jobs have ended.")
@click.argument("jobs", nargs=-1, required=True, metavar="ID...", shell_complete=live_job)
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@scheduler_option
@json_option
def wait(jobs: tuple[str, ...], timeout: str | None, scheduler: str | None, as_json: bool) -> int:
    """Follow the jobs ID to their end and show it, as `orchgpu run --wait` does.

    Ends with 1 when one of them did not succeed, with 9 when the timeout came first; jobs that
    have ended already are shown at once.

    \b
    Example:  orchgpu wait j1f0c2a9b --timeout 10m
    """
    import asyncio
    from contextlib import closing

    from corekit.units import parse_duration_s
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.follow import follow
    from orchgpu.cli.jobs.job import known_job
    from orchgpu.cli.jobs.report import job_json, say_nothing, say_outcomes, say_progress

    within_s = None if timeout is None else parse_duration_s(timeout)
    ids = dict.fromkeys(whole_id(job, scheduler) for job in jobs)
    submitted = [submitted_as(known_job(job, scheduler)) for job in ids]
    tell = say_nothing if as_json else say_progress
    with closing(JobCloud()) as cloud:
        following = follow(cloud, scheduler_or_none(scheduler), submitted, tell, within_s=within_s)
        followed = asyncio.run(following)
    if as_json:
        say_json({"jobs": [job_json(job) for job in followed]})
    else:
        say_outcomes(followed)
    return 0 if all(job.succeeded for job in followed) else NOT_SUCCEEDED_STATUS


def submitted_as(known: Known) -> Submitted:
    """The job as if it had been uploaded here. Raises NOT_FOUND when its function is gone."""
    from orchgpu.cli.cloud import Submitted
    from orchgpu.cli.jobs.known import moments
    from orchgpu.core.job import input_from_payload

    if known.function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is not deployed any more")
    source = input_from_payload(known.record.block) if known.record else None
    key = source.key if source is not None else known.job
    began = moments(known)
    return Submitted(
        function=known.function,
        file=PurePosixPath(key),
        key=key,
        job_ids=(known.job,),
        uploaded_s=began[0].at_s if began else 0.0,
    )

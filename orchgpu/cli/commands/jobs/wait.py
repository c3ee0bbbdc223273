"""Wait until jobs or runs have ended."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import PurePosixPath

import click

from corekit.cli.screen import echo_json, json_option
from corekit.errors import AppError, ErrorCode
from corekit.units import parse_duration_s
from orchgpu.cli.completing import live_job
from orchgpu.cli.jobs.lookup import known_job, resolve_ids
from orchgpu.cli.jobs.report import (
    echo_nothing,
    echo_outcomes,
    echo_progress,
    ending_status,
    job_json,
)
from orchgpu.cli.jobs.runs import echo_runs, on_change, run_json
from orchgpu.cli.options import scheduler_option
from orchgpu.core.job import input_from_payload
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import follow
from orchgpu.jobs.known import Known, moments
from orchgpu.jobs.run_following import as_started, follow_runs
from orchgpu.jobs.runs import find_run, is_run
from orchgpu.jobs.scheduler import scheduler_or_none
from orchgpu.jobs.uploaded import Submitted


@click.command("wait")
@click.argument("jobs", nargs=-1, required=True, metavar="ID...", shell_complete=live_job)
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@scheduler_option
@json_option
def command(
    jobs: tuple[str, ...], timeout: str | None, scheduler: str | None, as_json: bool
) -> int:
    """Follow the jobs ID to their end and show their outcome, as `orchgpu run --wait` does.

    Or runs of workflows, with a line for each step.

    Ends with 1 when a job did not succeed, with 6 or 7 when a promise was refused (for now, for
    good), with 9 after the timeout; jobs that have ended already are shown at once.

    \b
    Example:  orchgpu wait j1f0c2a9b --timeout 10m
    """
    within_s = None if timeout is None else parse_duration_s(timeout)
    if all(is_run(one) for one in jobs):
        return _wait_for_runs(jobs, within_s, scheduler, as_json=as_json)
    submitted = [submitted_as(known_job(job, scheduler)) for job in resolve_ids(jobs, scheduler)]
    on_change = echo_nothing if as_json else echo_progress
    with closing(JobCloud()) as cloud:
        address = scheduler_or_none(scheduler)
        followed = asyncio.run(follow(cloud, address, submitted, on_change, within_s=within_s))
    if as_json:
        echo_json({"jobs": [job_json(job) for job in followed]})
    else:
        echo_outcomes(followed)
    return ending_status(str(job.reason) for job in followed if not job.succeeded)


def _wait_for_runs(
    given: tuple[str, ...], within_s: float | None, scheduler: str | None, *, as_json: bool
) -> int:
    address = scheduler_or_none(scheduler)
    with closing(JobCloud()) as cloud:
        started = [as_started(find_run(cloud, one)) for one in given]
        changed = on_change(as_json=as_json)
        seen = asyncio.run(
            follow_runs(cloud, started, changed, within_s=within_s, scheduler=address)
        )
    if as_json:
        echo_json({"runs": [run_json(one) for one in seen]})
    else:
        echo_runs(seen)
    return ending_status(one.state.reason for one in seen if not one.succeeded)


def submitted_as(known: Known) -> Submitted:
    """The job as if it had been uploaded here. Raises NOT_FOUND when its function is gone."""
    if known.function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
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

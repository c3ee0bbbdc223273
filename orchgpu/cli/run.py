"""`orchgpu run FUNCTION FILE…`: upload, follow, fetch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchgpu.cli.objects import file_below
from orchgpu.cli.scheduler import scheduler_option, scheduler_or_none
from orchgpu.cli.screen import say_json

if TYPE_CHECKING:
    from orchgpu.cli.cloud import JobCloud, Submitted
    from orchgpu.cli.follow import Followed

#: Ends `run --wait` when a job did not succeed; the job's own reason is in what is printed.
NOT_SUCCEEDED_STATUS = 1


@click.command(short_help="Run a function on files of yours.")
@click.argument("function")
@click.argument("files", nargs=-1, required=True, metavar="FILE...",
                type=click.Path(path_type=Path))  # fmt: skip
@click.option("--wait", is_flag=True, help="Follow the jobs to their end.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Fetch outputs into DIR/<job>/<key> (implies --wait).")  # fmt: skip
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@click.option("--endpoint-url", help="Where S3 and SQS are.")
@click.option("--region", help="AWS region.")
@scheduler_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def run(
    function: str, files: tuple[Path, ...], wait: bool, output: Path | None, timeout: str | None,
    endpoint_url: str | None, region: str | None, scheduler: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Upload FILEs as inputs of FUNCTION; one job each.

    With --wait, ends with 1 when a job did not succeed.

    \b
    Example:  orchgpu run text-recognition sign.png --wait --output out
    """
    from contextlib import closing

    from corekit.units import parse_duration_s
    from orchgpu.cli.cloud import JobCloud

    within_s = None if timeout is None else parse_duration_s(timeout)
    with closing(JobCloud(endpoint_url, region)) as cloud:
        deployed = cloud.function(function)
        for file in files:
            cloud.check(deployed, file)  # all of them before the first upload
        submitted = [cloud.submit(deployed, file, now_s=time.time()) for file in files]
        if not wait and output is None:
            _say_submitted(submitted, as_json=as_json)
            return 0
        jobs = _follow(cloud, scheduler_or_none(scheduler), submitted, within_s, quiet=as_json)
        if output is not None:
            _download(cloud, jobs, output)
    _say_jobs(jobs, as_json=as_json)
    return 0 if all(job.succeeded for job in jobs) else NOT_SUCCEEDED_STATUS


def _follow(
    cloud: JobCloud,
    scheduler: str | None,
    submitted: list[Submitted],
    within_s: float | None,
    *,
    quiet: bool,
) -> list[Followed]:
    import asyncio

    from orchgpu.cli.follow import follow
    from orchgpu.cli.report import say_nothing, say_progress

    tell = say_nothing if quiet else say_progress
    return asyncio.run(follow(cloud, scheduler, submitted, tell, within_s=within_s))


def _download(cloud: JobCloud, jobs: list[Followed], output: Path) -> None:
    for job in jobs:
        for file in job.result.files if job.result is not None else ():
            key = str(file["key"])
            cloud.download(str(file["bucket"]), key, file_below(output / job.job_id, key))


def _say_submitted(submitted: list[Submitted], *, as_json: bool) -> None:
    if as_json:
        say_json({"jobs": [{"job_id": s.job_ids[0], "input": s.input} for s in submitted]})
        return
    for job in submitted:
        click.echo(f"{job.job_ids[0]}  {job.input}")


def _say_jobs(jobs: list[Followed], *, as_json: bool) -> None:
    from orchgpu.cli.report import job_json, say_outcome, say_timeline

    if as_json:
        say_json({"jobs": [job_json(job) for job in jobs]})
        return
    for job in jobs:
        say_outcome(job)
        say_timeline(job)

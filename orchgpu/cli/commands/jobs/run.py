"""Run a function on files."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import click

from corekit.cli.screen import counted, echo, echo_json, json_option
from corekit.cli.text import printable
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from corekit.units import parse_duration_s
from gpu_scheduler.client import SchedulerClient
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.batch import Progress, for_each
from orchgpu.cli.jobs.follow import Followed, follow
from orchgpu.cli.jobs.report import NOT_SUCCEEDED_STATUS, echo_outcomes, job_json
from orchgpu.cli.objects.inputs import Input, find_inputs
from orchgpu.cli.objects.places import at_once_option, file_below, refuse_same_names
from orchgpu.cli.scheduler import ask, scheduler_option, scheduler_or_none
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud, Submitted

#: Objects listed in a message; JSON has all of them.
OVERWRITTEN_NAMED_MAX = 3


@click.command("run")
@click.argument("function", shell_complete=function_name)
@click.argument("given", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--wait", is_flag=True, help="Follow the jobs to their end.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Fetch outputs into DIR/<job>/<key> (implies --wait).",
)
@click.option("--again", is_flag=True, help="Upload files again, and so run them again.")
@at_once_option
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@click.option("--endpoint-url", help="Endpoint of S3 and SQS.")
@click.option("--region", help="AWS region.")
@scheduler_option
@json_option
def command(
    function: str,
    given: tuple[str, ...],
    wait: bool,
    output: Path | None,
    again: bool,
    at_once: int,
    timeout: str | None,
    endpoint_url: str | None,
    region: str | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Upload FILEs as inputs of FUNCTION; one job each.

    A FILE is a file, a folder, s3://bucket/key or s3://bucket/prefix/: a folder or prefix stands
    for everything below it that the function takes, up to 1000 files.

    Repeat the command after Ctrl-C or a failure: a file that was uploaded with the same content for
    the function as it is deployed now is not uploaded again; its job is followed, its missing
    outputs are fetched. With --wait, ends with 1 when a job did not succeed.

    \b
    Example:  orchgpu run text-recognition sign.png menu.png --wait --output out
    """
    within_s = None if timeout is None else parse_duration_s(timeout)
    follows = wait or output is not None
    with closing(JobCloud(endpoint_url, region, connections=max(4, at_once))) as cloud:
        deployed = cloud.function(function)
        files = inputs_of(cloud, deployed, given)  # all of them before the first upload
        address = _reachable(scheduler) if follows else None
        progress = Progress(len(files), quiet=as_json, ids=follows)
        try:
            submitted = _submit(cloud, deployed, files, at_once, progress, again=again)
            if not follows:
                progress.end()
                _echo_submitted(submitted, as_json=as_json)
                return 0
            jobs = _follow(cloud, address, submitted, within_s, progress)
            overwritten = [] if output is None else _download(cloud, jobs, output, at_once)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; uploaded jobs continue, repeat the command to follow them"
            ) from None
        finally:
            progress.end()
    conflict = _conflict(overwritten)
    _echo_jobs(jobs, output, conflict, as_json=as_json)
    if conflict is not None:
        return EXIT_STATUS[conflict.code]
    return 0 if all(job.succeeded for job in jobs) else NOT_SUCCEEDED_STATUS


def inputs_of(cloud: JobCloud, function: Function, given: Sequence[str]) -> list[Input]:
    """The inputs. Raises INVALID for an impossible input, and for two that would be one object."""
    inputs = find_inputs(cloud, given, function.input_suffixes)
    refuse_same_names(one.name for one in inputs.found)
    if inputs.skipped:
        wanted = " or ".join(function.input_suffixes)
        files = counted(inputs.skipped, "file")
        echo(f"note: {files} skipped: {function.name} takes only {wanted}", err=True)
    return inputs.found


def _reachable(given: str | None) -> str | None:
    """The scheduler to follow the jobs; None when none is configured: results show the end as well.

    Raises UNAVAILABLE when it does not answer: nothing is uploaded then.
    """
    address = scheduler_or_none(given)

    async def nothing(_client: SchedulerClient) -> None:
        """Do nothing: the connection itself is the check."""

    if address is not None:
        ask(address, nothing)
    return address


def _submit(
    cloud: JobCloud,
    function: Function,
    files: Sequence[Input],
    at_once: int,
    progress: Progress,
    *,
    again: bool,
) -> list[Submitted]:
    def submit(source: Input) -> tuple[Submitted, bool]:
        with source.file(cloud) as file:
            before = None if again else cloud.submitted_before(function, file)
            return before or cloud.submit(function, file, now_s=time.time()), before is not None

    done = for_each(submit, files, at_once, lambda one: progress.uploaded(one[0], before=one[1]))
    return [job for job, _ in done]


def _follow(
    cloud: JobCloud,
    scheduler: str | None,
    submitted: list[Submitted],
    within_s: float | None,
    progress: Progress,
) -> list[Followed]:
    return asyncio.run(follow(cloud, scheduler, submitted, progress.changed, within_s=within_s))


def _download(cloud: JobCloud, jobs: list[Followed], output: Path, at_once: int) -> list[str]:
    """Fetch the missing outputs; returns those that were overwritten, which are not fetched."""
    wanted = [
        (file_below(output / job.job_id, str(file["key"])), file)
        for job in jobs
        for file in (job.result.files if job.result is not None else ())
    ]
    missing = [(to, file) for to, file in wanted if not fetched(to, str(file["sha256"]))]

    def fetch(one: tuple[Path, Mapping[str, object]]) -> str | None:
        to, file = one
        bucket, key = str(file["bucket"]), str(file["key"])
        cloud.download(bucket, key, to)
        if fetched(to, str(file["sha256"])):
            return None
        to.unlink()
        return f"s3://{bucket}/{key}"

    changed = for_each(fetch, missing, at_once, lambda _: None)
    return list(dict.fromkeys(url for url in changed if url is not None))


def _conflict(overwritten: list[str]) -> AppError | None:
    """The error of outputs that another job overwrote."""
    if not overwritten:
        return None
    named = ", ".join(printable(place) for place in overwritten[:OVERWRITTEN_NAMED_MAX])
    message = (
        f"{named}: overwritten since the job wrote it, and not fetched; make the script name each "
        "output after its input"
    )
    return AppError(ErrorCode.CONFLICT, message, overwritten=overwritten)


def fetched(file: Path, sha256: str) -> bool:
    """True when the file exists and has this content."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == sha256


def _echo_submitted(submitted: list[Submitted], *, as_json: bool) -> None:
    if as_json:
        echo_json({"jobs": [{"job_id": s.job_ids[0], "input": s.input} for s in submitted]})
        return
    for job in submitted:
        echo(f"{job.job_ids[0]}  {printable(job.input)}")


def _echo_jobs(
    jobs: list[Followed], output: Path | None, conflict: AppError | None, *, as_json: bool
) -> None:
    if as_json:
        failed = {} if conflict is None else {"error": conflict.as_json()}
        echo_json({"jobs": [job_json(job) for job in jobs], **failed})
    else:
        echo_outcomes(jobs, output)
    if conflict is not None:
        echo(f"orchgpu: {conflict.message}", err=True)

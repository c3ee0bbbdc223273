"""`orchgpu run FUNCTION FILE…`: upload, follow, fetch; repeated, it goes on where it ended."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from orchgpu.cli.objects.objects import at_once_option, file_below, refuse_twins
from orchgpu.cli.scheduler import ask, scheduler_option, scheduler_or_none
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import counted, json_option, say, say_json
from orchgpu.cli.terminal.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_scheduler.client import SchedulerClient
    from orchgpu.cli.cloud import JobCloud, Submitted
    from orchgpu.cli.jobs.batch import Progress
    from orchgpu.cli.jobs.follow import Followed
    from orchgpu.cli.objects.inputs import Source
    from orchgpu.core.function import Function

#: Ends `run --wait` when a job did not succeed; the job's own reason is in what is printed.
NOT_SUCCEEDED_STATUS = 1
#: Places named in a sentence; JSON has all of them.
OVERWRITTEN_NAMED_MAX = 3


@click.command(short_help="Run a function on files of yours.")
@click.argument("function", shell_complete=function_name)
@click.argument("given", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--wait", is_flag=True, help="Follow the jobs to their end.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Fetch outputs into DIR/<job>/<key> (implies --wait).",
)
@click.option("--again", is_flag=True, help="Upload, and so run, also what was uploaded before.")
@at_once_option
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@click.option("--endpoint-url", help="Where S3 and SQS are.")
@click.option("--region", help="AWS region.")
@scheduler_option
@json_option
def run(
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

    A FILE is a file, a folder, s3://bucket/key or s3://bucket/prefix/: of a folder or prefix all
    that lies below it and that the function takes, up to 1000 files.

    Repeat the command after Ctrl-C or a failure: a file that was uploaded with the same content for
    the function as it is deployed now is not uploaded again; its job is followed, its outputs are
    fetched where they are missing. With --wait, ends with 1 when a job did not succeed.

    \b
    Example:  orchgpu run text-recognition sign.png menu.png --wait --output out
    """
    from contextlib import closing

    from corekit.units import parse_duration_s
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.batch import Progress

    within_s = None if timeout is None else parse_duration_s(timeout)
    follows = wait or output is not None
    with closing(JobCloud(endpoint_url, region, connections=max(4, at_once))) as cloud:
        deployed = cloud.function(function)
        files = _inputs(cloud, deployed, given)  # all of them before the first upload
        address = _reachable(scheduler) if follows else None
        if follows:
            _load_what_follows()
        progress = Progress(len(files), quiet=as_json, ids=follows)
        try:
            submitted = _submit(cloud, deployed, files, at_once, progress, again=again)
            if not follows:
                progress.end()
                _say_submitted(submitted, as_json=as_json)
                return 0
            jobs = _follow(cloud, address, submitted, within_s, progress)
            overwritten = [] if output is None else _download(cloud, jobs, output, at_once)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; what was uploaded goes on by itself, repeat the command to follow it"
            ) from None
        finally:
            progress.end()
    conflict = _conflict(overwritten)
    _say_jobs(jobs, output, conflict, as_json=as_json)
    if conflict is not None:
        return EXIT_STATUS[conflict.code]
    return 0 if all(job.succeeded for job in jobs) else NOT_SUCCEEDED_STATUS


def _inputs(cloud: JobCloud, function: Function, given: Sequence[str]) -> list[Source]:
    """Raises INVALID for what cannot be an input, and for two that would be one."""
    from orchgpu.cli.objects.inputs import sources

    inputs = sources(cloud, given, function.input_suffixes)
    refuse_twins(one.name for one in inputs.found)
    if inputs.skipped:
        wanted = " or ".join(function.input_suffixes)
        files = counted(inputs.skipped, "file")
        said = f"{files} skipped: {function.name} takes only {wanted}"
        say(f"note: {said}", err=True)
    return inputs.found


def _load_what_follows() -> None:
    """Before the first upload: Python may lose a Ctrl-C that comes in the middle of an import."""
    for name in ("asyncio", "orchgpu.cli.jobs.follow", "orchgpu.cli.jobs.report"):
        importlib.import_module(name)


def _reachable(given: str | None) -> str | None:
    """The scheduler that can follow; None when none is known: results tell the end as well.

    Raises UNAVAILABLE when it does not answer: nothing is uploaded then.
    """
    address = scheduler_or_none(given)

    async def nothing(_client: SchedulerClient) -> None:
        """That it answers is all that is asked."""

    if address is not None:
        ask(address, nothing)
    return address


def _submit(
    cloud: JobCloud,
    function: Function,
    files: Sequence[Source],
    at_once: int,
    progress: Progress,
    *,
    again: bool,
) -> list[Submitted]:
    from orchgpu.cli.jobs.batch import for_each

    def submit(source: Source) -> tuple[Submitted, bool]:
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
    import asyncio

    from orchgpu.cli.jobs.follow import follow

    return asyncio.run(follow(cloud, scheduler, submitted, progress.told, within_s=within_s))


def _download(cloud: JobCloud, jobs: list[Followed], output: Path, at_once: int) -> list[str]:
    """Fetch what is not there whole; the places that hold something else by now, not fetched."""
    from orchgpu.cli.jobs.batch import for_each

    wanted = [
        (file, file_below(output / job.job_id, str(file["key"])))
        for job in jobs
        for file in (job.result.files if job.result is not None else ())
    ]
    missing = [(file, to) for file, to in wanted if not _fetched(to, str(file["sha256"]))]

    def fetch(one: tuple[dict[str, Any], Path]) -> str | None:
        file, to = one
        cloud.download(str(file["bucket"]), str(file["key"]), to)
        if _fetched(to, str(file["sha256"])):
            return None
        to.unlink()
        return f"s3://{file['bucket']}/{file['key']}"

    told = for_each(fetch, missing, at_once, lambda _: None)
    return list(dict.fromkeys(place for place in told if place is not None))


def _conflict(overwritten: list[str]) -> AppError | None:
    """Of outputs that another job wrote over."""
    if not overwritten:
        return None
    named = ", ".join(printable(place) for place in overwritten[:OVERWRITTEN_NAMED_MAX])
    message = (
        f"{named}: overwritten since the job wrote it, and not fetched; let the script name each "
        "output after its input"
    )
    return AppError(ErrorCode.CONFLICT, message, overwritten=overwritten)


def _fetched(file: Path, sha256: str) -> bool:
    import hashlib

    if not file.is_file():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == sha256


def _say_submitted(submitted: list[Submitted], *, as_json: bool) -> None:
    if as_json:
        say_json({"jobs": [{"job_id": s.job_ids[0], "input": s.input} for s in submitted]})
        return
    for job in submitted:
        say(f"{job.job_ids[0]}  {printable(job.input)}")


def _say_jobs(
    jobs: list[Followed], output: Path | None, conflict: AppError | None, *, as_json: bool
) -> None:
    from orchgpu.cli.jobs.report import job_json, say_outcomes

    if as_json:
        failed = {} if conflict is None else {"error": conflict.as_json()}
        say_json({"jobs": [job_json(job) for job in jobs], **failed})
    else:
        say_outcomes(jobs, output)
    if conflict is not None:
        say(f"orchgpu: {conflict.message}", err=True)

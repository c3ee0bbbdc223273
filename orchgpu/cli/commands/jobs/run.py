"""Run a function or a workflow on files."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from corekit.cli.screen import echo, echo_json, json_option
from corekit.cli.text import printable
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.units import parse_duration_s
from corekit.values import Value
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.batch import Progress, at_once_option
from orchgpu.cli.jobs.quotes import deployed_subject
from orchgpu.cli.jobs.quotes import quote as show_quote
from orchgpu.cli.jobs.report import echo_outcomes, ending_status, job_json
from orchgpu.cli.jobs.runs import (
    echo_runs,
    echo_uploaded,
    nothing,
    on_change,
    run_json,
)
from orchgpu.cli.options import scheduler_option
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud, Submitted
from orchgpu.jobs.following import Followed, follow
from orchgpu.jobs.runs import fetch_files, follow_runs, start_runs
from orchgpu.jobs.scheduler import answering_scheduler
from orchgpu.jobs.transfers import (
    FIELDS,
    OWN_FOLDERS,
    OutputFolder,
    fetch_outputs,
    inputs_of,
    submit_all,
)

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
    help="Fetch outputs into DIR (implies --wait).",
)
@click.option(
    "--name",
    "pattern",
    default=OWN_FOLDERS,
    show_default=True,
    metavar="PATTERN",
    help=f"Path of each output in DIR. Fields: {', '.join(FIELDS)}.",
)
@click.option("--quote", is_flag=True, help="Show when it would end, and its cost; start nothing.")
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
    pattern: str,
    quote: bool,
    again: bool,
    at_once: int,
    timeout: str | None,
    endpoint_url: str | None,
    region: str | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Upload FILEs as inputs of FUNCTION; one job each, or one run each of a workflow.

    A FILE is a file, a folder, s3://bucket/key or s3://bucket/prefix/: a folder or prefix stands
    for everything below it that the function takes, up to 1000 files.

    Repeat the command after Ctrl-C or a failure: a file that was uploaded with the same content for
    the function as it is deployed now is not uploaded again; its job is followed, its missing
    outputs are fetched. With --wait, ends with 1 when a job did not succeed.

    With --name, as in '{stem}.tsv' or '{input}/{name}', outputs get paths that other tools know
    beforehand; two outputs that would be one file are refused before any is fetched.

    \b
    Example:  orchgpu run text-recognition sign.png menu.png --wait --output out
    """
    within_s = None if timeout is None else parse_duration_s(timeout)
    folder = None if output is None else OutputFolder(path=output, pattern=pattern)
    if folder is None and pattern != OWN_FOLDERS:
        raise invalid("--name is the path of outputs in a folder: give --output DIR as well")
    follows = wait or folder is not None
    with closing(JobCloud(endpoint_url, region, connections=max(4, at_once))) as cloud:
        deployed = cloud.function_or_workflow(function)
        if quote:
            count = len(inputs_of(cloud, deployed, given, partial(echo, err=True)))
            subject = deployed_subject(cloud, deployed)
            return show_quote(subject, count, scheduler, as_json=as_json)
        if isinstance(deployed, Workflow):
            _check_pattern(pattern)
            shown = _Shown(follows=follows, output=output, within_s=within_s, as_json=as_json)
            return _run_workflow(cloud, deployed, given, shown, at_once, again=again)
        # all of them before the first upload
        files = inputs_of(cloud, deployed, given, partial(echo, err=True))
        if folder is not None:
            folder.check(len(files))
        address = answering_scheduler(scheduler) if follows else None
        progress = Progress(len(files), quiet=as_json, ids=follows)
        try:
            submitted = submit_all(cloud, deployed, files, at_once, progress.uploaded, again=again)
            if not follows:
                progress.end()
                _echo_submitted(submitted, as_json=as_json)
                return 0
            jobs = _follow(cloud, address, submitted, within_s, progress)
            overwritten = [] if folder is None else fetch_outputs(cloud, jobs, folder, at_once)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; uploaded jobs continue, repeat the command to follow them"
            ) from None
        finally:
            progress.end()
    conflict = _conflict(overwritten)
    _echo_jobs(jobs, folder, conflict, as_json=as_json)
    if conflict is not None:
        return EXIT_STATUS[conflict.code]
    return ending_status(str(job.reason) for job in jobs if not job.succeeded)


class _Shown(Value):
    """The options of the command about the output, for a workflow."""

    follows: bool
    output: Path | None
    within_s: float | None
    as_json: bool


def _check_pattern(pattern: str) -> None:
    if pattern != OWN_FOLDERS:
        raise invalid("outputs of a workflow are at DIR/INPUT/STEP/NAME: leave --name out")


def _run_workflow(
    cloud: JobCloud,
    workflow: Workflow,
    given: tuple[str, ...],
    shown: _Shown,
    at_once: int,
    *,
    again: bool,
) -> int:
    """Start a run for each file; follow them with a line for each step, and fetch their files.

    Ends with 1 when a run did not succeed, with 6 or 7 when its promise was refused.
    """
    files = inputs_of(cloud, workflow, given, partial(echo, err=True))
    uploaded = nothing if shown.as_json else echo_uploaded
    started = start_runs(cloud, workflow, files, at_once, uploaded, again=again)
    if not shown.follows:
        runs = [{"run_id": one.run_ids[0], "input": one.input} for one in started]
        if shown.as_json:
            echo_json({"runs": runs})
        else:
            for one in runs:
                echo(f"{one['run_id']}  {printable(one['input'])}")
        return 0
    changed = on_change(as_json=shown.as_json)
    seen = asyncio.run(follow_runs(cloud, started, changed, within_s=shown.within_s))
    folder = shown.output
    fetched = [] if folder is None else fetch_files(cloud, seen, folder, at_once)
    if shown.as_json:
        echo_json({"runs": [run_json(one) for one in seen], "fetched": [str(f) for f in fetched]})
    else:
        echo_runs(seen, fetched)
    return ending_status(one.state.reason for one in seen if not one.succeeded)


def _follow(
    cloud: JobCloud,
    scheduler: str | None,
    submitted: list[Submitted],
    within_s: float | None,
    progress: Progress,
) -> list[Followed]:
    return asyncio.run(follow(cloud, scheduler, submitted, progress.changed, within_s=within_s))


def _conflict(overwritten: list[str]) -> AppError | None:
    if not overwritten:
        return None
    named = ", ".join(printable(place) for place in overwritten[:OVERWRITTEN_NAMED_MAX])
    message = (
        f"{named}: overwritten since the job wrote it, and not fetched; make the script name each "
        "output after its input"
    )
    return AppError(ErrorCode.CONFLICT, message, overwritten=overwritten)


def _echo_submitted(submitted: list[Submitted], *, as_json: bool) -> None:
    if as_json:
        echo_json({"jobs": [{"job_id": s.job_ids[0], "input": s.input} for s in submitted]})
        return
    for job in submitted:
        echo(f"{job.job_ids[0]}  {printable(job.input)}")


def _echo_jobs(
    jobs: list[Followed], output: OutputFolder | None, conflict: AppError | None, *, as_json: bool
) -> None:
    if as_json:
        failed = {} if conflict is None else {"error": conflict.as_json()}
        echo_json({"jobs": [job_json(job) for job in jobs], **failed})
    else:
        echo_outcomes(jobs, output)
    if conflict is not None:
        echo(f"orchgpu: {conflict.message}", err=True)

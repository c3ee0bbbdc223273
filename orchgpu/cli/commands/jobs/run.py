"""Run a function or a workflow on files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from contract.parameters import set_text
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
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud, Submitted
from orchgpu.jobs.following import Followed, follow
from orchgpu.jobs.places import Input
from orchgpu.jobs.run_following import follow_runs
from orchgpu.jobs.runs import Fetched, StartedRun, fetch_files, start_runs
from orchgpu.jobs.scheduler import answering_scheduler, scheduler_or_none
from orchgpu.jobs.transfers import (
    FIELDS,
    OWN_FOLDERS,
    OutputFolder,
    fetch_outputs,
    inputs_of,
    submit_all,
)

#: `start_runs`, with its options.
_Start = Callable[
    [JobCloud, Workflow, list[Input], int, Callable[[StartedRun], None]], list[StartedRun]
]
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
@click.option(
    "--set",
    "parameters",
    multiple=True,
    callback=lambda _context, _option, given: _parameters(given),
    metavar="NAME=VALUE",
    help="A parameter of the jobs: variable ORCHGPU_PARAM_NAME of their code; repeatable. Other"
    " parameters make other jobs.",
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
    parameters: str,
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
    folder = _output_folder(output, pattern)
    follows = wait or folder is not None
    with closing(JobCloud(endpoint_url, region, connections=max(4, at_once))) as cloud:
        deployed = cloud.function_or_workflow(function)
        if quote:
            return _quote(cloud, deployed, given, scheduler, follows=follows, as_json=as_json)
        if isinstance(deployed, Workflow):
            _check_pattern(pattern)
            shown = _Shown(follows=follows, output=output, within_s=within_s, as_json=as_json)
            start = partial(start_runs, again=again, parameters=parameters)
            return _run_workflow(cloud, deployed, given, shown, at_once, scheduler, start)
        # all of them before the first upload
        files = inputs_of(cloud, deployed, given, partial(echo, err=True))
        if folder is not None:
            folder.check(len(files))
        address = answering_scheduler(scheduler) if follows else None
        progress = Progress(len(files), quiet=as_json, ids=follows)
        try:
            submit = partial(submit_all, again=again, parameters=parameters)
            submitted = submit(cloud, deployed, files, at_once, progress.uploaded)
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


def _output_folder(output: Path | None, pattern: str) -> OutputFolder | None:
    if output is None and pattern != OWN_FOLDERS:
        raise invalid("--name is the path of outputs in a folder: give --output DIR as well")
    return None if output is None else OutputFolder(path=output, pattern=pattern)


def _quote(
    cloud: JobCloud,
    deployed: Function | Workflow,
    given: tuple[str, ...],
    scheduler: str | None,
    *,
    follows: bool,
    as_json: bool,
) -> int:
    if follows:
        raise invalid("--quote starts nothing: leave --wait and --output out")
    count = len(inputs_of(cloud, deployed, given, partial(echo, err=True)))
    return show_quote(deployed_subject(cloud, deployed), count, scheduler, as_json=as_json)


def _parameters(given: tuple[str, ...]) -> str:
    """The options `--set` as one text. Raises INVALID."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise invalid(f"--set {one!r}: write NAME=VALUE")
        if name in found:
            raise invalid(f"--set {name}: given twice")
        found[name] = value
    try:
        return set_text(found)
    except ValueError as error:
        raise invalid(f"--set: {error}") from None


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
    scheduler: str | None,
    start: _Start,
) -> int:
    """Start a run for each file; follow them with a line for each step, and fetch their files.

    Ends with 1 when a run did not succeed, with 6 or 7 when its promise was refused.
    """
    files = inputs_of(cloud, workflow, given, partial(echo, err=True))
    uploaded = nothing if shown.as_json else echo_uploaded
    started = start(cloud, workflow, files, at_once, uploaded)
    if not shown.follows:
        runs = [{"run_id": one.run_ids[0], "input": one.input} for one in started]
        if shown.as_json:
            echo_json({"runs": runs})
        else:
            for one in runs:
                echo(f"{one['run_id']}  {printable(one['input'])}")
        return 0
    changed = on_change(as_json=shown.as_json)
    within_s, address = shown.within_s, scheduler_or_none(scheduler)
    following = follow_runs(cloud, started, changed, within_s=within_s, scheduler=address)
    seen = asyncio.run(following)
    folder = shown.output
    fetched = Fetched(files=())
    if folder is not None:
        fetched = fetch_files(cloud, seen, folder, at_once)
    conflict = _conflict(fetched.overwritten)
    if shown.as_json:
        paths = [str(one) for one in fetched.files]
        echo_json({"runs": [run_json(one) for one in seen], "fetched": paths, **_failed(conflict)})
    else:
        echo_runs(seen, fetched.files)
    if conflict is not None:
        echo(f"orchgpu: {conflict.message}", err=True)
        return EXIT_STATUS[conflict.code]
    return ending_status(one.state.reason for one in seen if not one.succeeded)


def _follow(
    cloud: JobCloud,
    scheduler: str | None,
    submitted: list[Submitted],
    within_s: float | None,
    progress: Progress,
) -> list[Followed]:
    return asyncio.run(follow(cloud, scheduler, submitted, progress.changed, within_s=within_s))


def _failed(conflict: AppError | None) -> dict[str, object]:
    return {} if conflict is None else {"error": conflict.as_json()}


def _conflict(given: Iterable[str]) -> AppError | None:
    overwritten = list(given)
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
        echo_json({"jobs": [job_json(job) for job in jobs], **_failed(conflict)})
    else:
        echo_outcomes(jobs, output)
    if conflict is not None:
        echo(f"orchgpu: {conflict.message}", err=True)

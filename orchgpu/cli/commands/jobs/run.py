"""Run a function or a workflow on files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.cli.screen import echo, echo_json
from corekit.cli.text import printable
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.units import parse_duration_s
from corekit.values import Value
from orchgpu.cli.completing import function_or_definition
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
from orchgpu.cli.options import (
    Deploying,
    cloud_options,
    deploy_options,
    is_definition,
    scheduler_option,
)
from orchgpu.cloud_services import Address
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.files import check_file
from orchgpu.jobs.following import Followed, follow
from orchgpu.jobs.parameters import parameters_text
from orchgpu.jobs.places import SCHEME
from orchgpu.jobs.run_following import follow_runs
from orchgpu.jobs.runs import Fetched, fetch_files, start_runs
from orchgpu.jobs.scheduler import answering_scheduler, scheduler_or_none
from orchgpu.jobs.transfers import (
    FIELDS,
    OWN_FOLDERS,
    OutputFolder,
    fetch_outputs,
    inputs_of,
    submit_all,
)
from orchgpu.jobs.uploaded import Submitted

if TYPE_CHECKING:
    from fdl.model import Document

#: Objects listed in a message; JSON has all of them.
OVERWRITTEN_NAMED_MAX = 3


@click.command("run")
@click.argument("function", metavar="FUNCTION|FILE.yaml", shell_complete=function_or_definition)
@click.argument("given", nargs=-1, required=True, metavar="INPUT...", type=click.Path())
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
    callback=lambda _context, _option, given: parameters_text(given, "--set"),
    metavar="NAME=VALUE",
    help="A parameter of the jobs: variable ORCHGPU_PARAM_NAME of their code; repeatable. Other"
    " parameters make other jobs.",
)
@click.option("--quote", is_flag=True, help="Show when it would end, and its cost; start nothing.")
@click.option("--again", is_flag=True, help="Upload files again, and so run them again.")
@at_once_option
@click.option("--timeout", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@click.option(
    "--watch",
    "watched",
    is_flag=True,
    help="Deploy FILE.yaml and run again when it, one of its files or an INPUT changes (implies"
    " --wait).",
)
@deploy_options
@cloud_options
@scheduler_option
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
    watched: bool,
    deploying: Deploying,
    address: Address,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Upload INPUTs of FUNCTION; one job each, or one run each of a workflow.

    With FILE.yaml, a definition, first deploy what is new of it, as `orchgpu deploy` does; then run
    its only function or workflow. The deploy's output is on standard error.

    An INPUT is a file, a folder, s3://bucket/key or s3://bucket/prefix/: a folder or prefix stands
    for everything below it that the function takes, up to 1000 files.

    Repeat the command after Ctrl-C or a failure: a file that was uploaded with the same content for
    the function as it is deployed now is not uploaded again; its job is followed, its missing
    outputs are fetched. With --wait, ends with 1 when a job did not succeed. Where no scheduler can
    be used from here, jobs are followed by their results.

    With --name, as in '{stem}.tsv' or '{input}/{name}', outputs get paths that other tools know
    beforehand; two outputs that would be one file are refused before any is fetched.

    \b
    Example:  orchgpu run text-recognition sign.png menu.png --wait --output out
              orchgpu run fdl.yaml sign.png --watch
    """
    asked = _Asked(
        given=given,
        follows=wait or watched or output is not None,
        output=output,
        pattern=pattern,
        parameters=parameters,
        quote=quote,
        again=again,
        at_once=at_once,
        within_s=None if timeout is None else parse_duration_s(timeout),
        scheduler=scheduler,
        as_json=as_json,
    )
    if is_definition(function):
        return _run_file(Path(function), asked, address, deploying, watched=watched)
    if watched:
        raise invalid("--watch deploys FILE.yaml again: give it in place of FUNCTION")
    return _run(function, asked, address)


class _Asked(Value):
    """The options of the command about the run."""

    given: tuple[str, ...]
    follows: bool
    output: Path | None
    pattern: str
    parameters: str
    quote: bool
    again: bool
    at_once: int
    within_s: float | None
    scheduler: str | None
    as_json: bool


def _run_file(
    file: Path, asked: _Asked, address: Address, deploying: Deploying, *, watched: bool
) -> int:
    """Deploy what is new of a definition, and run it; with `watched` until Ctrl-C."""
    # a run by name makes no plan, and would import its modules
    from orchgpu.cli.definition.deploying import deploy, runnable
    from orchgpu.cli.definition.watch import watch
    from orchgpu.deploy.files import read_document

    if asked.quote:
        text = f"--quote is of a deployed FUNCTION: write `orchgpu quote {file} INPUT`"
        raise invalid(text)
    _output_folder(asked.output, asked.pattern)  # its errors before the deploy
    inputs = [Path(one) for one in asked.given if not one.startswith(SCHEME)]
    for one in inputs:
        if not one.is_dir():
            check_file(one)

    def deploy_and_run(document: Document) -> int:
        name = runnable(document)
        there = deploy(
            file,
            document,
            address,
            asked.scheduler,
            deploying,
            as_json=asked.as_json,
            aside=True,
        )
        return _run(name, asked, there)

    if watched:
        watch(file, deploy_and_run, as_json=asked.as_json, inputs=inputs)
    return deploy_and_run(read_document(file))


def _run(function: str, asked: _Asked, address: Address) -> int:
    """Run a deployed function or workflow."""
    folder = _output_folder(asked.output, asked.pattern)
    at_once, connections = asked.at_once, max(4, asked.at_once)
    there = (address.endpoint_url, address.region, address.profile)
    with closing(JobCloud(*there, connections=connections)) as cloud:
        deployed = cloud.function_or_workflow(function)
        if asked.quote:
            return _quote(cloud, deployed, asked, address)
        if isinstance(deployed, Workflow):
            return _run_workflow(cloud, deployed, asked, address)
        # all of them before the first upload
        files = inputs_of(cloud, deployed, asked.given, partial(echo, err=True))
        if folder is not None:
            folder.check(len(files))
        scheduler = answering_scheduler(asked.scheduler, _note, address) if asked.follows else None
        progress = Progress(len(files), quiet=asked.as_json, ids=asked.follows)
        try:
            submit = partial(submit_all, again=asked.again, parameters=asked.parameters)
            submitted = submit(cloud, deployed, files, at_once, progress.uploaded)
            if not asked.follows:
                progress.end()
                _echo_submitted(submitted, as_json=asked.as_json)
                return 0
            following = follow(
                cloud, scheduler, submitted, progress.changed, within_s=asked.within_s
            )
            jobs = asyncio.run(following)
            overwritten = [] if folder is None else fetch_outputs(cloud, jobs, folder, at_once)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "interrupted; uploaded jobs continue, repeat the command to follow them"
            ) from None
        finally:
            progress.end()
    conflict = _conflict(overwritten)
    _echo_jobs(jobs, folder, conflict, as_json=asked.as_json)
    if conflict is not None:
        return EXIT_STATUS[conflict.code]
    return ending_status(str(job.reason) for job in jobs if not job.succeeded)


def _note(text: str) -> None:
    echo(f"note: {text}", err=True)


def _output_folder(output: Path | None, pattern: str) -> OutputFolder | None:
    if output is None and pattern != OWN_FOLDERS:
        raise invalid("--name is the path of outputs in a folder: give --output DIR as well")
    return None if output is None else OutputFolder(path=output, pattern=pattern)


def _quote(cloud: JobCloud, deployed: Function | Workflow, asked: _Asked, there: Address) -> int:
    if asked.follows:
        raise invalid("--quote starts nothing: leave --wait and --output out")
    count = len(inputs_of(cloud, deployed, asked.given, partial(echo, err=True)))
    subject = deployed_subject(cloud, deployed)
    return show_quote(subject, count, asked.scheduler, there, as_json=asked.as_json)


def _run_workflow(cloud: JobCloud, workflow: Workflow, asked: _Asked, there: Address) -> int:
    """Start a run for each file; follow them with a line for each step, and fetch their files.

    Ends with 1 when a run did not succeed, with 6 or 7 when its promise was refused.
    """
    if asked.pattern != OWN_FOLDERS:
        raise invalid("outputs of a workflow are at DIR/INPUT/STEP/NAME: leave --name out")
    files = inputs_of(cloud, workflow, asked.given, partial(echo, err=True))
    uploaded = nothing if asked.as_json else echo_uploaded
    start = partial(start_runs, again=asked.again, parameters=asked.parameters)
    started = start(cloud, workflow, files, asked.at_once, uploaded)
    if not asked.follows:
        runs = [{"run_id": one.run_ids[0], "input": one.input} for one in started]
        if asked.as_json:
            echo_json({"runs": runs})
        else:
            for one in runs:
                echo(f"{one['run_id']}  {printable(one['input'])}")
        return 0
    changed = on_change(as_json=asked.as_json)
    within_s, address = asked.within_s, scheduler_or_none(asked.scheduler, there)
    following = follow_runs(cloud, started, changed, within_s=within_s, scheduler=address)
    seen = asyncio.run(following)
    fetched = Fetched(files=())
    if asked.output is not None:
        fetched = fetch_files(cloud, seen, asked.output, asked.at_once)
    conflict = _conflict(fetched.overwritten)
    if asked.as_json:
        paths = [str(one) for one in fetched.files]
        echo_json({"runs": [run_json(one) for one in seen], "fetched": paths, **_failed(conflict)})
    else:
        echo_runs(seen, fetched.files)
    if conflict is not None:
        echo(f"orchgpu: {conflict.message}", err=True)
        return EXIT_STATUS[conflict.code]
    return ending_status(one.state.reason for one in seen if not one.succeeded)


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

"""End a job, or a run of a workflow."""

from __future__ import annotations

from contextlib import closing

import click

from contract.keys import JOB_ID
from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import invalid
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.completing import live_job
from orchgpu.cli.jobs.lookup import PREFIX_MIN, is_prefix, resolve_ids
from orchgpu.cli.options import scheduler_option
from orchgpu.jobs.cancelling import cancel_job
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.runs import cancel_run, find_run, is_run
from orchgpu.jobs.scheduler import scheduler_or_none


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True, metavar="ID...", shell_complete=live_job)
@click.option(
    "--function",
    metavar="NAME",
    shell_complete=function_name,
    help="The function of the jobs; needed only before they are received.",
)
@click.option("--reason", default="", metavar="TEXT", help="Recorded in the result.")
@scheduler_option
@json_option
def command(
    jobs: tuple[str, ...], function: str | None, reason: str, scheduler: str | None, as_json: bool
) -> None:
    """End the jobs ID, queued or running: they become CANCELLED and their leases are revoked.

    A job that has already ended keeps its result, and the command ends with 4. A cancelled job
    leaves no dead letter. The command may be repeated. Of a run of a workflow nothing starts any
    more, and its live steps are ended.

    \b
    Example:  orchgpu cancel j1f0c2a9b3d4e5f60718293a4b --reason "wrong file"
    """
    runs = [one for one in jobs if is_run(one)]
    jobs = tuple(one for one in jobs if one not in runs)
    for job in jobs:
        if not JOB_ID.fullmatch(job) and not is_prefix(job):
            raise invalid(
                f"{job!r} is not an id of a job: j and 25 hexadecimal digits, or the "
                f"first {PREFIX_MIN} characters or more of them"
            )
    whole = resolve_ids(jobs, scheduler) if jobs else []
    address = scheduler_or_none(scheduler)
    detail = f"cancelled: {reason}" if reason else "cancelled by its user"
    with closing(JobCloud()) as cloud:
        for job in whole:
            cancel_job(cloud, address, job, function, detail)
            if not as_json:
                echo(f"{job} CANCELLED")
        asked = [_cancel_run(cloud, run, detail, as_json=as_json) for run in runs]
    if as_json:
        ended = {"jobs": [{"job_id": job, "state": "CANCELLED"} for job in whole]}
        echo_json({**ended, **({"runs": [{"run_id": run} for run in asked]} if asked else {})})


def _cancel_run(cloud: JobCloud, text: str, detail: str, *, as_json: bool) -> str:
    seen = find_run(cloud, text)
    cancel_run(cloud, seen, detail)
    if not as_json:
        echo(f"{seen.id}: its steps are being ended; `orchgpu job {seen.id}` shows it")
    return seen.id

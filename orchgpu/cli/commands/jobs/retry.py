"""Run a failed job again, or a run of a workflow."""

from __future__ import annotations

from contextlib import closing

import click

from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import invalid
from orchgpu.cli.completing import failed_job
from orchgpu.cli.jobs.lookup import known_job, whole_id
from orchgpu.cli.options import scheduler_option
from orchgpu.core.function import Function
from orchgpu.jobs.cancelling import rights_on
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.letters import retry
from orchgpu.jobs.runs import find_run, is_run, retry_run
from orchgpu.jobs.scheduler import scheduler_or_none


@click.command("retry")
@click.argument("job", metavar="ID", shell_complete=failed_job)
@click.option(
    "--from", "from_step", default="", metavar="STEP", help="Of a run: this step and all after it."
)
@scheduler_option
@json_option
def command(job: str, from_step: str, scheduler: str | None, as_json: bool) -> None:
    """Run the failed or rejected job ID again, with a new budget of attempts.

    Its input must still exist. A job that succeeded is not run again: upload its input again.

    Of a run of a workflow the steps that did not succeed run again, what is done stays; with --from
    the named step and all after it run again too.

    \b
    Example:  orchgpu retry j1f0c2a9b3d4e5f60718293a4b
    """
    if is_run(job):
        with closing(JobCloud()) as cloud:
            seen = find_run(cloud, job)
            retry_run(cloud, seen, from_step)
        if as_json:
            echo_json({"run_id": seen.id, "workflow": seen.workflow.name, "retried": True})
        else:
            echo(f"{seen.id} runs again; `orchgpu job {seen.id}` shows its state")
        return
    if from_step:
        raise invalid("--from is for runs of workflows; a job has no steps")
    job = whole_id(job, scheduler)
    with closing(JobCloud()) as cloud:
        function = retry_job(cloud, job, scheduler)
    if as_json:
        echo_json({"job_id": job, "function": function.name, "retried": True})
        return
    echo(f"{job} runs again; `orchgpu job {job}` shows its state")


def retry_job(cloud: JobCloud, job: str, scheduler: str | None) -> Function:
    """Run one job again; returns its function. Raises DENIED, and what `retry` raises."""
    known = known_job(job, scheduler)
    if (rights := rights_on(known, scheduler_or_none(scheduler))) is not None:
        rights.require_retry()
    return retry(cloud, known)

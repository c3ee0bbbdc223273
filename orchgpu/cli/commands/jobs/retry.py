"""Run a failed job again."""

from __future__ import annotations

import json
from contextlib import closing

import click

from contract.result import Result
from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.cloud import JobCloud
from orchgpu.cli.completing import failed_job
from orchgpu.cli.jobs.ids import whole_id
from orchgpu.cli.jobs.known import Known, known_job
from orchgpu.cli.jobs.letters import LETTERS_MAX, dead_letters, newest_of
from orchgpu.cli.scheduler import scheduler_option
from orchgpu.core.ending import dead_letter_body
from orchgpu.core.function import Function
from orchgpu.core.job import input_from_payload


@click.command("retry")
@click.argument("job", metavar="ID", shell_complete=failed_job)
@scheduler_option
@json_option
def command(job: str, scheduler: str | None, as_json: bool) -> None:
    """Run the failed or rejected job ID again, with a new budget of attempts.

    Its input must still exist. A job that succeeded is not run again: upload its input again.

    \b
    Example:  orchgpu retry j1f0c2a9b3d4e5f60718293a4b
    """
    job = whole_id(job, scheduler)
    function = retry_job(job, scheduler)
    if as_json:
        echo_json({"job_id": job, "function": function.name, "retried": True})
        return
    echo(f"{job} runs again; `orchgpu job {job}` shows its state")


def retry_job(job: str, scheduler: str | None) -> Function:
    """Run a failed job again; returns its function. Raises as `failed_function`."""
    known = known_job(job, scheduler)
    function, result = failed_function(known)
    with closing(JobCloud()) as cloud, dead_letters(cloud.services, function) as letters:
        letter = newest_of(letters.read(LETTERS_MAX), job, result.ended_at_s)
        if letter is not None:
            letters.send_back(letter)
        else:
            cloud.services.send(function.queue_url, letter_body(known, result))
    return function


def failed_function(known: Known) -> tuple[Function, Result]:
    """The function and result of a failed job.

    Raises CONFLICT while the job is not over, INVALID for an outcome that cannot be retried.
    """
    if not known.over:
        raise AppError(ErrorCode.CONFLICT, f"{known.job} is not over: it is {known.state}")
    if known.state not in ("FAILED", "REJECTED"):
        raise invalid(f"{known.job} is {known.state}, not a failed job; upload its input again")
    if known.function is None or known.result is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    return known.function, known.result


def letter_body(known: Known, result: Result) -> str:
    """The letter, made from the job's record: the original was sent back or expired."""
    source = input_from_payload(known.record.block) if known.record else None
    if source is None:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"neither a dead letter nor a record of {known.job} exists any more; upload its input"
            " again",
        )
    event = json.dumps(source.as_s3_event())
    return dead_letter_body(event, known.job, result.reason, result.detail, result.ended_at_s)

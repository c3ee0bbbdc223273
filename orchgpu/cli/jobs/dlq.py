"""`orchgpu dlq` and `orchgpu retry`: jobs that failed for good, run again."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.jobs.ids import whole_id, whole_ids
from orchgpu.cli.scheduler import scheduler_option
from orchgpu.cli.terminal.completing import failed_job
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import Commands, json_option, say, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.cli.terminal.times import shown_time, utc_option

if TYPE_CHECKING:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.known import Known
    from orchgpu.core.function import Function

#: Letters one command looks at; what lies behind them waits for the next.
LETTERS_MAX = 1000

COUNTS = (Column(name="FUNCTION", gives=1, least=16), Column(name="LETTERS"))
LETTERS = (
    Column(name="JOB", ids=True, gives=1),
    Column(name="REASON", gives=4, least=8),
    Column(name="SINCE", leaves=2),
    Column(name="INPUT", gives=2, least=14, keep="end", leaves=3),
    Column(name="DETAIL", gives=3, least=16, leaves=1),
)

_limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LETTERS_MAX,
    show_default=True,
    help="At most so many letters.",
)


@click.group(cls=Commands, short_help="Dead letters: jobs that failed for good.")
def dlq() -> None:
    """Jobs that failed for good leave a dead letter; sent back, it runs the job again.

    \b
    Example:  orchgpu dlq redrive text-recognition
    """


@dlq.command("ls", short_help="Dead letters, with why and when.")
@click.argument("function", required=False, shell_complete=function_name)
@_limit_option
@utc_option
@json_option
def ls(function: str | None, limit: int, as_json: bool) -> None:
    """Dead letters of FUNCTION, which stay where they are; without FUNCTION how many each has.

    \b
    Example:  orchgpu dlq ls text-recognition
    """
    from orchgpu.cli.cloud import JobCloud

    with closing(JobCloud()) as cloud:
        if function is None:
            _say_counts(cloud, as_json=as_json)
        else:
            _say_letters(cloud, cloud.function(function), limit, as_json=as_json)


def _say_counts(cloud: JobCloud, *, as_json: bool) -> None:
    counts = {f.name: cloud.messages(f.dead_letter_url) for f in cloud.functions()}
    if as_json:
        say_json({"functions": [{"function": n, "letters": c} for n, c in counts.items()]})
        return
    rows = [(name, str(count)) for name, count in counts.items()]
    say_table(COUNTS, rows, empty="no function is deployed here")


def _say_letters(cloud: JobCloud, function: Function, limit: int, *, as_json: bool) -> None:
    from orchgpu.cli.jobs.letters import dead_letters

    with dead_letters(cloud.sqs, function) as letters:
        found = letters.read(limit)
    if as_json:
        say_json({"function": function.name, "letters": [one.as_json() for one in found]})
        return
    rows = [
        (
            one.job or "-",
            one.reason or "-",
            shown_time(one.dead_at_s) if one.dead_at_s else "-",
            one.input or "no event",
            one.detail,
        )
        for one in found
    ]
    say_table(LETTERS, rows, empty="no dead letters")


@dlq.command(short_help="Send dead letters back: their jobs run again.")
@click.argument("function", shell_complete=function_name)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="ID",
    shell_complete=failed_job,
    help="Only this job's (repeatable).",
)
@_limit_option
@json_option
def redrive(function: str, jobs: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Send the dead letters of FUNCTION back to its queue.

    Each job gets a new budget of attempts and replaces nothing but its failure. What is no event
    stays where it is. Repeat the command after Ctrl-C.

    \b
    Example:  orchgpu dlq redrive text-recognition
    """
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.letters import dead_letters

    with closing(JobCloud()) as cloud, dead_letters(cloud.sqs, cloud.function(function)) as letters:
        read = letters.read(limit)
        wanted = whole_ids(jobs, [one.job for one in read if one.job is not None])
        found = [one for one in read if not jobs or one.job in wanted]
        able = [one for one in found if one.input is not None]
        for letter in able:
            letters.send_back(letter)
    missing = wanted - {one.job for one in found}
    if missing:
        names = ", ".join(sorted(missing))
        raise AppError(ErrorCode.NOT_FOUND, f"{function} has no dead letter of {names}")
    if as_json:
        said = [one.as_json() for one in able]
        say_json({"function": function, "redriven": said, "left": len(found) - len(able)})
        return
    left = len(found) - len(able)
    say(f"{len(able)} sent back" + (f", {left} left: no events" if left else ""))


@click.command(short_help="Run a failed job again.")
@click.argument("job", metavar="ID", shell_complete=failed_job)
@scheduler_option
@json_option
def retry(job: str, scheduler: str | None, as_json: bool) -> None:
    """Run the failed or rejected job ID again, with a new budget of attempts.

    Its input must still be there. A job that succeeded is not run again: upload its input anew.

    \b
    Example:  orchgpu retry j1f0c2a9b3d4e5f60718293a4b
    """
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.job import known_job
    from orchgpu.cli.jobs.letters import dead_letters, newest_of

    job = whole_id(job, scheduler)
    known = known_job(job, scheduler)
    function = _function_to_retry(known)
    ended_at_s = known.result.ended_at_s if known.result else 0.0
    with closing(JobCloud()) as cloud, dead_letters(cloud.sqs, function) as letters:
        letter = newest_of(letters.read(LETTERS_MAX), job, ended_at_s)
        if letter is not None:
            letters.send_back(letter)
        else:
            cloud.send(function.queue_url, _event_of(known))
    if as_json:
        say_json({"job_id": job, "function": function.name, "retried": True})
        return
    say(f"{job} runs again; `orchgpu job {job}` shows where it is")


def _function_to_retry(known: Known) -> Function:
    """Raises CONFLICT while it is not over, INVALID for an end that is not to be repeated."""
    if not known.over:
        message = f"{known.job} is not over: it is {known.state}"
        raise AppError(ErrorCode.CONFLICT, message)
    if known.state not in ("FAILED", "REJECTED"):
        raise invalid(f"{known.job} is {known.state}, which is no failure; upload its input anew")
    if known.function is None or known.result is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is not deployed any more")
    return known.function


def _event_of(known: Known) -> str:
    """The letter as it was, from the job's record: the letter itself was sent back or expired."""
    from orchgpu.core.ending import dead_letter_body
    from orchgpu.core.job import input_from_payload

    source = input_from_payload(known.record.block) if known.record else None
    result: Any = known.result
    if source is None:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"{known.job} has no dead letter any more and the scheduler has forgotten it; "
            "upload its input anew",
        )
    event = json.dumps(source.as_s3_event())
    return dead_letter_body(event, known.job, result.reason, result.detail, result.ended_at_s)

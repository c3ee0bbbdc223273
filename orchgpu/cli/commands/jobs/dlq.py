"""Dead letters: jobs that failed for good."""

from __future__ import annotations

from contextlib import closing

import click

from corekit.cli.groups import CommandGroup
from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.cli.times import shown_time, utc_option
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.completing import failed_job
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.lookup import resolved_among
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import DirectFunction, JobCloud
from orchgpu.jobs.letters import LETTERS_MAX, dead_letters

COUNTS = (Column(name="FUNCTION", shrink_order=1, width_min=16), Column(name="LETTERS"))
LETTERS = (
    Column(name="JOB", ids=True, shrink_order=1),
    Column(name="REASON", shrink_order=4, width_min=8),
    Column(name="SINCE", drop_order=2),
    Column(name="INPUT", shrink_order=2, width_min=14, keep="end", drop_order=3),
    Column(name="DETAIL", shrink_order=3, width_min=16, drop_order=1),
)

_limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=LETTERS_MAX,
    show_default=True,
    help="The maximum number of letters.",
)


@click.group("dlq", cls=CommandGroup)
def command() -> None:
    """A job that failed for good leaves a dead letter; a letter sent back runs the job again.

    A function without jobs (`job: none`) leaves one for each event that it could not run.

    \b
    Example:  orchgpu dlq redrive text-recognition
    """


@command.command("ls", short_help="Dead letters with reason and time.")
@click.argument("function", required=False, shell_complete=function_name)
@_limit_option
@utc_option
@json_option
def ls(function: str | None, limit: int, as_json: bool) -> None:
    """Dead letters of FUNCTION, which stay in their queue; without FUNCTION, their numbers.

    \b
    Example:  orchgpu dlq ls text-recognition
    """
    with closing(JobCloud()) as cloud:
        if function is None:
            _echo_counts(cloud, as_json=as_json)
        else:
            found = cloud.direct(function) or cloud.function(function)
            _echo_letters(cloud, found, limit, as_json=as_json)


def _echo_counts(cloud: JobCloud, *, as_json: bool) -> None:
    functions: list[Function | DirectFunction] = [*cloud.functions(), *cloud.direct_functions()]
    found = {function.name: cloud.letters(function) for function in functions}
    counts = dict(sorted(found.items()))
    if as_json:
        echo_json({"functions": [{"function": n, "letters": c} for n, c in counts.items()]})
        return
    rows = [(name, str(count)) for name, count in counts.items()]
    echo_table(COUNTS, rows, empty="no function is deployed here")


def _echo_letters(
    cloud: JobCloud, function: Function | DirectFunction, limit: int, *, as_json: bool
) -> None:
    with dead_letters(cloud.services, function) as letters:
        found = letters.read(limit)
    if as_json:
        echo_json({"function": function.name, "letters": [one.as_json() for one in found]})
        return
    rows = [
        (
            one.job or "-",
            one.reason or "-",
            shown_time(one.dead_at_s) if one.dead_at_s else "-",
            one.input or "not an event",
            one.detail,
        )
        for one in found
    ]
    echo_table(LETTERS, rows, empty="no dead letters")


@command.command(short_help="Send dead letters back: their jobs run again.")
@click.argument("function", shell_complete=function_name)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="ID",
    shell_complete=failed_job,
    help="Only the letter of this job (repeatable).",
)
@_limit_option
@json_option
def redrive(function: str, jobs: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Send the dead letters of FUNCTION back to its queue.

    Each job gets a new budget of attempts and replaces nothing but its failure; without jobs the
    function is started again. A letter without an event stays in its queue. Repeat the command
    after Ctrl-C.

    \b
    Example:  orchgpu dlq redrive text-recognition
    """
    with (
        closing(JobCloud()) as cloud,
        dead_letters(cloud.services, cloud.direct(function) or cloud.function(function)) as letters,
    ):
        read = letters.read(limit)
        wanted = resolved_among(jobs, [one.job for one in read if one.job is not None])
        found = [one for one in read if not jobs or one.job in wanted]
        able = [one for one in found if one.input is not None]
        for letter in able:
            letters.send_back(letter)
    missing = wanted - {one.job for one in found}
    if missing:
        names = ", ".join(sorted(missing))
        raise AppError(ErrorCode.NOT_FOUND, f"{function} has no dead letter of {names}")
    left = len(found) - len(able)
    if as_json:
        redriven = [one.as_json() for one in able]
        echo_json({"function": function, "redriven": redriven, "left": left})
        return
    echo(f"{len(able)} sent back" + (f", {left} left, which are not events" if left else ""))

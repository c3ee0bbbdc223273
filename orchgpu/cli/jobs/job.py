"""`orchgpu job ID`: one timeline over queue, scheduler, orchestrator, device and function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs.ids import whole_id
from orchgpu.cli.scheduler import scheduler_option, scheduler_or_none
from orchgpu.cli.terminal.completing import any_job
from orchgpu.cli.terminal.screen import (
    Word,
    continued,
    folded,
    json_option,
    say,
    say_json,
    say_table,
)
from orchgpu.cli.terminal.table import Column
from orchgpu.cli.terminal.text import printable
from orchgpu.cli.terminal.times import shown_time, utc_option

if TYPE_CHECKING:
    from orchgpu.cli.jobs.known import Known, Moment

#: Last lines of a failed job's output that are shown.
LOG_LINES = 10


MOMENTS = (
    Column(name="TIME", leaves=2),
    Column(name="SINCE"),
    Column(name="WHERE", leaves=3),
    Column(name="WHAT", gives=1, least=56, keep="both"),
    Column(name="MOMENT", leaves=1),
)


@click.command(short_help="One job: timeline, reason of waiting, result.")
@click.argument("job", metavar="ID", shell_complete=any_job)
@scheduler_option
@utc_option
@json_option
def job(job: str, scheduler: str | None, as_json: bool) -> None:
    """What happened to the job ID, when and where; why it waits; what it made or said.

    Of an id a prefix of four characters or more will do, here and in every other command, as long
    as one job's begins so.

    Without a scheduler, or while it does not answer, its result is told, which stays for ever; the
    scheduler forgets a job an hour after its end.

    \b
    Example:  orchgpu job j1f0c2a9b3d4e5f60718293a4b
    """
    from orchgpu.cli.jobs.known import latencies, moments

    known = known_job(whole_id(job, scheduler), scheduler, also_unheard=True)
    told = moments(known)
    say_unheard(known)
    if as_json:
        say_json({"job": _as_json(known, told)})
        return
    _say_head(known)
    start_s = told[0].at_s if told else 0.0
    rows = [
        (shown_time(m.at_s), f"{m.at_s - start_s:+.3f} s", m.where, m.what, m.name or "")
        for m in told
    ]
    say_table(MOMENTS, rows, empty="nothing is dated")
    told_s = latencies(told).items()
    say("  ".join(f"{n} {'-' if s is None else f'{s:.3f} s'}" for n, s in told_s))
    _say_end(known)


def known_job(job: str, scheduler: str | None, *, also_unheard: bool = False) -> Known:
    """All that is known of a job. Raises NOT_FOUND when nobody knows it.

    `also_unheard`: a scheduler that does not answer is told, and raised only when the cloud has no
    result either. What changes a job must not go by that.
    """
    from contextlib import closing
    from dataclasses import replace

    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.ended import UNHEARD
    from orchgpu.cli.jobs.known import look, scheduled
    from orchgpu.cli.scheduler import ask

    address, known, unheard = scheduler_or_none(scheduler), None, None
    try:
        known = None if address is None else ask(address, lambda client: scheduled(client, job))
    except AppError as error:
        if not also_unheard or error.code not in UNHEARD:
            raise
        unheard = error
    with closing(JobCloud()) as cloud:
        try:
            return replace(look(cloud, known, job), unheard=unheard)
        except AppError as error:
            if unheard is None or error.code is not ErrorCode.NOT_FOUND:
                raise
            raise unheard from error


def _as_json(known: Known, told: list[Moment]) -> dict[str, Any]:
    from dataclasses import asdict

    from corekit.decode import encode
    from orchgpu.cli.jobs.jobs import described
    from orchgpu.cli.jobs.known import latencies
    from orchgpu.cli.jobs.waiting import reason_of_wait

    scheduled = known.scheduled
    why = scheduled.waits if scheduled else None
    return {
        "job_id": known.job,
        "function": known.function.name if known.function else None,
        **(described(known.record) if known.record else {}),
        "state": known.state,
        **({"reason": reason_of_wait(why).value} if why is not None else {}),
        "waits": encode(why) if why is not None else None,
        "in_the_way": encode(scheduled.others) if scheduled else [],
        "lease_now": encode(scheduled.lease) if scheduled and scheduled.lease else None,
        "lease_ends_in_s": scheduled.ends_in_s if scheduled else None,
        "result": asdict(known.standing) if known.standing else None,
        "failed_attempts": {str(n): asdict(report) for n, report in known.reports.items()},
        "moments": [asdict(moment) for moment in told],
        **latencies(told),
        "scheduler_error": known.unheard.as_json() if known.unheard else None,
    }


def say_unheard(known: Known) -> None:
    """On standard error: the rest is what the cloud holds."""
    if known.unheard is not None:
        say(f"orchgpu: {known.unheard.message}; told is what the cloud holds", err=True)


def _say_head(known: Known) -> None:
    import time

    from orchgpu.cli.jobs.waiting import in_lines, told_pause, told_waiting

    function = known.function.name if known.function else "function unknown"
    used, most = known.attempt - known.first_attempt + 1, ""
    if known.function is not None and used > 0:
        most = f" ({used} of {known.function.attempts_max})"
    say(f"{known.job}  {function}  ", Word(known.state), f"  attempt {known.attempt}{most}")
    scheduled = known.scheduled
    if scheduled and scheduled.waits:
        say(folded(in_lines(told_waiting(scheduled.waits, scheduled.others))))
    elif scheduled and (pause := told_pause(scheduled.record, time.time())):
        say(folded(pause))
    if scheduled and scheduled.ends_in_s is not None:
        say(f"its lease ends in {scheduled.ends_in_s:.0f} s at the latest")
    say()


def _say_end(known: Known) -> None:
    from corekit.units import format_bytes

    result = known.standing
    if result is None:
        return
    for file in result.files:
        key = printable(str(file["key"]))
        say(f"s3://{file['bucket']}/{key}  {format_bytes(int(file['size']))}")
    for note in result.notes:
        say(folded(f"note: {printable(note)}"))
    if result.reason != "NONE":
        say(folded(f"{result.reason}: {printable(result.detail)}"))
        for line in result.log_tail.splitlines()[-LOG_LINES:]:
            say("| ", continued(line, 2))

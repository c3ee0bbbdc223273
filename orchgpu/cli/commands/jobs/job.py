"""One job or run: timeline, reason for waiting, result."""

from __future__ import annotations

import time
from contextlib import closing

import click

from corekit.cli.gantt import gantt_lines
from corekit.cli.screen import (
    Coloured,
    continued,
    echo,
    echo_json,
    echo_table,
    folded,
    json_option,
    output_glyphs,
    terminal_width,
)
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.cli.times import shown_time, utc_option
from corekit.decode import encode
from corekit.units import format_bytes
from orchgpu.cli.completing import any_job
from orchgpu.cli.jobs.lookup import echo_scheduler_error, known_job, whole_id
from orchgpu.cli.jobs.provenance import echo_provenance, write_ro_crate
from orchgpu.cli.jobs.report import gantt_rows
from orchgpu.cli.jobs.runs import GANTT_WIDTH, echo_run, records_at, run_json
from orchgpu.cli.options import scheduler_option
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import (
    Known,
    Moment,
    intervals_of,
    latencies,
    moments,
    place_text,
    wait_text,
)
from orchgpu.jobs.records import record_json
from orchgpu.jobs.runs import find_run, is_run
from orchgpu.jobs.summary import summary_of
from orchgpu.jobs.waiting import reason_of_wait

#: Last lines of a failed job's output that are shown.
LOG_LINES = 10

MOMENTS = (
    Column(name="TIME", drop_order=2),
    Column(name="SINCE"),
    Column(name="WHERE", drop_order=3),
    Column(name="WHAT", shrink_order=1, width_min=56, keep="both"),
    Column(name="MOMENT", drop_order=1),
)


@click.command("job")
@click.argument("job", metavar="ID", shell_complete=any_job)
@scheduler_option
@utc_option
@click.option(
    "--provenance",
    is_flag=True,
    help="What the result was made of: code, input, data, programs, models, devices, versions.",
)
@click.option(
    "--ro-crate",
    metavar="DIR",
    help="Write this as RO-Crate 1.1 (Process Run Crate) to DIR/ro-crate-metadata.json; - prints.",
)
@json_option
def command(
    job: str, scheduler: str | None, provenance: bool, ro_crate: str | None, as_json: bool
) -> None:
    """The timeline of the job ID, the reason why it waits, its outputs or its failure.

    Of a run of a workflow: its steps as a tree and over time, with state, seconds and device, also
    of what runs now, and their jobs.

    Below the moments its intervals are drawn over queue, scheduler, function and device; the
    drawing is as wide as the terminal, and in ASCII where the output has no block characters.

    Here and in every other command an id may be abbreviated to a unique prefix of four characters
    or more.

    Without a scheduler, or while it does not answer, only the job's result is shown, which is
    permanent; the scheduler keeps the record of a job for an hour after its end.

    --provenance and --ro-crate need a result, which every job has that is over.

    \b
    Example:  orchgpu job j1f0c2a9b3d4e5f60718293a4b
    """
    if is_run(job):
        with closing(JobCloud()) as cloud:
            seen = find_run(cloud, job)
        records = records_at(scheduler, seen)
        if as_json:
            echo_json({"run": run_json(seen, records)})
        else:
            echo_run(seen, records)
        return
    known = known_job(whole_id(job, scheduler), scheduler, despite_scheduler=True)
    if ro_crate is not None:
        write_ro_crate(known, ro_crate)
        return
    if provenance:
        echo_provenance(known, as_json=as_json)
        return
    found = moments(known)
    echo_scheduler_error(known)
    if as_json:
        echo_json({"job": job_json(known, found)})
        return
    echo_head(known)
    start_s = found[0].at_s if found else 0.0
    rows = [
        (shown_time(m.at_s), f"{m.at_s - start_s:+.3f} s", m.where, m.what, m.name or "")
        for m in found
    ]
    echo_table(MOMENTS, rows, empty="no moment has a time")
    echo_gantt(known)
    latency_s = latencies(found).items()
    echo("  ".join(f"{n} {'-' if s is None else f'{s:.3f} s'}" for n, s in latency_s))
    echo_end(known)


def job_json(known: Known, found: list[Moment]) -> dict[str, object]:
    scheduled = known.scheduled
    why = scheduled.waits if scheduled else None
    return {
        "job_id": known.job,
        "function": known.function.name if known.function else None,
        **(record_json(known.record) if known.record else {}),
        "state": known.state,
        **({"reason": reason_of_wait(why).value} if why is not None else {}),
        "waits": encode(why) if why is not None else None,
        "blocking_leases": encode(scheduled.others) if scheduled else [],
        "lease_now": encode(scheduled.lease) if scheduled and scheduled.lease else None,
        "lease_ends_in_s": scheduled.ends_in_s if scheduled else None,
        "result": encode(known.standing) if known.standing else None,
        "failed_attempts": {str(n): encode(report) for n, report in known.reports.items()},
        "moments": [encode(moment) for moment in found],
        "timeline": [encode(interval) for interval in intervals_of(known)],
        **latencies(found),
        "scheduler_error": known.scheduler_error.as_json() if known.scheduler_error else None,
    }


def echo_head(known: Known) -> None:
    """Print state and attempt, and the reason why the job waits."""
    function = printable(known.function_name)
    used, most = known.attempt - known.first_attempt + 1, ""
    if known.function is not None and used > 0:
        most = f" ({used} of {known.function.attempts_max})"
    echo(f"{known.job}  {function}  ", Coloured(known.state), f"  attempt {known.attempt}{most}")
    if why := wait_text(known, time.time()):
        echo(folded(why))
    if place := place_text(known):
        echo(folded(f"it runs in {place}" if not known.over else f"it ran in {place}"))
    promise = None if known.record is None else summary_of(known.record).promised
    if promise is not None:
        echo(promise.sentence)
    if known.scheduled and known.scheduled.ends_in_s is not None:
        echo(f"its lease ends in {known.scheduled.ends_in_s:.0f} s at the latest")
    echo()


def echo_gantt(known: Known) -> None:
    """Draw the job over queue, scheduler, function and device, one row per interval."""
    rows = gantt_rows(intervals_of(known), time.time())
    if lines := gantt_lines(rows, terminal_width() or GANTT_WIDTH, output_glyphs()):
        echo()
        for line in lines:
            echo(line)
        echo()


def echo_end(known: Known) -> None:
    result = known.standing
    if result is None:
        return
    for file in result.files:
        key = printable(str(file["key"]))
        echo(f"s3://{file['bucket']}/{key}  {format_bytes(int(file['size']))}")
    for note in result.notes:
        echo(folded(f"note: {printable(note)}"))
    if result.reason != "NONE":
        echo(folded(f"{result.reason}: {printable(result.detail)}"))
        for line in result.log_tail.splitlines()[-LOG_LINES:]:
            echo("| ", continued(line, 2))

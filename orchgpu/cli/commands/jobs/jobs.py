"""Jobs with their states and reasons, or the runs of a workflow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import click

from contract.states import JobState, Reason
from corekit.budget import Budget
from corekit.cli.screen import (
    Line,
    counted,
    echo,
    echo_json,
    echo_table,
    folded,
    json_option,
    table_lines,
)
from corekit.cli.settings import Choice
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.cli.times import shown_time, utc_option
from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError, invalid
from corekit.units import parse_duration_s
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol.answers import LeasesAnswer
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.lookup import ended_jobs, shown_input, with_files
from orchgpu.cli.jobs.report import job_columns
from orchgpu.cli.jobs.runs import run_json, summary_row
from orchgpu.cli.jobs.watching import ReadJobs, display, watch_jobs
from orchgpu.cli.options import scheduler_http_option, scheduler_option
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.live.feed import JobsFeed
from orchgpu.jobs.records import SCANNED_MAX, JobFilter, newest_records, record_json
from orchgpu.jobs.runs import newest_runs
from orchgpu.jobs.scheduler import NO_ANSWER, ask, events_of, scheduler_address
from orchgpu.jobs.summary import attempt_text, shown_reason, waits_ahead
from orchgpu.jobs.waiting import (
    blocking_leases,
    pause_sentence,
    reason_of_wait,
    wait_sentence,
    waits,
    without_leases,
)

#: Waiting jobs whose reason is requested; for each one the scheduler evaluates every device.
EXPLAINED_MAX = 50
#: The same while watching: they are requested again and again.
WATCHED_EXPLAINED_MAX = 10

#: A job as JSON: its record, and the reason why it waits.
Entry: TypeAlias = dict[str, object]

JOBS = job_columns(Column(name="SINCE", drop_order=5))


@click.command("jobs")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="The maximum number of jobs.",
)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="NAME",
    shell_complete=function_name,
    help="Only jobs of this function (repeatable).",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=Choice([state.value for state in JobState], case_sensitive=False),
    metavar="STATE",
    help="Only jobs in this state (repeatable); a job not received yet has none. States:"
    f" {', '.join(JobState)}.",
)
@click.option(
    "--workflow", metavar="NAME", shell_complete=function_name, help="The runs of this workflow."
)
@click.option("--since", metavar="DURATION", help="Only jobs changed since, as in 90s or 2h.")
@click.option(
    "--watch",
    is_flag=True,
    help="Stay and show every change: in place on a terminal, elsewhere a line per change.",
)
@scheduler_option
@scheduler_http_option
@utc_option
@json_option
def command(
    limit: int,
    functions: tuple[str, ...],
    states: tuple[str, ...],
    workflow: str | None,
    since: str | None,
    watch: bool,
    scheduler: str | None,
    scheduler_http: str | None,
    as_json: bool,
) -> int:
    """Jobs with their states, newest first; for waiting jobs the reason and the expected end.

    A job that waits for a device is shown with its position in the queue, the shortage, the
    blocking leases and their ends; another one with the pause before its next attempt or with its
    starting function. Messages that were not received yet are counted. While the scheduler does
    not answer, jobs that ended are listed from their results, and the command ends with 8.

    With --workflow its runs are listed from their objects, newest first: the steps that ended, and
    the one that runs.

    A filter searches the newest 10000 job records. With --watch and --json every changed job is an
    object on a line of its own; Ctrl-C ends the command.

    \b
    Example:  orchgpu jobs --watch --function text-recognition
    """
    if workflow is not None:
        _echo_runs(workflow, limit, as_json=as_json)
        return 0
    age_s = None if since is None else parse_duration_s(since)

    def condition() -> JobFilter:  # the time of --since passes while the command watches
        since_s = 0.0 if age_s is None else time.time() - age_s
        return JobFilter(frozenset(functions), frozenset(states), since_s)

    if watch:
        address, http = scheduler_address(scheduler), events_of(scheduler, scheduler_http)
        feed = JobsFeed(address, http, SCANNED_MAX if condition() else limit)
        _watch(feed, limit, condition, as_json=as_json)
        return 0
    wanted = condition()
    scheduler_error: AppError | None = None
    try:
        address = scheduler_address(scheduler)
        found = ask(address, lambda client: _jobs(client, limit, wanted))
    except AppError as error:
        scheduler_error, found = error, _ended(error, limit, wanted)
    with closing(JobCloud()) as cloud, suppress(AppError):
        found = with_files(cloud, found)
    notes = notes_of_functions()
    not_received = {
        name: count
        for name, count in notes.not_received.items()
        if not functions or name in functions
    }
    if as_json:
        failed = {} if scheduler_error is None else {"error": scheduler_error.as_json()}
        jobs = [{**entry, "note": notes.of(entry)} for entry in found]
        limits = {name: notes.limits.get(name) for name in not_received}
        counts = {"not_received": not_received, "jobs_at_once": limits}
        echo_json({"jobs": jobs, **counts, **failed})
    else:
        _echo_jobs(found, not_received, notes, filtered=bool(wanted))
    if scheduler_error is None:
        return 0
    only = "only jobs that ended are listed, from their results"
    echo(f"orchgpu: {scheduler_error.message}; {only}", err=True)
    return EXIT_STATUS[scheduler_error.code]


RUNS = (
    Column(name="RUN", ids=True, shrink_order=2),
    Column(name="STATE"),
    Column(name="STEPS", shrink_order=3, width_min=8),
    Column(name="REASON", shrink_order=4, width_min=8, drop_order=2),
    Column(name="INPUT", shrink_order=1, width_min=14, keep="end", drop_order=1),
)


def _echo_runs(name: str, limit: int, *, as_json: bool) -> None:
    """The runs of a workflow. Raises NOT_FOUND, or INVALID for a function."""
    with closing(JobCloud()) as cloud:
        deployed = cloud.function_or_workflow(name)
        if not isinstance(deployed, Workflow):
            raise invalid(f"{name!r} is a function, not a workflow: write --function {name}")
        runs = newest_runs(cloud, deployed, limit, whole=as_json)
    if as_json:
        echo_json({"runs": [run_json(seen) for seen in runs]})
        return
    echo_table(RUNS, [summary_row(seen) for seen in runs], empty=f"{name} has no runs")


def _ended(scheduler_error: AppError, limit: int, wanted: JobFilter) -> list[Entry]:
    """Jobs by their results; raises the scheduler's error when there are none."""
    if scheduler_error.code not in NO_ANSWER:
        raise scheduler_error
    try:
        with closing(JobCloud()) as cloud:
            found = ended_jobs(cloud, limit, wanted)
    except AppError:
        raise scheduler_error from None
    if not found:
        raise scheduler_error
    return found


def _echo_jobs(
    found: Sequence[Entry], not_received: dict[str, int], notes: Notes, *, filtered: bool
) -> None:
    empty = "no such jobs" if filtered else "no jobs"
    for line in _table(found, f"{empty} in the last hour"):
        echo(*line)
    for line in wait_lines(found):
        echo(folded(printable(line)))
    for function, count in not_received.items():
        limit = notes.limits.get(function)
        why = f" ({Reason.CONCURRENCY}: an orchestrator takes {limit} of its jobs at once)"
        echo(f"{function}: {count} more in its queue, not received yet{why if limit else ''}")
    for function in dict.fromkeys(str(entry["function"]) for entry in found if notes.of(entry)):
        echo(f"{printable(function)}: {notes.images[function]}")


def wait_lines(found: Sequence[Entry]) -> Iterator[str]:
    """One line for each reason of waits, in the words of its first job."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in found:
        if entry["why"]:
            of = str(entry["state"]), shown_reason(entry["reason"])
            groups.setdefault(of, []).append(entry)
    for (state, reason), jobs in groups.items():
        words = " ".join(filter(None, (counted(len(jobs), "job"), state, reason)))
        which = f"{jobs[0]['job_id']}: " if len(jobs) > 1 else ""
        yield f"{words}: {which}{without_leases(str(jobs[0]['why']))}"
    if any(without_leases(why := str(entry["why"])) != why for entry in found):
        yield "`orchgpu job ID` has the leases that a job waits for"


def _promised_word(entry: Mapping[str, object]) -> str:
    """The state of the promise of a job; nothing for one without."""
    promised = entry.get("promised")
    return str(promised["word"]) if isinstance(promised, Mapping) else ""


def _table(found: Sequence[Mapping[str, object]], empty: str) -> list[Line]:
    rows = [
        (
            str(entry["job_id"]),
            str(entry["function"] or "-"),
            str(entry["state"]),
            shown_reason(entry["reason"]) or _promised_word(entry),
            attempt_text(entry["attempt"], entry.get("place")),
            shown_time(float(str(entry["updated_s"]))),
            shown_input(entry),
        )
        for entry in found
    ]
    return table_lines(JOBS, rows, empty)


def _watch(
    feed: JobsFeed, limit: int, condition: Callable[[], JobFilter], *, as_json: bool
) -> None:
    empty = "no such jobs in the last hour"
    with ExitStack() as stack:
        to = display(lambda jobs: _table(jobs, empty), stack, as_json=as_json)
        asyncio.run(watch_jobs(feed, jobs_watched(limit, condition), to))


def jobs_watched(limit: int, condition: Callable[[], JobFilter]) -> ReadJobs:
    """The choice of jobs, and the reasons of their waits, at each change."""

    async def read(client: SchedulerClient, records: Sequence[Record]) -> list[Entry]:
        wanted = condition()
        shown = list(islice(filter(wanted.allows, records), limit))
        return await _entries(client, shown, WATCHED_EXPLAINED_MAX)

    return read


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes from the records of deployed functions."""

    images: dict[str, str] = field(default_factory=dict)  #: by function: about its image
    not_received: dict[str, int] = field(default_factory=dict)  #: messages, by function
    limits: dict[str, int] = field(default_factory=dict)  #: jobs in hand at once, by function

    def of(self, entry: Entry) -> str | None:
        return self.images.get(str(entry["function"]))


def notes_of_functions() -> Notes:
    """The notes; empty when the cloud does not answer."""
    images: dict[str, str] = {}
    counts: dict[str, int] = {}
    limits: dict[str, int] = {}
    with closing(JobCloud()) as cloud, suppress(AppError):
        deployed = cloud.functions()
        if cloud.local:  # it runs the script of an image function outside the image
            images = {
                one.name: f"image {one.image} is not used here: the script runs on this machine's"
                " files"
                for one in deployed
                if one.image is not None
            }
        for one in deployed:
            counts[one.name] = cloud.not_received(one)
            limit = one.in_hand_max(Budget().jobs_without_device_max)
            if limit is not None:
                limits[one.name] = limit
    return Notes(images, {name: count for name, count in counts.items() if count}, limits)


async def _jobs(client: SchedulerClient, limit: int, wanted: JobFilter) -> list[Entry]:
    records = await newest_records(client, limit, wanted.allows, scanned_max=SCANNED_MAX)
    return await _entries(client, records, EXPLAINED_MAX)


async def _entries(
    client: SchedulerClient, records: Sequence[Record], explained_max: int
) -> list[Entry]:
    waiting = [one for one in records if one.step is Step.WAITING or waits_ahead(one)]
    waiting = waiting[-explained_max:]
    live = await client.live_leases() if waiting else LeasesAnswer(leases=(), ends_in_s={})
    explained = {record.holder: await _explained(client, record, live) for record in waiting}
    now_s = time.time()
    return [
        {
            **record_json(record),
            "why": pause_sentence(record, now_s),
            "waits": None,
            "blocking_leases": [],
            **explained.get(record.holder, {}),
        }
        for record in records
    ]


async def _explained(client: SchedulerClient, record: Record, live: LeasesAnswer) -> Entry:
    why = await waits(client, record)
    if why is None:
        return {}
    others = blocking_leases(why, live)
    return {
        "reason": reason_of_wait(why).value,
        "why": wait_sentence(why, others),
        "waits": encode(why),
        "blocking_leases": encode(others),
    }

"""Start the jobs of uploads whose event was lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

import click

from corekit.aio.environment import budget_from_environment
from corekit.budget import Budget
from corekit.cli.progress import StatusLine
from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.cli.times import shown_time, utc_option
from corekit.errors import invalid
from corekit.ids import JobId
from corekit.units import parse_duration_s
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.options import scheduler_option
from orchgpu.core.function import Function
from orchgpu.core.reconcile import Interval, Upload
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.provider import open_ports
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S, scheduler_address
from orchgpu.replica.reconciling import Search

LOST = (
    Column(name="JOB", ids=True, shrink_order=1),
    Column(name="UPLOADED", drop_order=1),
    Column(name="INPUT", shrink_order=2, width_min=14, keep="end"),
)


@click.command("reconcile")
@click.argument("name", metavar="NAME", shell_complete=function_name)
@click.option("--dry-run", is_flag=True, help="List the uploads; start no job.")
@click.option(
    "--since",
    metavar="DURATION",
    help="Go back so far, as in 90s or 2h, also beyond the deploy. [default: to the deploy]",
)
@scheduler_option
@utc_option
@json_option
def command(
    name: str, dry_run: bool, since: str | None, scheduler: str | None, as_json: bool
) -> None:
    """Start the jobs of NAME whose event was lost: uploads with neither a result nor a record.

    Orchestrators do the same by themselves, from the deploy on. A job that exists is never started
    twice: an event that is only late changes nothing. Uploads of the last minute are left out.

    \b
    Example:  orchgpu reconcile text-recognition --dry-run
    """
    with closing(JobCloud()) as cloud:
        function = cloud.function(name)
    budget = budget_from_environment()
    interval = _interval(function, since, budget, time.time())
    work = _reconcile(function, interval, scheduler_address(scheduler), budget, dry_run, as_json)
    listed, lost = asyncio.run(work)
    if as_json:
        uploads = [{"job_id": u.job, "key": u.key, "uploaded": u.modified_s} for u in lost]
        echo_json({"function": name, "listed": listed, "sent": not dry_run, "lost": uploads})
        return
    rows = [(u.job, shown_time(u.modified_s), f"{function.input_bucket}/{u.key}") for u in lost]
    echo_table(LOST, rows, empty=f"every upload has its job ({listed} listed)")
    if lost and not dry_run:
        echo(f"{len(lost)} started")


def _interval(function: Function, since: str | None, budget: Budget, now_s: float) -> Interval:
    if since is not None:
        since_s = now_s - parse_duration_s(since)
    elif function.deployed_at_s > 0:
        since_s = function.deployed_at_s
    else:
        raise invalid(
            f"the record of {function.name} does not have the time of its deploy: give --since, or"
            " deploy it again with a change"
        )
    return Interval(since_s=since_s, until_s=now_s - budget.reconcile_age_s)


async def _reconcile(
    function: Function,
    interval: Interval,
    address: str,
    budget: Budget,
    dry_run: bool,
    as_json: bool,
) -> tuple[int, list[Upload]]:
    """The number of versions listed, and the lost uploads. Each is sent once it is found."""
    listed = 0
    lost: list[Upload] = []
    line = StatusLine(quiet=as_json)
    async with (
        SchedulerClient(address, budget=budget, deadline_s=ANSWER_WITHIN_S) as client,
        open_ports() as ports,
    ):
        await client.wait_connected(ANSWER_WITHIN_S)

        async def has_record(job: str) -> bool:
            return (await client.ask(ops.RecordOf(holder=JobId(job)))).record is not None

        search = Search(ports.store, has_record)
        try:
            async for page in search.pages(function, interval):
                listed += len(page.versions)
                for upload in page.uploads:
                    line.show(f"{listed} listed, {len(lost)} without a job")
                    if not await search.is_lost(function, upload):
                        continue
                    if not dry_run:
                        await ports.queue.send(function.queue_url, [upload.body])
                    lost.append(upload)
        finally:
            line.clear()
    return listed, lost

"""`ssgm` commands that only look: what there is, what is lent, who waits, and why."""

from __future__ import annotations

import contextlib
import json

import click

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import stream, tables
from gpu_scheduler.client.commands.allocation import with_length
from gpu_scheduler.client.commands.forms import json_schema
from gpu_scheduler.client.commands.options import Line, connected, requesting, run
from gpu_scheduler.client.commands.terminal import say_json
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.protocol.answers import ExplainAnswer


@click.command(epilog="Example: ssgm hosts --json")
@connected
def hosts(line: Line) -> None:
    """Hosts: their state, what they lend, when they were last heard."""
    found = line.ask(lambda client: client.inventory())
    line.show(found, lambda: tables.hosts(found))


@click.command(epilog="Example: ssgm devices")
@connected
def devices(line: Line) -> None:
    """Devices: free shares, health, versions, load."""
    found = line.ask(lambda client: client.inventory())
    line.show(found, lambda: tables.devices(found))


@click.command(epilog="Example: ssgm leases --json")
@connected
def leases(line: Line) -> None:
    """All leases that are not over, oldest first."""
    found = line.ask(lambda client: client.live_leases())
    line.show(found, lambda: tables.leases(found))


@click.command(epilog="Example: ssgm queue --limit 20")
@click.option("--limit", default=100, show_default=True, metavar="N", help="The first N of them.")
@connected
def queue(line: Line, limit: int) -> None:
    """Waiting requests in the order of service.

    Parked ones, whose owner is gone, come last.
    """
    found = line.ask(lambda client: client.queue(limit))
    line.show(found, lambda: tables.queue(found))


@click.command(epilog="Example: ssgm explain ssgm-1f0c9a3d5e7b2468")
@click.argument("name", metavar="ATTEMPT|JOB")
@connected
def explain(line: Line, name: str) -> None:
    """Why a request waits or was refused.

    ATTEMPT as `ssgm queue` names it, or a job's id.
    """

    async def ask(client: SchedulerClient) -> ExplainAnswer:
        try:
            return await client.explain(attempt=name)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return await client.explain(holder=name)

    found = line.ask(ask)
    line.show(found, lambda: tables.explained(found))


@click.command("dry-run", epilog="Example: ssgm dry-run -g 2 -m 30GiB --kinds cuda")
@requesting
@connected
def dry_run(line: Line, request: Request) -> None:
    """What alloc would be answered now.

    And why, device by device. Takes nothing; ends with 0 whatever the answer is.
    """
    request = with_length(request)
    found = line.ask(
        lambda client: client.explain(
            request=request, hold=LeaseLifetime.DEADLINE, lease_s=request.lease_s
        )
    )
    line.show(found, lambda: tables.explained(found))


@click.command(epilog="Example: ssgm events --http 127.0.0.1:4780 --json")
@click.option(
    "--http",
    envvar="SSGM_HTTP",
    metavar="HOST:PORT",
    help="HTTP door of ssgmd: everything.  [variable: SSGM_HTTP]",
)
@click.option("--count", default=0, metavar="N", help="End after this many; 0 = until Ctrl-C.")
@connected
def events(line: Line, http: str | None, count: int) -> None:
    """What changes, as it happens.

    One line or JSON object each. Without --http only leases; with it also the queue, hosts,
    devices and parameters.
    """
    run(_follow(line, http, count))


async def _follow(line: Line, http: str | None, count: int) -> None:
    if http is None:
        source = stream.of_leases(line)
    else:
        source = stream.of_everything(http, line.access, line.budget.client_gone_s)
    seen = 0
    async with contextlib.aclosing(source) as told:
        async for event in told:
            if line.as_json:
                say_json(event, one_line=True)
            else:
                click.echo(stream.in_words(event))
            seen += event["event"] not in ("connected", "disconnected")
            if seen == count > 0:
                return


@click.command(epilog="Example: ssgm schema > ssgm.schema.json")
def schema() -> None:
    """JSON Schema of what --json prints.

    By command below `commands`, of a refusal in `error`. `events` prints the objects that
    GET /v1/watch of the HTTP door describes.
    """
    click.echo(json.dumps(json_schema(), indent=2))


COMMANDS = (hosts, devices, leases, queue, explain, dry_run, events, schema)

"""`ssgm` commands that read: hosts, devices, leases, queue, explanations, events."""

from __future__ import annotations

import contextlib
import json

import click

from corekit.cli.screen import echo, echo_json, echo_raw
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import stream, tables
from gpu_scheduler.client.commands.allocation import with_length
from gpu_scheduler.client.commands.forms import json_schema
from gpu_scheduler.client.commands.options import CommandContext, connected, requesting, run
from gpu_scheduler.client.status import system_status
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import ExplainAnswer


@click.command(epilog="Example: ssgm status --scheduler 10.0.1.10:4700,10.0.2.10:4700")
@connected
def status(context: CommandContext) -> int:
    """The schedulers: the leader, its standbys and their lag.

    Asks each address of --scheduler for itself; ends with 8 when none of them leads.
    """
    within_s = context.timeout_s or context.budget.failover_silence_s
    found = run(system_status(context.scheduler, context.access, within_s))
    context.show(found, lambda: tables.echo_schedulers(found))
    return 0 if found.leader is not None else EXIT_STATUS[ErrorCode.UNAVAILABLE]


@click.command(epilog="Example: ssgm hosts --json")
@connected
def hosts(context: CommandContext) -> None:
    """Hosts: state, devices, leases, time since they were last seen."""
    found = context.ask(lambda client: client.inventory())
    context.show(found, lambda: tables.echo_hosts(found))


@click.command(epilog="Example: ssgm devices")
@connected
def devices(context: CommandContext) -> None:
    """Devices: free shares, health, versions, load."""
    found = context.ask(lambda client: client.inventory())
    context.show(found, lambda: tables.echo_devices(found))


@click.command(epilog="Example: ssgm leases --json")
@connected
def leases(context: CommandContext) -> None:
    """All live leases, oldest first."""
    found = context.ask(lambda client: client.live_leases())
    context.show(found, lambda: tables.echo_leases(found))


@click.command(epilog="Example: ssgm queue --limit 20")
@click.option("--limit", default=100, show_default=True, metavar="N", help="The first N requests.")
@connected
def queue(context: CommandContext, limit: int) -> None:
    """Waiting requests in the order of service.

    Ownerless requests come last.
    """
    found = context.ask(lambda client: client.ask(ops.Queue(limit=limit)))
    context.show(found, lambda: tables.echo_queue(found))


@click.command(epilog="Example: ssgm workloads --json")
@connected
def workloads(context: CommandContext) -> None:
    """Learned times of workloads, for each device model.

    Median and 95 % quantile of the execution and of the loading time; starts that loaded (cold),
    and that found it loaded (warm); the warm workers there are now. A workload that never loads
    anything has none of these. Expected times are never enforced.
    """
    found = context.ask(lambda client: client.workloads())
    context.show(found, lambda: tables.echo_workloads(found))


@click.command(epilog="Example: ssgm demand --json")
@connected
def demand(context: CommandContext) -> None:
    """Waiting requests, summed up by what they ask for; an operator may see them.

    `orchgpu fleet` starts hosts for them. The expected time of one is learned, or a default.
    """
    found = context.ask(lambda client: client.ask(ops.Demand()))
    context.show(found, lambda: tables.echo_demand(found))


@click.command(epilog="Example: ssgm explain ssgm-1f0c9a3d5e7b2468")
@click.argument("name", metavar="ATTEMPT|JOB")
@connected
def explain(context: CommandContext, name: str) -> None:
    """The reason why a request waits or was refused.

    The argument is an attempt as `ssgm queue` lists it, or a job's id.
    """

    async def ask(client: SchedulerClient) -> ExplainAnswer:
        try:
            return await client.explain(attempt=name)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return await client.explain(holder=name)

    found = context.ask(ask)
    context.show(found, lambda: tables.echo_explained(found))


@click.command("dry-run", epilog="Example: ssgm dry-run -g 2 -m 30GiB --kinds cuda")
@requesting
@connected
def dry_run(context: CommandContext, request: Request) -> None:
    """The current answer to a request, device by device.

    Takes no lease; exits with 0, even when alloc would be refused.
    """
    request = with_length(request)
    found = context.ask(
        lambda client: client.explain(
            request=request, hold=LeaseLifetime.DEADLINE, lease_s=request.lease_s
        )
    )
    context.show(found, lambda: tables.echo_explained(found))


@click.command(epilog="Example: ssgm events --http 127.0.0.1:4780 --json")
@click.option(
    "--http",
    envvar="SSGM_HTTP",
    metavar="HOST:PORT[,…]",
    help="HTTP endpoint of ssgmd, and of its standbys, for all events.  [variable: SSGM_HTTP]",
)
@click.option(
    "--count", default=0, metavar="N", help="Stop after this many events; 0 = at Ctrl-C only."
)
@connected
def events(context: CommandContext, http: str | None, count: int) -> None:
    """Changes as they happen, one line or one JSON object each.

    Without --http, only changes of leases; with it, also changes of job records, the queue, hosts,
    devices and parameters.
    """
    run(_follow(context, http, count))


async def _follow(context: CommandContext, http: str | None, count: int) -> None:
    if http is None:
        source = stream.of_leases(context)
    else:
        source = stream.of_everything(http, context.access, context.budget.client_gone_s)
    seen = 0
    async with contextlib.aclosing(source) as found:
        async for event in found:
            if context.as_json:
                echo_json(event, indent=None)
            else:
                echo(stream.in_words(event))
            seen += event["event"] not in ("connected", "disconnected")
            if seen == count > 0:
                return


@click.command(epilog="Example: ssgm schema > ssgm.schema.json")
def schema() -> None:
    """JSON Schema of the output of --json.

    The form of each command is below `commands`, that of a refusal in `error`. `events` prints the
    objects of GET /v1/watch of the HTTP endpoint.
    """
    echo_raw(json.dumps(json_schema(), indent=2))


COMMANDS = (
    status,
    hosts,
    devices,
    leases,
    queue,
    demand,
    workloads,
    explain,
    dry_run,
    events,
    schema,
)

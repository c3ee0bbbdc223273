"""`ssgm`: the scheduler from the command line, and its classic form (`classic.py`)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click

from corekit.aio.environment import budget_from_environment
from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from corekit.units import parse_duration_s, parse_memory_mib
from gpu_scheduler.client import classic, tables
from gpu_scheduler.client.allocation import LEASE_S, Ask, allocate
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.words import Connected, Disconnected, PushWord
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.protocol.answers import AttemptOutcome, Outcome

T = TypeVar("T")
Command = Callable[..., Any]


def _connection(command: Command) -> Command:
    """The options that every command has."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON object.")(command)
    return click.option(
        "--scheduler", envvar="SSGM_SCHEDULER", required=True, metavar="HOST:PORT",
        help="Socket door of ssgmd (or the variable SSGM_SCHEDULER).",
    )(command)  # fmt: skip


def _request_options(command: Command) -> Command:
    for option in (
        click.option("-g", "--count", default=1, show_default=True, help="Devices."),
        click.option("-m", "--memory", default="0", help="Per device: MiB, or as 4GiB."),
        click.option("--kind", "kinds", multiple=True, type=click.Choice(list(DeviceKind))),
        click.option("--model", "models", multiple=True, help="In order of preference."),
        click.option("--exclusive", is_flag=True, help="The whole device."),
        click.option("--compute", default=0, help="Guaranteed percent of each device."),
        click.option("--placement", type=click.Choice(list(Placement)), default=Placement.PACK),
        click.option("--priority", default=0, help="-100 to 100; higher goes first."),
        click.option("--tenant", default="default", show_default=True),
        click.option("--advisory", is_flag=True, help="Devices without a gateway will do."),
    ):
        command = option(command)
    return command


def _request(options: dict[str, Any], max_wait_s: float | None = None) -> Request:
    return Request(
        count=options["count"], memory_mib=parse_memory_mib(options["memory"]),
        kinds=tuple(DeviceKind(kind) for kind in options["kinds"]), models=options["models"],
        sharing=Sharing.EXCLUSIVE if options["exclusive"] else Sharing.SHARED,
        compute_guarantee_pct=options["compute"], placement=Placement(options["placement"]),
        priority=options["priority"], tenant=options["tenant"], advisory=options["advisory"],
        max_wait_s=max_wait_s,
    )  # fmt: skip


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except AppError as error:
        click.echo(f"ssgm: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


def _ask(address: str, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with SchedulerClient(address, budget=budget_from_environment()) as client:
            return await question(client)

    return _run(asked())


def _show(value: Any, as_json: bool, text: Callable[[], str]) -> None:
    click.echo(json.dumps(encode(value), indent=2) if as_json else text())


@click.group()
def commands() -> None:
    """Lend, give back, look: the scheduler from the command line.

    The classic form is understood too: ssgm -S HOST -P PORT -alloc -g N [-m MIB] and
    ssgm -S HOST -P PORT -dealloc -j ID.
    """


@commands.command()
@_connection
@_request_options
@click.option("--wait", is_flag=True, help="Wait for a device instead of being refused as busy.")
@click.option("--wait-max", default=None, help="Wait at most this long, as 90 or 5m.")
@click.option("--lease", "lease_length", default=str(LEASE_S), help="Length, as 3600 or 1h.")
@click.option("--attempt", default=None, help="Key of the request; repeating it is safe.")
def alloc(scheduler: str, as_json: bool, **options: Any) -> None:
    """Take a lease that ends by itself after --lease."""

    async def work() -> AttemptOutcome:
        wait_max = options["wait_max"]
        max_wait_s = None if wait_max is None else parse_duration_s(wait_max)
        ask = Ask(
            request=_request(options, max_wait_s), attempt=options["attempt"],
            wait=options["wait"] or wait_max is not None,
            lease_s=parse_duration_s(options["lease_length"]),
        )  # fmt: skip
        return await allocate(scheduler, budget_from_environment(), ask)

    outcome = _run(work())
    _show(outcome, as_json, lambda: tables.outcome(outcome))
    if outcome.granted is None:
        impossible = outcome.outcome is Outcome.IMPOSSIBLE
        sys.exit(EXIT_STATUS[ErrorCode.IMPOSSIBLE if impossible else ErrorCode.EXHAUSTED])


@commands.command()
@click.argument("lease")
@_connection
def dealloc(lease: str, scheduler: str, as_json: bool) -> None:
    """End a lease; one that is over already is no error."""
    _ask(scheduler, lambda client: client.release(lease))
    _show({"released": lease}, as_json, lambda: f"{lease} is released")


@commands.command()
@click.argument("lease")
@_connection
def renew(lease: str, scheduler: str, as_json: bool) -> None:
    """Keep a lease that is RESERVED."""
    _ask(scheduler, lambda client: client.renew(lease))
    _show({"renewed": lease}, as_json, lambda: f"{lease} is renewed")


@commands.command()
@_connection
def leases(scheduler: str, as_json: bool) -> None:
    """All leases that are not over."""
    found = _ask(scheduler, lambda client: client.leases())
    _show({"leases": found}, as_json, lambda: tables.leases(found))


@commands.command()
@_connection
def hosts(scheduler: str, as_json: bool) -> None:
    """Hosts and devices, and what is free of them."""
    found = _ask(scheduler, lambda client: client.inventory())
    _show(found, as_json, lambda: tables.hosts(found))


@commands.command()
@_connection
def queue(scheduler: str, as_json: bool) -> None:
    """Waiting requests in the order of service."""
    found = _ask(scheduler, lambda client: client.queue())
    _show({"queue": found}, as_json, lambda: tables.queue(found))


@commands.command()
@click.argument("attempt")
@click.option("--holder", is_flag=True, help="The argument is a job id, not an attempt id.")
@_connection
def explain(attempt: str, holder: bool, scheduler: str, as_json: bool) -> None:
    """Why a request waits or was refused."""
    named = (None, attempt) if holder else (attempt, None)
    found = _ask(scheduler, lambda client: client.explain(attempt=named[0], holder=named[1]))
    _show(found, as_json, lambda: tables.explained(found))


@commands.command("dry-run")
@_connection
@_request_options
def dry_run(scheduler: str, as_json: bool, **options: Any) -> None:
    """What a request would be answered now; takes nothing."""
    found = _ask(scheduler, lambda client: client.explain(request=_request(options)))
    _show(found, as_json, lambda: tables.explained(found))


@commands.command()
@click.argument("host")
@_connection
def drain(host: str, scheduler: str, as_json: bool) -> None:
    """No new leases on HOST; those that live go on."""
    _ask(scheduler, lambda client: client.drain(host))
    _show({"drained": host}, as_json, lambda: f"{host} is drained")


@commands.command()
@click.argument("host")
@_connection
def undrain(host: str, scheduler: str, as_json: bool) -> None:
    """New leases on HOST again."""
    _ask(scheduler, lambda client: client.undrain(host))
    _show({"undrained": host}, as_json, lambda: f"{host} takes leases again")


@commands.command()
@click.argument("host")
@_connection
def forget(host: str, scheduler: str, as_json: bool) -> None:
    """HOST is gone for good: its devices leave the inventory."""
    _ask(scheduler, lambda client: client.forget(host))
    _show({"forgotten": host}, as_json, lambda: f"{host} is forgotten")


@commands.command()
@_connection
@click.option("--count", default=0, help="End after this many; 0 = until interrupted.")
def events(scheduler: str, as_json: bool, count: int) -> None:
    """Every change of every lease as it happens."""

    async def work() -> None:
        words: asyncio.Queue[PushWord] = asyncio.Queue()
        budget, seen = budget_from_environment(), 0
        async with SchedulerClient(scheduler, budget=budget, on_push=words.put_nowait) as client:
            await client.wait_connected(budget.client_gone_s)
            while not count or seen < count:
                word = await words.get()
                if isinstance(word, Connected):
                    await client.watch()
                seen += not isinstance(word, (Connected, Disconnected))
                value = {"event": type(word).__name__, **encode(word)}
                click.echo(json.dumps(value) if as_json else tables.event(word))

    _run(work())


def main() -> None:
    """Entry point: classic or not."""
    if classic.is_classic(sys.argv[1:]):
        sys.exit(classic.run(sys.argv[1:]))
    commands()

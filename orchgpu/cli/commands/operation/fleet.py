"""Hosts that come and go with the demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json, run_program, write_ready
from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.decode import encode
from corekit.errors import AppError, invalid
from corekit.units import format_duration
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import Access, find_access
from orchgpu.cli.options import access_options, ready_file_option, scheduler_option
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import Decision, Host, Memory, Offers, PoolMemory, View
from orchgpu.fleet.core.pools import learned_start_s
from orchgpu.fleet.offers import load_offers
from orchgpu.fleet.ports.registry import KNOWN, open_port
from orchgpu.fleet.program import Fleet, MemoryFile, view_of
from orchgpu.fleet.texts import action_text, host_states, notice_text, state_text
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S, scheduler_address
from orchgpu.local.fleet import local_fleet

POOLS = (
    Column(name="POOL", shrink_order=1, width_min=8),
    Column(name="HOSTS"),
    Column(name="MIN-MAX"),
    Column(name="STATES", shrink_order=2, width_min=12),
    Column(name="USD/H"),
    Column(name="START", drop_order=1),
)
HOSTS = (
    Column(name="HOST", shrink_order=1, width_min=8),
    Column(name="POOL"),
    Column(name="STATE"),
    Column(name="LEASES"),
    Column(name="AGE"),
)


@dataclass(frozen=True)
class _Named:
    """The files and the provider of a fleet, as a command names them."""

    offers: Path
    provider: str
    memory: Path | None


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--memory",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="File that keeps learned start times and what is spent. "
            "[default: the local system's]",
        ),
        click.option(
            "--provider",
            metavar="NAME[:ARGUMENT]",
            help=f"Where hosts come from: {KNOWN}. [default: the local system's]",
        ),
        click.option(
            "--offers",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The hosts that can be had, and limits (docs/how-to/fleet.md). "
            "[default: the local system's]",
        ),
    ):
        command = option(command)
    return command


def _named(offers: Path | None, provider: str | None, memory: Path | None) -> _Named:
    local = local_fleet()
    offers = offers or (local.offers if local else None)
    provider = provider or (local.provider if local else None)
    if offers is None or provider is None:
        raise invalid(
            "give --offers and --provider; or start a local fleet: orchgpu up --fleet 0-3"
        )
    if memory is None and local is not None and offers == local.offers:
        memory = local.memory
    return _Named(offers, provider, memory)


@click.group("fleet")
def command() -> None:
    """Hosts that come and go with the demand.

    \b
    Example:  orchgpu fleet status
    """


@command.command(short_help="Start and end hosts by demand, until SIGTERM.")
@_options
@scheduler_option
@click.option(
    "--stop-hosts", is_flag=True, help="End all hosts at the end, as the local system does."
)
@access_options
@ready_file_option
def run(
    offers: Path | None,
    provider: str | None,
    memory: Path | None,
    scheduler: str | None,
    stop_hosts: bool,
    key_file: Path | None,
    ca: Path | None,
    ready_file: Path | None,
) -> None:
    """Start hosts while requests wait and end idle ones, until SIGTERM; hosts stay then.

    Needs an operator's key where the scheduler has keys. Several may run beside each other.

    \b
    Example:  orchgpu fleet run --offers offers.yaml --provider processes:/var/lib/orchgpu/hosts
    """
    named, address = _named(offers, provider, memory), scheduler_address(scheduler)
    MemoryFile(named.memory).check(load_offers(named.offers)[0].rules)
    log_as_json()
    access = find_access(key_file=key_file, ca=ca)
    run_program("orchgpu fleet", _run(named, address, access, ready_file, stop_hosts=stop_hosts))


async def _run(
    named: _Named, address: str, access: Access, ready_file: Path | None, *, stop_hosts: bool
) -> None:
    budget = budget_from_environment()
    async with AsyncExitStack() as stack:
        port = open_port(named.provider)
        stack.push_async_callback(port.close)
        client = SchedulerClient(address, budget=budget, access=access)
        await stack.enter_async_context(client)
        fleet = Fleet(client, port, named.offers, MemoryFile(named.memory), time.time)
        if stop_hosts:
            stack.push_async_callback(fleet.stop_hosts, budget.drain_s)
        write_ready(ready_file, {})
        await fleet.run(budget.fleet_look_s)


@command.command()
@_options
@scheduler_option
@json_option
def status(
    offers: Path | None,
    provider: str | None,
    memory: Path | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Pools and hosts, what they cost, and what an operator should know.

    \b
    Example:  orchgpu fleet status --json
    """
    named = _named(offers, provider, memory)
    known, view, decision = _looked(named, scheduler)
    if as_json:
        echo_json(_as_json(known, view, decision))
        return
    kept = decision.memory
    starts_s = {
        one.name: learned_start_s(kept.pools.get(one.name, PoolMemory()), one)
        for one in known.offers
    }
    rows = [
        (
            one.name,
            f"{sum(host.pool == one.name for host in view.hosts)}/{view.sizes.get(one.name, 0)}",
            f"{one.min}-{one.max}",
            ", ".join(f"{n} {s}" for s, n in sorted(host_states(view, one.name).items())) or "-",
            f"{one.usd_per_h:.2f}",
            format_duration(starts_s[one.name]),
        )
        for one in known.offers
    ]
    echo_table(POOLS, rows, empty="the file has no offer")
    hosts = [_host_row(host, kept, starts_s.get(host.pool)) for host in view.hosts]
    echo_table(HOSTS, hosts, empty="no host is there")
    waiting = sum(one.count for one in view.demand)
    echo(f"{waiting} requests wait; {kept.spent_usd:.2f} USD spent in {kept.month}")
    for notice in decision.notices:
        echo(f"note: {notice_text(notice)}")


def _host_row(host: Host, memory: Memory, start_s: float | None) -> tuple[str, ...]:
    """A host; of one that starts also when it is expected."""
    age_s = max(0.0, time.time() - memory.hosts[host.id].since_s)
    expected = ""
    if host.state is None and start_s is not None:
        expected = f" (expected in {format_duration(max(0.0, start_s - age_s))})"
    state = state_text(host) + expected
    return host.id, host.pool, state, str(host.leases), format_duration(age_s)


@command.command()
@_options
@scheduler_option
@json_option
def plan(
    offers: Path | None,
    provider: str | None,
    memory: Path | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Show the actions of a fleet for this moment, and why; do nothing.

    \b
    Example:  orchgpu fleet plan --offers offers.yaml --provider processes:/var/lib/orchgpu/hosts
    """
    known, view, decision = _looked(_named(offers, provider, memory), scheduler)
    if as_json:
        echo_json(_as_json(known, view, decision))
        return
    for action in decision.actions:
        echo(action_text(action))
    if not decision.actions:
        echo("nothing to do")
    for notice in decision.notices:
        echo(f"note: {notice_text(notice)}")


def _looked(named: _Named, scheduler: str | None) -> tuple[Offers, View, Decision]:
    """The offers, the view and the decision of this moment, by the kept memory."""
    offers, warnings = load_offers(named.offers)
    for warning in warnings:
        echo(warning, err=True)
    file = MemoryFile(named.memory)
    try:
        file.check(offers.rules)
    except AppError as error:  # nothing is spent by a look
        echo(f"warning: {error.message}", err=True)
    memory = file.read(offers.rules)
    address = scheduler_address(scheduler)

    async def looked() -> View:
        budget = budget_from_environment()
        port = open_port(named.provider)
        async with SchedulerClient(address, budget=budget, deadline_s=ANSWER_WITHIN_S) as client:
            await client.wait_connected(ANSWER_WITHIN_S)
            try:
                return await view_of(client, port, offers, memory)
            finally:
                await port.close()

    view = asyncio.run(looked())
    return offers, view, decide(view, offers, memory, time.time())


def _as_json(offers: Offers, view: View, decision: Decision) -> dict[str, object]:
    pools = [
        {
            **encode(one),
            "size": view.sizes.get(one.name, 0),
            "states": dict(host_states(view, one.name)),
        }
        for one in offers.offers
    ]
    hosts = [{**encode(host), "shown": state_text(host)} for host in view.hosts]
    actions = [{**encode(one), "text": action_text(one)} for one in decision.actions]
    notices = [{**encode(one), "text": notice_text(one)} for one in decision.notices]
    kept = decision.memory
    return {
        "pools": pools,
        "hosts": hosts,
        "waiting": sum(one.count for one in view.demand),
        "actions": actions,
        "notices": notices,
        "month": kept.month,
        "spent_usd": kept.spent_usd,
    }

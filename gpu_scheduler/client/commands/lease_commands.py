"""`ssgm` commands that take, change and release leases."""

from __future__ import annotations

import click

from corekit.cli.progress import StatusLine
from corekit.cli.screen import echo
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.ids import LeaseId, SessionId
from corekit.units import format_duration, format_percent, parse_duration_s
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import tables
from gpu_scheduler.client.commands.allocation import Ask, allocate, check_lease, session_of
from gpu_scheduler.client.commands.forms import Released, Renewed
from gpu_scheduler.client.commands.options import CommandContext, connected, requesting, run
from gpu_scheduler.model import Door, Request
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AttemptAnswer, LeaseAnswer, Outcome
from gpu_scheduler.request_options import REQUEST_OPTIONS, one_of
from gpu_scheduler.verdicts import Explanation

_STATUS = {
    Outcome.GRANTED: 0,
    Outcome.BUSY: EXIT_STATUS[ErrorCode.EXHAUSTED],
    Outcome.IMPOSSIBLE: EXIT_STATUS[ErrorCode.IMPOSSIBLE],
}


@click.command(epilog="Example: ssgm alloc -g 2 -m 4GiB --kinds cuda --lease-length 2h --wait")
@requesting
@click.option("--wait", is_flag=True, help="Wait in the queue instead of failing as busy.")
@click.option(
    "--door",
    default="gateway",
    show_default=True,
    metavar="gateway|port",
    help="Access to the lease: the host's gateway, with a proof, or its own port, which is weaker.",
)
@click.option(
    "--sources",
    default="",
    metavar="NETWORKS",
    help="With --door port: allowed networks, separated by commas. [default: this host]",
)
@click.option(
    "--attempt", help="Key of the request: repeating the request returns its current state."
)
@connected
def alloc(
    context: CommandContext,
    request: Request,
    wait: bool,
    door: str,
    sources: str,
    attempt: str | None,
) -> int:
    """Take a lease of a limited length.

    The lease lasts --lease-length, by default one hour. Without --wait (or --max-wait) the answer
    is immediate: granted, busy (exit 6) or impossible (exit 7). Interrupting a waiting alloc
    withdraws its request.
    """
    ask = Ask(
        request=request,
        wait=wait or request.max_wait_s is not None,
        attempt=attempt,
        door=_door(door),
        sources=tuple(one.strip() for one in sources.split(",")) if sources else (),
    )
    outcome = run(_allocate(context, ask))
    context.show(outcome, lambda: tables.echo_outcome(outcome))
    return _STATUS[outcome.outcome]


def _door(text: str) -> Door:
    try:
        door: Door = one_of(Door)(text)
        return door
    except AppError as error:
        raise invalid(f"--door: {error.message}") from None


async def _allocate(context: CommandContext, ask: Ask) -> AttemptAnswer:
    line, told = StatusLine(), False

    def on_wait(why: Explanation, waited_s: float) -> None:
        nonlocal told
        line.show(f"waiting {format_duration(waited_s)}: {why.sentence}")
        if not (line.shown or told):  # without a terminal only the first reason
            echo(f"ssgm: waiting: {why.sentence}", err=True)
        told = True

    try:
        return await allocate(context.client, context.budget, ask, on_wait)
    finally:
        if told:
            line.clear()


_NOT_LIVE = "was not live: it has ended, or never existed"


@click.command(epilog="Example: ssgm dealloc lease-4f0c2a")
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@connected
def dealloc(context: CommandContext, leases: tuple[str, ...]) -> None:
    """Release leases.

    A lease that has ended already is not an error.
    """

    for lease in leases:
        check_lease(lease)

    async def release_all(client: SchedulerClient) -> set[str]:
        live = {one.id for one in await client.leases()}
        for lease in leases:
            await client.release(lease)
        return {lease for lease in leases if lease in live}

    released = context.ask(release_all)
    context.show(
        Released(released=leases),
        lambda: echo(
            "\n".join(
                f"{lease} is released" if lease in released else f"{lease} {_NOT_LIVE}"
                for lease in leases
            )
        ),
    )


@click.command(epilog="Example: ssgm renew lease-4f0c2a --lease-length 30m")
@click.argument("lease")
@click.option(
    "--lease-length",
    "length",
    metavar="TIME",
    default="1h",
    show_default=True,
    help="New remaining duration.",
)
@connected
def renew(context: CommandContext, lease: str, length: str) -> None:
    """Extend or shorten a lease of ssgm.

    Refused while its device is reserved for the head of the queue (exit 4), and beyond the maximum
    length of a lease (parameter lease_s_max). A job's lease lasts as long as its session.
    """
    check_lease(lease)
    lease_s = parse_duration_s(length)
    context.ask(lambda client: client.renew(lease, lease_s))
    context.show(
        Renewed(renewed=lease, lease_s=lease_s),
        lambda: echo(f"{lease} ends in {format_duration(lease_s)}"),
    )


@click.command(epilog="Example: ssgm resize lease-4f0c2a 40")
@click.argument("lease")
@click.argument("compute_limit", metavar="PERCENT")
@connected
def resize(context: CommandContext, lease: str, compute_limit: str) -> None:
    """Change the compute limit of a lease.

    Applies to each device of a shared lease; the guarantee does not change.
    """
    check_lease(lease)
    limit_pct = _percent(compute_limit)
    op = ops.Resize(lease=LeaseId(lease), compute_limit_pct=limit_pct)
    found = context.ask(lambda client: client.ask(op))
    text = f"{lease} may use up to {format_percent(limit_pct)} of each device"
    context.show(found, lambda: echo(text))


def _percent(text: str) -> float:
    try:
        limit_pct: float = _LIMIT.parse(text)
    except AppError as error:
        raise invalid(f"PERCENT: {error.message}") from None
    return limit_pct


@click.command(epilog="Example: ssgm transfer lease-4f0c2a session-nightly")
@click.argument("lease")
@click.argument("session")
@connected
def transfer(context: CommandContext, lease: str, session: str) -> None:
    """Transfer a lease to another SESSION.

    That session receives the lease's state changes from then on. A lease of ssgm may be transferred
    by ssgm, any other by its own session, or by any caller once that session is gone. A job's
    lease follows its record: refused (exit 4).
    """
    check_lease(lease)
    found = run(_transfer(context, lease, session))
    context.show(found, lambda: echo(f"{lease} belongs to {session}"))


async def _transfer(context: CommandContext, lease: str, session: str) -> LeaseAnswer:
    """A session of ssgm outlives its command: its lease is transferred in its name."""
    op = ops.Transfer(lease=LeaseId(lease), to=SessionId(session))
    async with context.client() as client:
        try:
            return await client.ask(op)
        except AppError as error:
            attempts = [one.attempt for one in await client.leases() if one.id == lease]
            if error.code is not ErrorCode.CONFLICT or not attempts:
                raise
    async with context.client(session_of(attempts[0])) as taker:
        return await taker.ask(op)


_LIMIT = next(word for word in REQUEST_OPTIONS if word.key == "compute_limit")

COMMANDS = (alloc, dealloc, renew, resize, transfer)

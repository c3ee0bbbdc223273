"""`ssgm` commands that take leases, change them and give them back."""

from __future__ import annotations

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.units import format_duration, parse_duration_s
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import tables
from gpu_scheduler.client.commands.allocation import Ask, allocate, check_lease, session_of
from gpu_scheduler.client.commands.forms import Released, Renewed
from gpu_scheduler.client.commands.options import Line, connected, requesting, run
from gpu_scheduler.client.commands.terminal import Progress
from gpu_scheduler.model import Door, Explanation, Lease, Request
from gpu_scheduler.protocol.answers import AttemptAnswer, LeaseAnswer, Outcome
from gpu_scheduler.request_options import REQUEST_OPTIONS, one_of

_STATUS = {
    Outcome.GRANTED: 0,
    Outcome.BUSY: EXIT_STATUS[ErrorCode.EXHAUSTED],
    Outcome.IMPOSSIBLE: EXIT_STATUS[ErrorCode.IMPOSSIBLE],
}


@click.command(epilog="Example: ssgm alloc -g 2 -m 4GiB --kinds cuda --lease-length 2h --wait")
@requesting
@click.option("--wait", is_flag=True, help="Wait in the queue instead of being refused as busy.")
@click.option(
    "--door",
    default="gateway",
    show_default=True,
    metavar="gateway|port",
    help="The host's gateway, by proof, or a port of its own: weaker.",
)
@click.option(
    "--sources",
    default="",
    metavar="NETWORKS",
    help="With --door port: who may connect, with commas. [default: we]",
)
@click.option("--attempt", help="Key of the request: repeating it answers what stands.")
@connected
def alloc(
    line: Line, request: Request, wait: bool, door: str, sources: str, attempt: str | None
) -> int:
    """Take a lease, which ends by itself.

    It lasts --lease-length, one hour unless told otherwise. Without --wait (or --max-wait) the
    answer comes at once: granted, busy (exit 6) or impossible (exit 7). Interrupting a waiting
    alloc withdraws its request.
    """
    ask = Ask(
        request=request,
        wait=wait or request.max_wait_s is not None,
        attempt=attempt,
        door=_door(door),
        sources=tuple(one.strip() for one in sources.split(",")) if sources else (),
    )
    outcome = run(_allocate(line, ask))
    line.show(outcome, lambda: tables.outcome(outcome))
    return _STATUS[outcome.outcome]


def _door(text: str) -> Door:
    try:
        door: Door = one_of(Door)(text)
        return door
    except AppError as error:
        raise invalid(f"--door: {error.message}") from None


async def _allocate(line: Line, ask: Ask) -> AttemptAnswer:
    progress = Progress()

    def on_wait(why: Explanation, waited_s: float) -> None:
        progress.say(why.sentence, format_duration(waited_s))

    try:
        return await allocate(line.client, line.budget, ask, on_wait)
    finally:
        progress.clear()


_NOT_LIVE = "was not live: it is over already, or there never was such a lease"


@click.command(epilog="Example: ssgm dealloc lease-4f0c2a")
@click.argument("leases", metavar="LEASE...", nargs=-1, required=True)
@connected
def dealloc(line: Line, leases: tuple[str, ...]) -> None:
    """Give leases back.

    One that is over already is no error.
    """

    for lease in leases:
        check_lease(lease)

    async def release_all(client: SchedulerClient) -> set[str]:
        live = {one.id for one in await client.leases()}
        for lease in leases:
            await client.release(lease)
        return {lease for lease in leases if lease in live}

    released = line.ask(release_all)
    line.show(
        Released(released=leases),
        lambda: "\n".join(
            f"{lease} is released" if lease in released else f"{lease} {_NOT_LIVE}"
            for lease in leases
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
    help="It ends so long from now, sooner or later than before.",
)
@connected
def renew(line: Line, lease: str, length: str) -> None:
    """Let a lease of ssgm go on, or end sooner.

    Refused while its device is kept for a request that waited long (exit 4), and beyond what a
    lease may last in all (parameter lease_s_max). A job's lease lasts as long as its session.
    """
    check_lease(lease)
    lease_s = parse_duration_s(length)
    line.ask(lambda client: client.renew(lease, lease_s))
    line.show(
        Renewed(renewed=lease, lease_s=lease_s),
        lambda: f"{lease} ends in {format_duration(lease_s)}",
    )


@click.command(epilog="Example: ssgm resize lease-4f0c2a 40")
@click.argument("lease")
@click.argument("compute_limit", metavar="PERCENT")
@connected
def resize(line: Line, lease: str, compute_limit: str) -> None:
    """Change a lease's elastic limit.

    Of compute, for each device of a shared lease; what it was promised stays.
    """
    check_lease(lease)
    limit_pct = _percent(compute_limit)
    found = line.ask(lambda client: client.resize(lease, limit_pct))
    line.show(
        LeaseAnswer(lease=found), lambda: f"{lease} may use up to {limit_pct} % of each device"
    )


def _percent(text: str) -> int:
    try:
        limit_pct: int = _LIMIT.parse(text)
    except AppError as error:
        raise invalid(f"PERCENT: {error.message}") from None
    return limit_pct


@click.command(epilog="Example: ssgm transfer lease-4f0c2a session-nightly")
@click.argument("lease")
@click.argument("session")
@connected
def transfer(line: Line, lease: str, session: str) -> None:
    """Make a lease another session's.

    That session is told of its states from then on. A lease that ssgm took may be transferred
    by ssgm, any other by its own session, or by anybody once that is gone. A job's lease
    follows its record: refused (exit 4).
    """
    check_lease(lease)
    found = run(_transfer(line, lease, session))
    line.show(LeaseAnswer(lease=found), lambda: f"{lease} belongs to {session}")


async def _transfer(line: Line, lease: str, session: str) -> Lease:
    """Our own sessions live on for a while: what one of them took is given away in its name."""
    async with line.client() as client:
        try:
            return await client.transfer(lease, session)
        except AppError as error:
            attempts = [one.attempt for one in await client.leases() if one.id == lease]
            if error.code is not ErrorCode.CONFLICT or not attempts:
                raise
    async with line.client(session_of(attempts[0])) as taker:
        return await taker.transfer(lease, session)


_LIMIT = next(word for word in REQUEST_OPTIONS if word.key == "compute_limit")

COMMANDS = (alloc, dealloc, renew, resize, transfer)

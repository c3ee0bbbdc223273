"""The classic form of `ssgm`: `-S host -P port -alloc -g N [-m MiB]` and `-dealloc -j ID`.

Exactly one line on stdout (`gpu_scheduler.protocol.ssgm_text`), whatever happens; the reason of a
refusal goes to stderr. Exit 0 when the scheduler granted, refused or took back: SSGM_ERROR says
which (0, 1 bad or impossible request, 2 busy). An error ends with its code's own status: 2 for
wrong arguments, 8 when nobody answers.
Classic leases are weaker than a session's: they last `LEASE_S` or until `-dealloc`, and the host's
door is a port; without `-m` the devices are exclusive.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from corekit.aio.environment import budget_from_environment
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from gpu_scheduler.client.allocation import Ask, allocate
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol import ssgm_text
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.protocol.ssgm_text import SsgmError

_REFUSALS = {Outcome.BUSY: SsgmError.BUSY, Outcome.IMPOSSIBLE: SsgmError.BAD_REQUEST}


def is_classic(arguments: Sequence[str]) -> bool:
    """Does this command line use the classic form?"""
    return any(argument in ("-alloc", "-dealloc", "-S", "-P") for argument in arguments)


class _Parser(argparse.ArgumentParser):
    """Errors are ours: the line must be printed all the same."""

    def error(self, message: str) -> NoReturn:
        raise invalid(message)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="ssgm", add_help=False, allow_abbrev=False)
    parser.add_argument("-S", dest="host", required=True)
    parser.add_argument("-P", dest="port", type=int, required=True)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-alloc", action="store_true")
    action.add_argument("-dealloc", action="store_true")
    parser.add_argument("-g", dest="count", type=int, default=1)
    parser.add_argument("-m", dest="memory_mib", type=int, default=None)
    parser.add_argument("-j", dest="job", default=None)
    return parser.parse_args(arguments)


def run(arguments: Sequence[str]) -> int:
    """Print the line; the exit status."""
    try:
        parsed = _parse(arguments)
        line, why = asyncio.run(_dealloc(parsed) if parsed.dealloc else _alloc(parsed))
        status = 0
    except AppError as error:
        busy = error.code is ErrorCode.EXHAUSTED
        line = ssgm_text.refused(SsgmError.BUSY if busy else SsgmError.BAD_REQUEST)
        why, status = f"ssgm: {error.message}", EXIT_STATUS[error.code]
    click.echo(line)
    if why:
        click.echo(why, file=sys.stderr)
    return status


async def _alloc(parsed: argparse.Namespace) -> tuple[str, str]:
    shared = parsed.memory_mib is not None
    request = Request(
        count=parsed.count, memory_mib=parsed.memory_mib or 0, advisory=True,
        sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
    )  # fmt: skip
    address = f"{parsed.host}:{parsed.port}"
    outcome = await allocate(address, budget_from_environment(), Ask(request=request))
    if outcome.granted is not None:
        return ssgm_text.granted(outcome.granted), ""
    assert outcome.explanation is not None
    return ssgm_text.refused(_REFUSALS[outcome.outcome]), outcome.explanation.sentence


async def _dealloc(parsed: argparse.Namespace) -> tuple[str, str]:
    if not parsed.job:
        raise invalid("-dealloc needs -j ID, the JOB of the reply to -alloc")
    address = f"{parsed.host}:{parsed.port}"
    async with SchedulerClient(address, budget=budget_from_environment()) as client:
        await client.release(parsed.job)
    return ssgm_text.refused(SsgmError.GRANTED), ""

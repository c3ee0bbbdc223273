"""The classic form of `ssgm`: `-S host -P port -alloc -g N [words]` and `-dealloc -j ID`.

Exactly one line on stdout (`gpu_scheduler.protocol.ssgm_text`), whatever happens; the reason of a
refusal goes to stderr. Exit 0 when the scheduler granted, refused or took back: SSGM_ERROR says
which (0, 1 bad or impossible request, 2 busy). An error ends with its code's own status: 2 for
wrong arguments, 8 when nobody answers.
Every word of a request is understood, with one dash or two. Classic leases are weaker than a
session's: they last `--lease-length` or until `-dealloc`, and each has a port of its own on its
hosts, open to the machines of `--sources` (networks, with commas; this machine when not given)
without any proof. Without `-m` and `--sharing` the devices are exclusive.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from gpu_scheduler.client.access import find_access
from gpu_scheduler.client.commands.allocation import Ask, allocate, check_lease
from gpu_scheduler.client.commands.options import Line, run
from gpu_scheduler.client.commands.terminal import INTERRUPTED_STATUS
from gpu_scheduler.model import Door, Sharing
from gpu_scheduler.protocol import ssgm_text
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.protocol.ssgm_text import SsgmError
from gpu_scheduler.request_options import REQUEST_OPTIONS, RequestOption, parse_option, request_of

_REFUSALS = {Outcome.BUSY: SsgmError.BUSY, Outcome.IMPOSSIBLE: SsgmError.BAD_REQUEST}


def is_classic(arguments: Sequence[str]) -> bool:
    """Does this command line use the classic form?"""
    return any(argument in ("-alloc", "-dealloc", "-S", "-P") for argument in arguments)


def main(arguments: Sequence[str]) -> int:
    """Print the line; the exit status."""
    try:
        parsed = _parse(arguments)
        line, why = run(_dealloc(parsed) if parsed.dealloc else _alloc(parsed))
        status = 0
    except AppError as error:
        busy = error.code is ErrorCode.EXHAUSTED
        line = ssgm_text.refused(SsgmError.BUSY if busy else SsgmError.BAD_REQUEST)
        why, status = f"ssgm: {error.message}", EXIT_STATUS[error.code]
    except KeyboardInterrupt:
        line, why = ssgm_text.refused(SsgmError.BUSY), "ssgm: interrupted"
        status = INTERRUPTED_STATUS
    click.echo(line)
    if why:
        click.echo(why, file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Errors are ours: the line must be printed all the same."""

    def error(self, message: str) -> NoReturn:
        raise invalid(message)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="ssgm", add_help=False, allow_abbrev=False)
    parser.add_argument("-S", dest="host", required=True)
    parser.add_argument("-P", dest="port", required=True)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-alloc", action="store_true")
    action.add_argument("-dealloc", action="store_true")
    parser.add_argument("-j", dest="job", default=None)
    parser.add_argument("-wait", "--wait", action="store_true")
    parser.add_argument("-sources", "--sources", type=_listed, default=[])
    for word in REQUEST_OPTIONS:
        _add(parser, word)
    return parser.parse_args(arguments)


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _add(parser: argparse.ArgumentParser, word: RequestOption) -> None:
    flags = [flag for flag in (word.short, word.flag[1:], word.flag) if flag]
    if word.switch:
        parser.add_argument(*flags, dest=word.key, action="store_true", default=None)
    else:
        parser.add_argument(*flags, dest=word.key, type=functools.partial(parse_option, word))


def _line(parsed: argparse.Namespace) -> Line:
    return Line(scheduler=f"{parsed.host}:{parsed.port}", access=find_access())


async def _alloc(parsed: argparse.Namespace) -> tuple[str, str]:
    values: dict[str, Any] = {word.key: getattr(parsed, word.key) for word in REQUEST_OPTIONS}
    if values["memory"] is None and values["sharing"] is None:
        values["sharing"] = Sharing.EXCLUSIVE
    request = request_of({**values, "advisory": True})
    line = _line(parsed)
    ask = Ask(
        request=request,
        wait=parsed.wait or request.max_wait_s is not None,
        door=Door.PORT,
        sources=tuple(parsed.sources),
    )
    outcome = await allocate(line.client, line.budget, ask)
    if outcome.granted is not None:
        return ssgm_text.granted(outcome.granted), ""
    assert outcome.explanation is not None
    return ssgm_text.refused(_REFUSALS[outcome.outcome]), outcome.explanation.sentence


async def _dealloc(parsed: argparse.Namespace) -> tuple[str, str]:
    if not parsed.job:
        raise invalid("-dealloc needs -j ID, the JOB of the reply to -alloc")
    check_lease(parsed.job)
    async with _line(parsed).client() as client:
        await client.release(parsed.job)
    return ssgm_text.refused(SsgmError.GRANTED), ""

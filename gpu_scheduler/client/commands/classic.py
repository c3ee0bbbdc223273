"""The classic form of `ssgm`: `-S host -P port -alloc -g N [options]` and `-dealloc -j ID`.

The output is always exactly one line (`gpu_scheduler.protocol.ssgm_text`); the reason of a refusal
goes to standard error. The exit status is 0 when the scheduler granted, refused or released;
SSGM_ERROR distinguishes them (0 granted or released, 1 bad or impossible request, 2 busy). An error
ends with its code's own status: 2 for wrong arguments, 8 when the scheduler does not answer. Every
request option is accepted, with one dash or two. Classic leases are weaker than a session's: they
last `--lease-length` or until `-dealloc`, and each has a port of its own on its hosts, open to the
machines of `--sources` (networks, separated by commas; by default this host) without any proof.
Without `-m` and `--sharing` the devices are exclusive.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import NoReturn

from corekit.cli.program import INTERRUPTED_STATUS
from corekit.cli.screen import echo, echo_raw
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from gpu_scheduler.client.access import find_access
from gpu_scheduler.client.commands.allocation import Ask, allocate, check_lease
from gpu_scheduler.client.commands.options import CommandContext, run
from gpu_scheduler.model import Door, Sharing
from gpu_scheduler.protocol import ssgm_text
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.protocol.ssgm_text import SsgmError
from gpu_scheduler.request_options import REQUEST_OPTIONS, RequestOption, parse_option, request_of

_REFUSALS = {Outcome.BUSY: SsgmError.BUSY, Outcome.IMPOSSIBLE: SsgmError.BAD_REQUEST}


def is_classic(arguments: Sequence[str]) -> bool:
    """True when this command line uses the classic form."""
    return any(argument in ("-alloc", "-dealloc", "-S", "-P") for argument in arguments)


def main(arguments: Sequence[str]) -> int:
    """Print the line; returns the exit status."""
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
    echo_raw(line)
    if why:
        echo(why, err=True)
    return status


class _Parser(argparse.ArgumentParser):
    """Raises errors instead of exiting, because the line must be printed in any case."""

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


def _context(parsed: argparse.Namespace) -> CommandContext:
    return CommandContext(scheduler=f"{parsed.host}:{parsed.port}", access=find_access())


async def _alloc(parsed: argparse.Namespace) -> tuple[str, str]:
    values: dict[str, object] = {word.key: getattr(parsed, word.key) for word in REQUEST_OPTIONS}
    if values["memory"] is None and values["sharing"] is None:
        values["sharing"] = Sharing.EXCLUSIVE
    request = request_of({**values, "advisory": True})
    context = _context(parsed)
    ask = Ask(
        request=request,
        wait=parsed.wait or request.max_wait_s is not None,
        door=Door.PORT,
        sources=tuple(parsed.sources),
    )
    outcome = await allocate(context.client, context.budget, ask)
    if outcome.granted is not None:
        return ssgm_text.granted(outcome.granted, request.middleware), ""
    assert outcome.explanation is not None
    return ssgm_text.refused(_REFUSALS[outcome.outcome]), outcome.explanation.sentence


async def _dealloc(parsed: argparse.Namespace) -> tuple[str, str]:
    if not parsed.job:
        raise invalid("-dealloc needs -j ID, the JOB of the answer to -alloc")
    check_lease(parsed.job)
    async with _context(parsed).client() as client:
        await client.release(parsed.job)
    return ssgm_text.refused(SsgmError.GRANTED), ""

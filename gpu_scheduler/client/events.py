"""Event stream of the scheduler's HTTP endpoint, as typed values, across disconnects.

async with aclosing(watched("10.0.1.10:4780", access)) as events:
    async for one in events:
        match one.event:
            case Started() | Reset():  # read all again: the state follows, then queries
            case RecordPush():
                ...
                store(one.position)  # `watched(..., after=position)` continues there
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import aiohttp

from corekit.aio.backoff import Backoff
from corekit.aio.newer import known
from corekit.budget import Budget
from corekit.decode import decode_known
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.client.access import Access
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import watch as words
from gpu_scheduler.protocol.answers import RecordsAnswer
from gpu_scheduler.protocol.codec import Body, BrokenFrame
from gpu_scheduler.protocol.ops import PAGE_MAX

logger = logging.getLogger(__name__)

Fields = Mapping[str, Any]

#: The longest line: a job record with all leases that it may keep is a quarter of it.
LINE_BYTES_MAX = 2**20
#: Keys of every event, beside the fields of its own.
_HEAD = ("event", "seq", "at_s", "position")
_CLASSES = {name: cls for cls, name in words.EVENTS.items()}


class Watched(Value):
    """One event of the stream."""

    event: words.WatchEvent | None  #: None: unknown here, of a newer scheduler
    name: str
    at_s: float  #: wall clock of the scheduler
    #: The stream continues after it; None: not from this event alone, because the state at the
    #: begin of a stream is not complete yet.
    position: str | None


async def watched(
    http: str,
    access: Access,
    *,
    after: str | None = None,
    budget: Budget | None = None,
    level: int = logging.WARNING,
) -> AsyncGenerator[Watched, None]:
    """Events without end from the endpoints ("host:port,…") of the schedulers of one system.

    Reconnects after a disconnect, which is one event `lost`, and continues after the last position
    that the scheduler still knows; where it does not, the stream has `reset` or, from a scheduler
    without positions, `started`. `level`: of the log line about a lost stream. Raises DENIED and
    INVALID.
    """
    budget = budget or Budget()
    addresses, tried = http.split(","), 0
    backoff = Backoff(budget.reconnect_base_s, budget.reconnect_s_max)
    lost_said, warned = True, False
    while True:
        try:
            stream = _lines(addresses[tried % len(addresses)], access, budget.client_gone_s, after)
            async with contextlib.aclosing(stream) as lines:
                async for line in lines:
                    one = _watched(Body(line))
                    after = one.position or after
                    if isinstance(one.event, words.Started | words.Reset):
                        after = None  # until the state is complete
                    lost_said, warned = isinstance(one.event, words.Lost), False
                    backoff.reset()
                    yield one
            why = "the scheduler ended the stream"
        except BrokenFrame as error:  # of something in between, such as a proxy
            why = error.message
        except AppError as error:
            if error.code in (ErrorCode.DENIED, ErrorCode.INVALID):
                raise
            why = error.message
        if not warned:
            warned = True
            logger.log(level, "%s; trying again", why, extra={"event": "events_lost"})
        if not lost_said:
            lost_said = True
            yield _lost(why)
        tried += 1
        if tried % len(addresses) == 0 or len(addresses) == 1:
            await asyncio.sleep(backoff.next_s())


async def endpoint_events(
    http: str, access: Access, within_s: float
) -> AsyncGenerator[Fields, None]:
    """The events of one endpoint as JSON objects, until its stream ends.

    Raises UNAVAILABLE, also after `within_s` without an event, or the endpoint's error.
    """
    async with contextlib.aclosing(_lines(http, access, within_s)) as lines:
        async for line in lines:
            try:
                fields = Body(line).plain()
            except BrokenFrame as error:  # cut off, or of something in between, such as a proxy
                text = f"no events from the HTTP endpoint at {http}: {error.message}"
                raise AppError(ErrorCode.UNAVAILABLE, text) from None
            yield fields


async def _lines(
    http: str, access: Access, within_s: float, after: str | None = None
) -> AsyncGenerator[bytes, None]:
    """The events of one endpoint as JSON text; raises as `endpoint_events`."""
    tls, headers = access.tls(), _headers(access)
    silence = aiohttp.ClientTimeout(total=None, sock_connect=within_s, sock_read=within_s)
    query = {} if after is None else {"after": after}
    try:
        async with (
            aiohttp.ClientSession(
                timeout=silence, headers=headers, read_bufsize=LINE_BYTES_MAX
            ) as session,
            session.get(_url(http, tls, "watch"), params=query, ssl=tls or False) as answer,
        ):
            if answer.status != 200:
                raise AppError.from_json((await answer.json())["error"])
            async for line in answer.content:
                yield line
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        why = str(error) or "it sent nothing"
        text = f"no events from the HTTP endpoint at {http}: {why}; is ssgmd up?"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


async def records(
    http: str, access: Access, within_s: float
) -> AsyncGenerator[tuple[Record, ...], None]:
    """All job records in pages, newest first, from the scheduler that leads.

    Raises UNAVAILABLE when none of the endpoints ("host:port,…") leads, or its error.
    """
    tls, headers = access.tls(), _headers(access)
    limit = aiohttp.ClientTimeout(total=within_s)
    async with aiohttp.ClientSession(timeout=limit, headers=headers) as session:
        address, after = None, None
        while True:
            query = {"limit": str(PAGE_MAX)} | ({} if after is None else {"after": after})
            tried = http.split(",") if address is None else [address]
            address, answer = await _first_answer(session, tried, query, tls)
            page = known(logger, decode_known(RecordsAnswer, answer)).records
            if not page:
                return
            yield page
            after = page[-1].holder


async def _first_answer(
    session: aiohttp.ClientSession,
    addresses: Sequence[str],
    query: Mapping[str, str],
    tls: ssl.SSLContext | None,
) -> tuple[str, object]:
    problem = AppError(ErrorCode.UNAVAILABLE, "no HTTP endpoint of a scheduler is known")
    for address in addresses:
        try:
            url = _url(address, tls, "records")
            async with session.get(url, params=query, ssl=tls or False) as answer:
                found = await answer.json()
                if answer.status == 200:
                    return address, found
                problem = AppError.from_json(found["error"])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            text = f"no answer of the HTTP endpoint at {address}: {error or 'in time'}"
            problem = AppError(ErrorCode.UNAVAILABLE, text)
        if problem.code is not ErrorCode.UNAVAILABLE:
            break
    raise problem


def _url(address: str, tls: ssl.SSLContext | None, path: str) -> str:
    return f"{'http' if tls is None else 'https'}://{address}/v1/{path}"


def _headers(access: Access) -> Mapping[str, str]:
    key = access.current_key
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _watched(line: Body) -> Watched:
    head, own = line.without(*_HEAD)
    name = str(head.get("event"))
    event: words.WatchEvent | None = None
    if (cls := _CLASSES.get(name)) is not None:
        try:
            event = known(logger, own.read_known(cls, name))
        except AppError as error:
            logger.warning("event %r left out: %s", name, error.message)
    return Watched(
        event=event, name=name, at_s=head.get("at_s", 0.0), position=head.get("position")
    )


def _lost(why: str) -> Watched:
    return Watched(event=words.Lost(why=why), name="lost", at_s=0.0, position=None)

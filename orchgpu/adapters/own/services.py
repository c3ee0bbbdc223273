"""`FunctionStarter` by HTTP: a container of Knative or OpenFaaS runs the function (ADR 64).

A start is a CloudEvent in the binary form, whose data is what Lambda's Invoke carries. Its id is
that of its data, so a repetition has the same one. An answer of 200 to 299 is the start. The body
of that answer lasts as long as the run: it is read to its end, because both platforms may end a
container without an open request. A cut answer ends nothing here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

import aiohttp

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.adapters.own.settings import USE_HOSTS
from orchgpu.adapters.webhooks import checked_url, http_errors, open_session, quoted
from remote_gpu.wire.runs import SERVICE_EVENT

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
#: Knative holds a request while a container starts, so the answer to a first one takes as long;
#: later the container sends a line every few seconds.
SILENT_S_MAX = 120.0
SOURCE = "urn:orchgpu:orchestrator"
_CODES: Mapping[int, ErrorCode] = {
    401: ErrorCode.DENIED,
    403: ErrorCode.DENIED,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.TIMEOUT,
    410: ErrorCode.NOT_FOUND,
    429: ErrorCode.EXHAUSTED,
    503: ErrorCode.EXHAUSTED,
    504: ErrorCode.TIMEOUT,
}


class Services:
    """One pool of connections: as many as runs are under way."""

    def __init__(self, session: aiohttp.ClientSession, nursery: Nursery, token: str) -> None:
        """`token`: of each request; "" = none."""
        self._session = session
        self._nursery = nursery
        self._authorization = {"authorization": f"Bearer {token}"} if token else {}

    async def start(self, function: str, payload: str) -> None:
        """As `FunctionStarter.start`; nothing is repeated here."""
        if not function.startswith(("http://", "https://")):
            raise invalid(f"cloud `own` cannot start the function {function!r}: {USE_HOSTS}")
        body = payload.encode()
        headers = {**event_headers(body), **self._authorization}
        with http_errors(function, SILENT_S_MAX):
            answer = await self._session.post(
                checked_url(function), data=body, headers=headers, allow_redirects=False
            )
            if 200 <= answer.status < 300:
                reading = self._nursery.start(_read(answer, function), f"run/{headers['ce-id']}")
                reading.add_done_callback(lambda _: answer.close())  # it may never begin
                return
            async with answer:
                raise AppError(
                    code_of(answer.status), f"{function} answered {await quoted(answer)}"
                )

    async def unreserved(self) -> NoReturn:
        raise invalid("cloud `own` knows no limit of how many functions run at a time")


def event_headers(body: bytes) -> dict[str, str]:
    """The attributes of the event whose data is `body` (CloudEvents 1.0, HTTP binding, 3.1)."""
    return {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": hashlib.sha256(body).hexdigest()[:32],
        "ce-source": SOURCE,
        "ce-type": SERVICE_EVENT,
    }


def code_of(status: int) -> ErrorCode:
    """The meaning of an answer outside of 200 to 299."""
    if status in _CODES:
        return _CODES[status]
    return ErrorCode.UNAVAILABLE if status >= 500 else ErrorCode.INVALID


async def _read(answer: aiohttp.ClientResponse, function: str) -> None:
    """Until the run has ended, or the connection. The job has a result or a report of its own."""
    last = b""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for line in answer.content:
            last = line.strip() or last
    if b'"exit_status"' in last and not last.endswith(b" 0}"):
        logger.warning("%s: a run ended: %s", function, last[:100].decode("utf-8", "replace"))


@asynccontextmanager
async def open_services(token: str) -> AsyncIterator[Services]:
    """Connections until the block ends, and with them the open requests."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S_MAX)
    session = open_session(timeout, limit=0, force_close=True)
    async with session, Nursery("services") as nursery:
        yield Services(session, nursery, token)

"""Streams of events over HTTP: their form, and the answer that sends them; for any server.

Which events a reader gets is decided by a ring (`corekit.ring`) and the position it returned with.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from aiohttp import web

#: Header with the position after which a browser's EventSource continues.
LAST_EVENT_ID = "Last-Event-ID"
SERVER_SENT = "text/event-stream"
JSON_LINES = "application/x-ndjson"
#: A comment keeps proxies from closing a quiet stream.
BEAT = b": beat\n\n"


def server_sent(data: bytes, name: str = "", position: str = "") -> bytes:
    """One event with JSON, which has no line breaks; the reader returns the position later."""
    id_ = b"id: %s\n" % position.encode() if position else b""
    event = b"event: %s\n" % name.encode() if name else b""
    return b"%s%sdata: %s\n\n" % (id_, event, data)


async def streamed(
    request: web.Request, pieces: AsyncGenerator[bytes, None], kind: str = SERVER_SENT
) -> web.StreamResponse:
    """Answer with pieces as they come, until they end or the reader disconnects.

    An error before the first piece is the answer instead. A reader that does not read stops the
    pieces: the next one is made when the last one fits into the connection's buffer.
    """
    async with contextlib.aclosing(pieces):
        first = await anext(pieces, None)
        response = web.StreamResponse(
            headers={
                "Content-Type": kind,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # a proxy must not hold events back
            }
        )
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            if first is not None:
                await response.write(first)
            async for piece in pieces:
                await response.write(piece)
            await response.write_eof()
    return response

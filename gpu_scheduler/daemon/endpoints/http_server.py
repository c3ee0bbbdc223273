"""The HTTP server below the endpoint: malformed requests also get a typed JSON error.

aiohttp itself would answer them in plain text, before a handler or middleware is called.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import ClassVar

from aiohttp import web

from corekit.aio.http_server import runner_of
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission

#: A request has at most 128 KiB of headers: an unauthenticated connection buffers no more. A header
#: may be longer than a key (110 bytes); proxies and browsers send about 20.
_HEADERS_MAX = 32
_HEADER_BYTES_MAX = 2048
_DETAIL_CHARS_MAX = 200  #: most characters of the parser's message, which quotes the peer


class HttpConnection(web.RequestHandler):
    """One connection, whose own errors are JSON with a code, like those of the endpoint."""

    __slots__ = ()
    admission: ClassVar[
        ConnectionAdmission
    ]  #: of the server; `listen` makes a class of its own for each

    left: ClassVar[dict[HttpConnection, Callable[[], None]]]  #: called when the peer is gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.admission.connected(self, transport.get_extra_info("peername"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self.admission.disconnected(self)
        self.left.pop(self, _nothing)()
        super().connection_lost(exc)

    def reject(self, _: AppError) -> None:
        """`Rejectable`: close without an answer, because there may be no request."""
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)
        if status >= 500:
            return _typed(AppError(ErrorCode.INTERNAL, "internal error"), status)
        detail = (message or "unreadable").partition("\n")[0]
        return _typed(invalid(f"malformed HTTP request: {detail:.{_DETAIL_CHARS_MAX}}"), status)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):  # refused before the handler
            resp = _typed(invalid(f"{resp.reason}: {resp.text or ''}"), resp.status)
        return await super().finish_response(request, resp, start_time)


def _nothing() -> None:
    """Of a connection whose end concerns no handler."""


def _typed(error: AppError, status: int) -> web.Response:
    answer = web.json_response({"error": error.as_json()}, status=status)
    answer.force_close()
    return answer


async def listen(
    application: web.Application,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    admission: ConnectionAdmission,
    stack: AsyncExitStack,
) -> tuple[str, int]:
    """Serve until the stack is closed. Raises OSError when the address cannot be used."""
    runner = runner_of(application, headers_max=_HEADERS_MAX, header_bytes_max=_HEADER_BYTES_MAX)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    made = runner.server
    assert made is not None, "the server is set up"

    class Ours(HttpConnection):
        __slots__ = ()

    Ours.admission, Ours.left = admission, {}

    def connection() -> web.RequestHandler:
        handler = made()
        handler.__class__ = Ours  # aiohttp has no parameter for it
        return handler

    server = await asyncio.get_running_loop().create_server(connection, host, port, ssl=tls)
    stack.callback(server.close)
    name: tuple[str, int] = server.sockets[0].getsockname()
    return name[0], name[1]

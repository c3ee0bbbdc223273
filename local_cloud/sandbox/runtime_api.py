"""The Lambda Runtime API (2018-06-01): one loopback port per environment, one server for all.

An environment's runtime client asks `/next` and is answered when there is an invocation; it posts
its response or error. `Channel` is the server's side of that exchange.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from corekit.aio.http_server import SILENT
from corekit.net.browsers import foreign_part
from corekit.values import Value
from local_cloud.model.functions.function import Outcome

logger = logging.getLogger(__name__)

RESPONSE_BYTES_MAX = 6 * 2**20 + 512  #: of a synchronous answer (AWS: 6 MB)
_PREFIX = "/2018-06-01/runtime/"

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Work(Value):
    """One invocation on its way to an environment."""

    request_id: str
    payload: str
    function_arn: str
    timeout_s: float


class Channel:
    """The exchange with one environment, one invocation at a time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        #: done when the runtime waits in `/next`: it has started, or ended its invocation
        self.ready: asyncio.Future[None] = loop.create_future()
        #: an error of its initialisation, as the runtime reported it
        self.init_error: asyncio.Future[str] = loop.create_future()
        self._work: asyncio.Future[Work] | None = None
        self._outcome: asyncio.Future[Outcome] | None = None
        self._request_id = ""

    @property
    def waiting(self) -> bool:
        """Whether a `/next` is open; the end of a runtime closes its connection."""
        return self._work is not None and not self._work.done()

    def give(self, work: Work) -> asyncio.Future[Outcome]:
        """Answer the open `/next`; the future is the outcome. Only while `waiting`."""
        assert self._work is not None, "the runtime is not waiting"
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        self._outcome = loop.create_future()
        self._request_id = work.request_id
        self._work.set_result(work)
        return self._outcome

    async def next(self) -> Work:
        """The runtime's side of `give`."""
        self._work = asyncio.get_running_loop().create_future()
        if not self.ready.done():
            self.ready.set_result(None)
        return await self._work

    def settle(self, request_id: str, outcome: Outcome) -> bool:
        """The runtime's answer; False when no invocation of this id is open."""
        if request_id != self._request_id or self._outcome is None or self._outcome.done():
            return False
        self._outcome.set_result(outcome)
        return True


class RuntimeApi:
    """The server behind all channels."""

    def __init__(self) -> None:
        self._channels: dict[int, Channel] = {}
        self._sites: dict[int, web.TCPSite] = {}
        application = web.Application(middlewares=[self._guarded])
        application.router.add_get(_PREFIX + "invocation/next", self._next)
        application.router.add_post(_PREFIX + "invocation/{id}/response", self._response)
        application.router.add_post(_PREFIX + "invocation/{id}/error", self._error)
        application.router.add_post(_PREFIX + "init/error", self._init_error)
        self._runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, logger=SILENT
        )

    async def start(self) -> None:
        """Ready for `open`."""
        await self._runner.setup()

    async def close(self) -> None:
        """Close every port."""
        for port in list(self._sites):
            await self.shut(port)
        await self._runner.cleanup()

    async def open(self, channel: Channel) -> int:
        """A new port of 127.0.0.1 that speaks for this channel."""
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        server = site._server  # noqa: SLF001 - the public way to the port lists all sites mixed
        assert isinstance(server, asyncio.Server)
        port = int(server.sockets[0].getsockname()[1])
        self._channels[port] = channel
        self._sites[port] = site
        return port

    async def shut(self, port: int) -> None:
        """Close the port of a channel; unknown = already closed."""
        self._channels.pop(port, None)
        site = self._sites.pop(port, None)
        if site is not None:
            await site.stop()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers  # a web page could take an invocation, or answer it
        sent_by_a_page = "Origin" in headers or "Sec-Fetch-Site" in headers
        if sent_by_a_page or foreign_part(request.method, headers, "") is not None:
            return web.json_response({"errorType": "Forbidden"}, status=403)
        try:
            return await handler(request)
        except (ConnectionError, web.RequestPayloadError, web.HTTPException):
            raise  # not logged: the peer closed the connection, or asked for what is not here
        except Exception as error:
            logger.error("a runtime got no answer", exc_info=error, extra={"event": "api_fault"})
            return web.Response(status=500)

    def _channel(self, request: web.Request) -> Channel:
        transport = request.transport
        port = transport.get_extra_info("sockname")[1] if transport is not None else 0
        if port not in self._channels:
            raise web.HTTPNotFound
        return self._channels[port]

    async def _next(self, request: web.Request) -> web.Response:
        work = await self._channel(request).next()
        deadline_ms = int((time.time() + work.timeout_s) * 1000)  # wall time is the API's contract
        return web.Response(
            body=work.payload.encode(),
            content_type="application/json",
            headers={
                "Lambda-Runtime-Aws-Request-Id": work.request_id,
                "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": work.function_arn,
                "Lambda-Runtime-Trace-Id": "Root=1-00000000-000000000000000000000000;Sampled=0",
            },
        )

    async def _response(self, request: web.Request) -> web.Response:
        channel, text = self._channel(request), await _body(request)
        if text is None:
            message = "Response payload size exceeded maximum allowed payload size (6291556 bytes)."
            payload = error_payload("Function.ResponseSizeTooLarge", message)
            channel.settle(request.match_info["id"], Outcome(payload=payload, error="Unhandled"))
            return web.json_response({"errorType": "RequestEntityTooLarge"}, status=413)
        channel.settle(request.match_info["id"], Outcome(payload=text))
        return _taken()

    async def _error(self, request: web.Request) -> web.Response:
        channel, text = self._channel(request), await _body(request) or _TOO_LARGE
        channel.settle(request.match_info["id"], Outcome(payload=text, error="Unhandled"))
        return _taken()

    async def _init_error(self, request: web.Request) -> web.Response:
        channel, text = self._channel(request), await _body(request) or _TOO_LARGE
        if not channel.init_error.done():
            channel.init_error.set_result(text)
        return _taken()


def _taken() -> web.Response:
    return web.json_response({"status": "OK"}, status=202)


async def _body(request: web.Request) -> str | None:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():  # to its end, so that the client reads the 413
        size += len(piece)
        if size <= RESPONSE_BYTES_MAX:
            pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "replace") if size <= RESPONSE_BYTES_MAX else None


def error_payload(kind: str, message: str) -> str:
    """The answer to an invoker for a failure that the function did not report itself."""
    return json.dumps({"errorType": kind, "errorMessage": message})


_TOO_LARGE = error_payload("Runtime.Unknown", "the error was too large")

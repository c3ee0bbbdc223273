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

from aiohttp import web

from corekit.aio.http_server import SILENT
from corekit.net.browsers import foreign_part
from corekit.values import Value
from local_cloud.model.functions.function import Outcome

logger = logging.getLogger(__name__)

RESPONSE_BYTES_MAX = 6 * 2**20 + 512  #: of a synchronous answer (AWS: 6 MB)
_PREFIX = "/2018-06-01/runtime/"


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
        self._runner = web.ServerRunner(
            web.Server(self._handle, handler_cancellation=True, access_log=None, logger=SILENT)
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

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except (ConnectionError, web.RequestPayloadError):
            raise  # not logged: the peer closed the connection
        except Exception as error:
            logger.error("a runtime got no answer", exc_info=error, extra={"event": "api_fault"})
            return web.Response(status=500)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        port = transport.get_extra_info("sockname")[1] if transport is not None else 0
        channel = self._channels.get(port)
        path = request.path
        if channel is None or not path.startswith(_PREFIX):
            return web.Response(status=404)
        if _is_browser(request):
            return web.json_response({"errorType": "Forbidden"}, status=403)
        what = path.removeprefix(_PREFIX)
        parts = what.split("/")
        if what == "invocation/next" and request.method == "GET":
            return await _next(channel)
        answer = _ANSWERS.get(parts[-1])
        about_run = len(parts) == 3 and parts[0] == "invocation"
        known = about_run or what == "init/error"
        if request.method != "POST" or answer is None or not known:
            return web.Response(status=404)
        return await answer(channel, what, request)


def _is_browser(request: web.BaseRequest) -> bool:
    """Whether a browser sent it: a web page could take an invocation, or answer it."""
    headers = request.headers
    sent_by_a_page = "Origin" in headers or "Sec-Fetch-Site" in headers
    return sent_by_a_page or foreign_part(request.method, headers, "") is not None


async def _next(channel: Channel) -> web.Response:
    work = await channel.next()
    deadline_ms = int((time.time() + work.timeout_s) * 1000)  # wall time is this API's contract
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


async def _body(request: web.BaseRequest) -> str | None:
    """The posted text, or None when it is too large."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size <= RESPONSE_BYTES_MAX:
            pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "replace") if size <= RESPONSE_BYTES_MAX else None


async def _response(channel: Channel, what: str, request: web.BaseRequest) -> web.Response:
    text = await _body(request)
    request_id = what.split("/")[1]
    if text is None:
        message = "Response payload size exceeded maximum allowed payload size (6291556 bytes)."
        payload = error_payload("Function.ResponseSizeTooLarge", message)
        channel.settle(request_id, Outcome(payload=payload, error="Unhandled"))
        return web.json_response({"errorType": "RequestEntityTooLarge"}, status=413)
    channel.settle(request_id, Outcome(payload=text))
    return web.json_response({"status": "OK"}, status=202)


async def _error(channel: Channel, what: str, request: web.BaseRequest) -> web.Response:
    text = await _body(request) or error_payload("Runtime.Unknown", "the error was too large")
    if what == "init/error":
        if not channel.init_error.done():
            channel.init_error.set_result(text)
    else:
        channel.settle(what.split("/")[1], Outcome(payload=text, error="Unhandled"))
    return web.json_response({"status": "OK"}, status=202)


_Answer = Callable[[Channel, str, web.BaseRequest], Awaitable[web.Response]]
_ANSWERS: dict[str, _Answer] = {"response": _response, "error": _error}


def error_payload(kind: str, message: str) -> str:
    """The answer to an invoker for a failure that the function did not report itself."""
    return json.dumps({"errorType": kind, "errorMessage": message})

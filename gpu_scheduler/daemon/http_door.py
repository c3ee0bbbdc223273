"""The HTTP door: the same ops as JSON, for people and tools; health, readiness, metrics.

    GET  /v1/<op>?field=value    reading ops: inventory leases queue record records orphans explain
    POST /v1/<op>                any op but beat and watch; the body is a JSON object of its fields
    DELETE /v1/leases/<id>       release
    GET  /v1/openapi.json        all of it, for tools

The session is the header `X-Session` (default `http`). It has no beat: a waiting request belongs to
it while the caller repeats the call within `client_gone_s`; every op may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import SessionId
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.desk import Desk
from gpu_scheduler.daemon.gate import Caller, Gate
from gpu_scheduler.daemon.journal import Journal
from gpu_scheduler.daemon.metrics import Metrics, Standing, prometheus_text
from gpu_scheduler.daemon.sessions import Switchboard
from gpu_scheduler.protocol.codec import EMPTY, LINE_BYTES_MAX, VERSION, Body, BrokenFrame
from gpu_scheduler.protocol.openapi import openapi
from gpu_scheduler.protocol.requester import NAME_CHARACTERS_MAX, OPS

READING_OPS = ("inventory", "leases", "queue", "record", "records", "orphans", "explain")
NOT_HERE = ("beat", "watch")

STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.INVALID: 400, ErrorCode.DENIED: 403, ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409, ErrorCode.IMPOSSIBLE: 422, ErrorCode.EXHAUSTED: 429,
    ErrorCode.INTERNAL: 500, ErrorCode.UNAVAILABLE: 503, ErrorCode.TIMEOUT: 504,
}  # fmt: skip

Answered = tuple[do.Answer, bytes]  # the core's value and its JSON


class Calls:
    """The HTTP door as a sink: one future per request."""

    def __init__(self, desk: Desk, switchboard: Switchboard) -> None:
        self._desk = desk
        self._number = switchboard.register(self)
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._next = 0

    async def ask(self, caller: Caller, session: str, op: str, body: Body) -> Answered:
        """One op. Raises AppError."""
        self._next += 1
        id_ = self._next
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = future
        try:
            known_as = SessionId(caller.session(session))
            self._desk.ask(caller, known_as, op, body, f"{self._number}.{id_}")
            return await future
        except asyncio.QueueFull:
            text = "the scheduler is behind with its work; try again in a moment"
            raise AppError(ErrorCode.EXHAUSTED, text) from None
        finally:
            del self._waiting[id_]

    def answer(self, id_: int, answer: do.Answer, text: bytes) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_result((answer, text))

    def refuse(self, id_: int, error: AppError) -> None:
        if (future := self._waiting.get(id_)) and not future.done():
            future.set_exception(error)

    def close(self) -> None:
        """Requests under way are ended by the HTTP server itself."""


class HttpDoor:
    """Routes and handlers."""

    def __init__(
        self,
        calls: Calls,
        metrics: Metrics,
        journal: Journal,
        gate: Gate,
        is_ready: Callable[[], bool],
    ) -> None:
        self._calls = calls
        self._gate = gate
        self._metrics = metrics
        self._journal = journal
        self._is_ready = is_ready

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=LINE_BYTES_MAX)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/v1/openapi.json", self._openapi)
        app.router.add_delete("/v1/leases/{lease}", self._delete_lease)
        app.router.add_get("/v1/{op}", self._read)
        app.router.add_post("/v1/{op}", self._post)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._is_ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _openapi(self, _: web.Request) -> web.Response:
        ops = tuple(op for op in OPS if op not in NOT_HERE)
        return web.json_response(openapi(ops, f"{VERSION}.0.0"))

    async def _metrics_text(self, request: web.Request) -> web.Response:
        ops = ("inventory", "leases", "queue")
        caller = self._caller(request)
        answered = [await self._calls.ask(caller, "metrics", op, EMPTY) for op in ops]
        inventory, leases, queue = (answer for answer, _ in answered)
        assert isinstance(inventory, do.InventoryAnswer)
        assert isinstance(leases, do.LeasesAnswer)
        assert isinstance(queue, do.QueueAnswer)
        standing = Standing(inventory=inventory, leases=leases, queue=queue)
        text = prometheus_text(self._metrics, self._journal, standing)
        return web.Response(text=text, content_type="text/plain")

    async def _delete_lease(self, request: web.Request) -> web.Response:
        body = Body(encode_json({"lease": request.match_info["lease"]}))
        return await self._answer(request, "release", body)

    async def _read(self, request: web.Request) -> web.Response:
        op = request.match_info["op"]
        if op not in READING_OPS:
            raise AppError(ErrorCode.NOT_FOUND, f"GET /v1/ knows {', '.join(READING_OPS)}")
        fields: dict[str, Any] = dict(request.query)
        if "limit" in fields:
            fields["limit"] = int(fields["limit"]) if fields["limit"].isdigit() else -1
        return await self._answer(request, op, Body(encode_json(fields)))

    async def _post(self, request: web.Request) -> web.Response:
        op = request.match_info["op"]
        if op in NOT_HERE:
            raise AppError(ErrorCode.NOT_FOUND, f"{op!r} belongs to the socket door")
        text = await request.read()
        try:
            return await self._answer(request, op, Body(text) if text else EMPTY)
        except BrokenFrame as error:
            raise invalid(f"the body must hold the fields of the op: {error}") from None

    async def _answer(self, request: web.Request, op: str, body: Body) -> web.Response:
        session = request.headers.get("X-Session", "http")
        if not 1 <= len(session) <= NAME_CHARACTERS_MAX:
            raise invalid(f"X-Session must have 1 to {NAME_CHARACTERS_MAX} characters")
        answer, text = await self._calls.ask(self._caller(request), session, op, body)
        waits = isinstance(answer, do.AttemptAnswer) and answer.outcome is do.Outcome.WAITING
        status = 202 if waits else 200
        return web.Response(body=text, status=status, content_type="application/json")

    def _caller(self, request: web.Request) -> Caller:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        return self._gate.caller(key.strip() if scheme.lower() == "bearer" else None)


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except AppError as error:
        return web.json_response({"error": error.as_json()}, status=STATUS[error.code])

"""The HTTP endpoint: ops as JSON, for people and tools; health, metrics, the event stream.

    GET    /v1/<op>?field=value  ops that only read (`protocol.openapi.READING_OPS`)
    POST   /v1/<op>              any op but beat and watch; the body is a JSON object of its fields
    GET    /v1/leases/<id>       one live lease;  DELETE ends it
    GET    /v1/watch             changes, as JSON lines or server-sent events; ?after=POSITION,
                                 or Last-Event-ID, continues a stream
    GET    /v1/openapi.json      description of all paths, for tools
    GET    /healthz /readyz /metrics

The header `X-Session` names the session (default `http`). An HTTP session has no beat: it keeps a
waiting request while the caller repeats the call within `client_gone_s`. Every op may be repeated.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from corekit.aio.event_stream import (
    JSON_LINES,
    LAST_EVENT_ID,
    SERVER_SENT,
    server_sent,
    streamed,
)
from corekit.decode import encode, encode_json
from corekit.errors import HTTP_STATUS, AppError, ErrorCode, invalid
from corekit.ids import LeaseId
from corekit.metrics import CONTENT_TYPE
from corekit.net.browsers import foreign_part
from corekit.suggest import did_you_mean
from corekit.values import Value
from gpu_scheduler.daemon.access.authorizer import Authorizer, Caller
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.endpoints.calls import Calls
from gpu_scheduler.daemon.endpoints.http_server import HttpConnection
from gpu_scheduler.daemon.endpoints.scrape import PAGE, Scrapes
from gpu_scheduler.daemon.events.hub import Hub
from gpu_scheduler.daemon.events.subscriber import Subscriber
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.metrics import CoreCounts, Metrics, standby_lines
from gpu_scheduler.daemon.standby.follower import StandbyStatus, standby_error
from gpu_scheduler.names import NAME_CHARS_MAX
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AttemptAnswer, Outcome
from gpu_scheduler.protocol.codec import EMPTY, LINE_BYTES_MAX, VERSION, Body, BrokenFrame
from gpu_scheduler.protocol.openapi import NOT_OVER_HTTP, READING_OPS, openapi
from gpu_scheduler.protocol.ops import OPS

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Value)

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SESSION = re.compile(f"[!-~]{{1,{NAME_CHARS_MAX}}}")
_PATHS = [*(f"/v1/{op}" for op in OPS if op not in NOT_OVER_HTTP), "/v1/watch", "/metrics"]


class HttpEndpoint:
    """Routes and handlers. Until `open`, paths that need the core are UNAVAILABLE.

    Those of a standby are refused with the leader's address in `details.leader_http`.
    """

    def __init__(
        self,
        metrics: Metrics,
        journal: Journal,
        authorizer: Authorizer,
        admission: ConnectionAdmission,
    ) -> None:
        self._metrics = metrics
        self._admission = admission
        self._journal = journal
        self._authorizer = authorizer
        self._calls: Calls | None = None
        self._hub: Hub | None = None
        self._scrapes: Scrapes | None = None
        self._standby: Callable[[], StandbyStatus] | None = None

    def stand_by(self, status: Callable[[], StandbyStatus]) -> None:
        """Answer as a standby, until `open`."""
        self._standby = status

    def open(self, calls: Calls, hub: Hub, counts: CoreCounts) -> None:
        """Serve all paths, once recovery is complete."""
        self._calls, self._hub, self._standby = calls, hub, None
        self._scrapes = Scrapes(
            calls, self._metrics, self._journal, counts, lambda: not self._authorizer.has_keys
        )

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=LINE_BYTES_MAX)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/v1/openapi.json", self._openapi)
        app.router.add_get("/v1/watch", self._watch)
        app.router.add_get("/v1/leases/{lease}", self._lease)
        app.router.add_delete("/v1/leases/{lease}", self._delete_lease)
        for op in READING_OPS:
            app.router.add_get(f"/v1/{op}", self._read)
        for op in OPS:
            if op not in NOT_OVER_HTTP:
                app.router.add_post(f"/v1/{op}", self._post)
        return app

    # --- without a key

    async def _healthz(self, _: web.Request) -> web.Response:
        if self._standby is not None:
            return web.json_response({"ok": True, "role": "standby", **encode(self._standby())})
        role = "leader" if self._calls is not None else "recovering"
        return web.json_response({"ok": True, "role": role, "epoch": self._metrics.epoch})

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._calls is not None
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(openapi(f"{VERSION}.0.0"))

    # --- ops

    async def _lease(self, request: web.Request) -> web.Response:
        wanted, after, more = request.match_info["lease"], 0, True
        self._opened()
        caller = self._caller(request)
        while more:
            answer = await self._ask(request, caller, ops.Leases(after=after, limit=PAGE))
            for lease in answer.leases:
                after = lease.fence
                if lease.id == wanted:
                    return web.Response(body=encode_json(lease), content_type="application/json")
            more = answer.more
        raise AppError(ErrorCode.NOT_FOUND, f"lease {wanted!r:.80} is unknown or ended")

    async def _delete_lease(self, request: web.Request) -> web.Response:
        self._opened()
        op = ops.Release(lease=LeaseId(request.match_info["lease"]))
        return await self._answer(request, self._caller(request), op)

    async def _read(self, request: web.Request) -> web.Response:
        fields: dict[str, object] = {}
        for name, text in request.query.items():
            if name in fields:
                raise invalid(f"{name!r:.80} is given twice")
            fields[name] = int(text) if _WHOLE_NUMBER.fullmatch(text) else text
        calls, caller = self._opened()[0], self._caller(request)
        op = calls.decoder.read(request.path.rpartition("/")[2], Body(encode_json(fields)))
        return await self._answer(request, caller, op)

    async def _post(self, request: web.Request) -> web.Response:
        calls = self._opened()[0]
        caller = self._caller(request)  # before the body is buffered
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise invalid(f"Content-Encoding {encoding!r:.40} is not accepted; send plain JSON")
        try:
            text = await request.read()
        except web.RequestPayloadError as error:
            raise invalid(f"the body cannot be read: {' '.join(str(error).split()):.200}") from None
        try:
            op = calls.decoder.read(request.path.rpartition("/")[2], Body(text) if text else EMPTY)
        except BrokenFrame as error:
            raise invalid(f"the body must have the fields of the op: {error}") from None
        return await self._answer(request, caller, op)

    async def _answer(
        self, request: web.Request, caller: Caller, op: ops.Op[Value]
    ) -> web.Response:
        answer = await self._ask(request, caller, op)
        waits = isinstance(answer, AttemptAnswer) and answer.outcome is Outcome.WAITING
        text, status = encode_json(answer), 202 if waits else 200
        return web.Response(body=text, status=status, content_type="application/json")

    async def _ask(self, request: web.Request, caller: Caller, op: ops.Op[AnswerT]) -> AnswerT:
        calls = self._opened()[0]
        session = request.headers.get("X-Session", "http")
        if not _SESSION.fullmatch(session):
            text = f"X-Session must have 1 to {NAME_CHARS_MAX} printable ASCII characters"
            raise invalid(f"{text}, without spaces")
        return await calls.ask(caller, session, op)

    def _opened(self) -> tuple[Calls, Hub]:
        if self._standby is not None:
            raise standby_error(self._standby())
        if self._calls is None or self._hub is None:
            text = "the scheduler is recovering its journal; try again in a moment (GET /readyz)"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        return self._calls, self._hub

    def _caller(self, request: web.Request) -> Caller:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if not self._authorizer.has_keys:
            _refuse_other_sites(request)
        caller = self._authorizer.caller(key.strip() if scheme.lower() == "bearer" else None)
        if isinstance(request.protocol, HttpConnection):  # always true: `listen` creates them
            self._admission.authenticated(request.protocol)
        return replace(caller, peer=request.remote or "")

    # --- figures and events

    async def _metrics_text(self, request: web.Request) -> web.Response:
        if self._standby is not None:
            self._authorizer.authorize(self._caller(request), "inventory", None)
            text = "\n".join(standby_lines(self._standby())) + "\n"
            return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})
        self._opened()
        self._authorizer.authorize(self._caller(request), "inventory", None)
        assert self._scrapes is not None, "created by `open`"
        return web.Response(body=await self._scrapes.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        hub, caller = self._opened()[1], self._caller(request)
        self._authorizer.authorize(caller, "watch", None)
        after = request.query.get("after", request.headers.get(LAST_EVENT_ID))
        kind = SERVER_SENT if SERVER_SENT in request.headers.get("Accept", "") else JSON_LINES
        with hub.subscribed(caller, after or None) as subscriber:
            self._authorizer.track(subscriber, caller)
            if isinstance(request.protocol, HttpConnection):
                request.protocol.left[request.protocol] = subscriber.left
            try:
                return await streamed(request, _pieces(subscriber, kind), kind)
            finally:
                self._authorizer.untrack(subscriber)


async def _pieces(subscriber: Subscriber, kind: str) -> AsyncGenerator[bytes, None]:
    async for portion in subscriber.portions():
        if kind == SERVER_SENT:
            yield b"".join(server_sent(line.text, position=line.position) for line in portion)
        else:
            yield b"".join(line.text + b"\n" for line in portion)


def _refuse_other_sites(request: web.Request) -> None:
    """Refuse web pages of other sites: without keys, local programs are trusted. Raises DENIED."""
    found = foreign_part(request.method, request.headers, "")
    if found is not None:
        text = f"{found.header} {found.value!r} is not this machine; other sites need an API key"
        raise AppError(ErrorCode.DENIED, text, needs="key")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except AppError as error:
        return _refused(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = ErrorCode.NOT_FOUND if error.status == 404 else ErrorCode.INVALID
        text = f"{request.method} {request.path:.200}: {error.reason}"
        if error.status == 404:
            text += did_you_mean(
                request.path, _PATHS, otherwise="; GET /v1/openapi.json lists all paths"
            )
        if error.status == 413:
            text += f"; a body has at most {LINE_BYTES_MAX} bytes"
        kept = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return _refused(AppError(code, text), error.status, kept)
    except ConnectionError:
        raise  # the peer has disconnected
    except Exception as error:
        logger.error("%s %s failed", request.method, request.path, exc_info=error)
        return _refused(AppError(ErrorCode.INTERNAL, "internal error; see the trace in the log"))


def _refused(
    error: AppError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> web.Response:
    found = HTTP_STATUS[error.code] if status is None else status
    more = dict(headers or {})
    if error.code is ErrorCode.DENIED and error.details.get("needs") == "key":
        found, more["WWW-Authenticate"] = 401, "Bearer"
    if (pause_s := error.details.get("retry_in_s")) is not None:
        more["Retry-After"] = str(math.ceil(pause_s))
    return web.json_response({"error": error.as_json()}, status=found, headers=more)

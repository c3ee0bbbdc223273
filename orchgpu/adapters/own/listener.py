"""`POST /v1/events/store`: the orchestrator's receiver of the store's webhook.

An event that is lost on the way is found by the reconciler, so an answer other than 2xx costs a
delay, never a job.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from corekit.aio.http_server import listening
from corekit.errors import AppError, invalid
from corekit.tokens import read_token
from orchgpu.adapters.own import statements
from orchgpu.adapters.own.events import events_of, messages_for
from orchgpu.adapters.own.queue import PostgresQueue
from orchgpu.adapters.own.settings import TOKEN_VARIABLE
from orchgpu.adapters.own.tables import rule_of
from orchgpu.core.routing import BODY_BYTES_MAX

logger = logging.getLogger(__name__)

PATH = "/v1/events/store"


class StoreEvents:
    """Turns events into messages, by the rules of their bucket."""

    def __init__(self, queue: PostgresQueue, token: str) -> None:
        self._queue = queue
        self._token = token

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post(PATH, self.receive)
        app.router.add_get("/", health)  # RustFS and MinIO ask, by HEAD, before they send
        return app

    async def receive(self, request: web.Request) -> web.Response:
        if not allowed(request.headers.get("Authorization", ""), self._token):
            return _answer(401, "the token of the webhook is missing or wrong")
        try:
            body = msgspec.json.decode(await request.read())
        except (ValueError, RecursionError):
            return _answer(400, "the body is not JSON")
        try:
            sent = await self._send(body)
        except AppError as error:
            text = "events of the store were not taken: %s"
            logger.warning(text, error.message, extra={"event": "store_event_failed"})
            return _answer(503, "the queues cannot be reached; send it again")
        return web.json_response({"messages": sent})

    async def _send(self, body: object) -> int:
        sent = 0
        for event in events_of(body):
            rows = await self._queue.pool.rows(statements.READ_RULES, {"bucket": event.bucket})
            for queue, message in messages_for(event, [rule_of(row[0]) for row in rows]):
                await self._queue.send(queue, [message])
                sent += 1
        return sent


async def health(_: web.Request) -> web.Response:
    return web.json_response({"ok": True})


def allowed(authorization: str, token: str) -> bool:
    """True when the header has the token: as a bearer token, as a password (Ceph), or alone."""
    scheme, separator, given = authorization.partition(" ")
    if not separator:
        given = scheme
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())


def _answer(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


def token_of(file: str | None) -> str:
    """The content of the token's file. Raises INVALID."""
    if not file:
        raise invalid(f"the receiver of the store's events needs a token: set {TOKEN_VARIABLE}")
    return read_token(file, TOKEN_VARIABLE)


@asynccontextmanager
async def receiving(
    queue: PostgresQueue, address: str, token: str
) -> AsyncIterator[Mapping[str, str]]:
    """Receive for the length of the block; yields the ready file's fields.

    Raises INVALID and UNAVAILABLE, naming the address.
    """
    events = StoreEvents(queue, token)
    async with listening(events.application(), address, "events of the store") as bound:
        yield {"store_events": bound}

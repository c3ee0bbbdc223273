"""`POST /v1/functions/NAME/calls`: a call of an endpoint, answered in the same connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import quote

from aiohttp import web

from contract.http_jobs import NAME_BYTES_MAX, WAIT_S_MAX, plain_name, type_of
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.web.api.callers import visit_of
from orchgpu.web.api.endpoints import Endpoint
from orchgpu.web.api.jobs import seconds_of
from orchgpu.web.api.submitting import require_upload, submittable
from orchgpu.web.http.security import SANDBOX_POLICY, Visit
from orchgpu.web.http.uploads import (
    PIECE_BYTES,
    SILENCE_S,
    body_pieces,
    check_name,
    timely,
)
from remote_gpu.wire.calls import CALL_BYTES_MAX, Message

logger = logging.getLogger(__name__)
ROUTES = web.RouteTableDef()


@ROUTES.post("/v1/functions/{function}/calls")
async def call(request: web.Request) -> web.StreamResponse:
    """Call a function with the body as its input; its answer is the body, as it comes.

    Made once or not at all, never twice; nothing is stored.
    """
    visit = await visit_of(request)
    wait_s = seconds_of(request) if "wait" in request.query else WAIT_S_MAX
    endpoint = await _endpoint(visit, request.match_info["function"])
    name = request.query.get("name") or plain_name(endpoint.function.input_suffixes)
    check_name(name, NAME_BYTES_MAX)
    api, party = visit.console.api, visit.session.party
    with api.waiting.one(party):
        with api.inputs.one(party):
            content = await _content(request)
        async with endpoint.line(visit.console, wait_s) as line:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the caller is gone; nothing was called")
            async with aclosing(line.call(name, content)) as answer:
                first = await anext(answer)
                response = web.StreamResponse(headers=_headers(first.name))
                if first.kind == "part":
                    await _write(request, response, first, answer)
                    return response
        response.content_length = len(first.content)
        await _write(request, response, first, answer)  # its line answers others
    return response


async def _write(
    request: web.Request, response: web.StreamResponse, first: Message, more: AsyncIterator[Message]
) -> None:
    """Send an answer; it breaks off with its call, and where the caller does not read it."""
    try:
        async with asyncio.timeout(SILENCE_S):
            await response.prepare(request)
        await _write_content(response, first.content)
        async for message in more:
            await _write_content(response, message.content)
    except (AppError, TimeoutError) as error:
        why = str(error) or f"the caller has read nothing for {SILENCE_S:g} s"
        logger.warning("%s broke off: %s", request.path, why)
        if request.transport is not None:
            request.transport.abort()  # no last chunk has come: the caller notices


async def _write_content(response: web.StreamResponse, content: bytes) -> None:
    """In pieces, each within its time: a slow caller is not a stalled one. Raises TimeoutError."""
    for at in range(0, len(content), PIECE_BYTES):
        async with asyncio.timeout(SILENCE_S):
            await response.write(content[at : at + PIECE_BYTES])


async def _endpoint(visit: Visit, name: str) -> Endpoint:
    """The endpoint, which the caller may call. Raises DENIED, NOT_FOUND, INVALID."""
    endpoints = visit.console.endpoints
    if (found := endpoints.known(name)) is not None:
        require_upload(visit, found.function)
        return found
    return endpoints.of(await visit.ask_cloud(lambda cloud: submittable(cloud, visit, name)))


async def _content(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise invalid("Content-Encoding is not accepted; send the content as the function reads it")
    content = bytearray()
    async for piece in timely(body_pieces(request)):
        content += piece
        if len(content) > CALL_BYTES_MAX:
            text = f"the body has more than {CALL_BYTES_MAX} bytes: POST it as a job"
            raise AppError(ErrorCode.IMPOSSIBLE, text)
    return bytes(content)


def _headers(name: str) -> dict[str, str]:
    """As of an output: users' code wrote the content."""
    disposition = f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}"
    return {
        "Content-Type": type_of(name),
        "Content-Disposition": disposition if name else "attachment",
        "Content-Security-Policy": SANDBOX_POLICY,
        "Cache-Control": "no-store",
    }

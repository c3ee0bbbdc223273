"""The first steps with every request: pages of other sites are refused, the body is read."""

from __future__ import annotations

import json
from collections.abc import Collection

from aiohttp import web

from corekit.net.browsers import foreign_part
from local_cloud.model.errors import refused
from local_cloud.server.context import Context

JSON_BYTES_MAX = 8 * 2**20  #: a batch of 1 MiB, escaped


def page_refusal(request: web.BaseRequest, allowed: Collection[str]) -> web.Response | None:
    """The refusal of a page of another site, since this port runs code; None: it is none."""
    transport = request.transport
    # the local IP address of the connection, empty once it is closed
    name = transport.get_extra_info("sockname") if transport is not None else None
    reached = str(name[0]) if name else ""
    page = foreign_part(request.method, request.headers, reached, allowed)
    if page is None:
        return None
    answer = web.Response(
        status=403,
        text=json.dumps({"__type": "AccessDenied", "message": page.refusal()}),
        content_type="application/json",
        headers={"x-amzn-ErrorType": "AccessDenied"},
    )
    answer.force_close()  # its body is not worth reading
    return answer


async def read_signed(
    context: Context, request: web.BaseRequest, *services: str, bytes_max: int = JSON_BYTES_MAX
) -> bytes:
    """The body of a request with a valid signature for one of `services`.

    Raises RequestEntityTooLargeException (413) above `bytes_max`, and as `Verifier.check`.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > bytes_max:
            message = f"Request must be smaller than {bytes_max} bytes."
            raise refused("RequestEntityTooLargeException", message, 413)
        pieces.append(piece)
    data = b"".join(pieces)
    context.verifier.check(request, services, data)
    return data

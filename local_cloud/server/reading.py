"""Reading a small request body whole."""

from __future__ import annotations

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.server.context import Context

JSON_BYTES_MAX = 8 * 2**20  #: a batch of 1 MiB, escaped


async def read_signed(
    context: Context, request: web.BaseRequest, *services: str, bytes_max: int = JSON_BYTES_MAX
) -> bytes:
    """The body of a request with a valid signature for one of `services`.

    Raises RequestEntityTooLargeException (413) above `bytes_max`, and as `Verifier.check`.
    """
    data = await _whole(request, bytes_max)
    context.verifier.check(request, services, data)
    return data


async def _whole(request: web.BaseRequest, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > bytes_max:
            message = f"Request must be smaller than {bytes_max} bytes."
            raise refused("RequestEntityTooLargeException", message, 413)
        pieces.append(piece)
    return b"".join(pieces)

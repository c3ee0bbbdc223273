"""Files on their way from a request to a cloud, each in a temporary folder of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from contract.http_jobs import name_fault
from corekit.errors import AppError, ErrorCode, invalid

#: The largest file of a request; `orchgpu put` has the store's own limit.
UPLOAD_BYTES_MAX = 512 * 2**20
PIECE_BYTES = 256 * 1024
#: A body of which no byte came for this long is given up: it holds one of few places.
SILENCE_S = 30.0
_NAME_BYTES_MAX = 255

T = TypeVar("T")


class Upload:
    """A file on its way to the input of a function."""

    def __init__(self, name: str) -> None:
        """Raises INVALID for a name that is not one of a file."""
        check_name(name, _NAME_BYTES_MAX)
        self._folder = Path(tempfile.mkdtemp(prefix="orchgpu-upload-"))
        self.file = self._folder / name

    async def receive(self, pieces: AsyncIterable[bytes]) -> None:
        """Write the content. Raises IMPOSSIBLE above `UPLOAD_BYTES_MAX`, TIMEOUT as `timely`."""
        size = 0
        with self.file.open("wb") as file:
            async for piece in timely(pieces):
                size += len(piece)
                check_size(size)
                file.write(piece)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


async def timely(pieces: AsyncIterable[T]) -> AsyncIterator[T]:
    """The pieces of a body as they come. Raises TIMEOUT after `SILENCE_S` without one."""
    coming = aiter(pieces)
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                piece = await anext(coming)
        except StopAsyncIteration:
            return
        except TimeoutError:
            text = f"no byte of the body came for {SILENCE_S:g} s; nothing was stored: send the "
            raise AppError(ErrorCode.TIMEOUT, f"{text}request again") from None
        yield piece


def check_name(name: str, bytes_max: int) -> None:
    """Raise INVALID for a name that is not one of a file, or too long."""
    if fault := name_fault(name, bytes_max):
        raise invalid(fault)


def check_size(size: int | None) -> None:
    """Raise IMPOSSIBLE for a file that is too large for a request."""
    if size is not None and size > UPLOAD_BYTES_MAX:
        text = f"the file has more than {UPLOAD_BYTES_MAX} bytes; `orchgpu put` uploads larger ones"
        raise AppError(ErrorCode.IMPOSSIBLE, text)


def body_pieces(request: web.Request) -> AsyncIterable[bytes]:
    """The body of a request, in pieces."""
    return request.content.iter_chunked(PIECE_BYTES)

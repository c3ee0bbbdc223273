"""Files on their way from a request to a cloud, each in a temporary folder of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterable
from pathlib import Path

from aiohttp import web

from corekit.errors import AppError, ErrorCode, invalid

#: The largest file of a request; `orchgpu put` has the store's own limit.
UPLOAD_BYTES_MAX = 512 * 2**20
PIECE_BYTES = 256 * 1024
_NAME_BYTES_MAX = 255


class Upload:
    """A file on its way to the input of a function."""

    def __init__(self, name: str) -> None:
        """Raises INVALID for a name that is not one of a file."""
        check_name(name, _NAME_BYTES_MAX)
        self._folder = Path(tempfile.mkdtemp(prefix="orchgpu-upload-"))
        self.file = self._folder / name

    async def receive(self, pieces: AsyncIterable[bytes]) -> None:
        """Write the content. Raises IMPOSSIBLE for one above `UPLOAD_BYTES_MAX`."""
        size = 0
        with self.file.open("wb") as file:
            async for piece in pieces:
                size += len(piece)
                check_size(size)
                file.write(piece)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def check_name(name: str, bytes_max: int) -> None:
    """Raise INVALID for a name that is not one of a file, or too long."""
    is_path = name in ("", ".", "..") or "/" in name or "\\" in name
    if is_path or not name.isprintable() or len(name.encode()) > bytes_max:
        raise invalid(f"{name!r:.80} is not the name of a file of at most {bytes_max} bytes")


def check_size(size: int | None) -> None:
    """Raise IMPOSSIBLE for a file that is too large for a request."""
    if size is not None and size > UPLOAD_BYTES_MAX:
        text = f"the file has more than {UPLOAD_BYTES_MAX} bytes; `orchgpu put` uploads larger ones"
        raise AppError(ErrorCode.IMPOSSIBLE, text)


def body_pieces(request: web.Request) -> AsyncIterable[bytes]:
    """The body of a request, in pieces."""
    return request.content.iter_chunked(PIECE_BYTES)

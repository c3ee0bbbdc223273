"""The aws-chunked encoding: chunks with optional signatures, then trailers. Pure: bytes in and out.

Source: S3 API reference, "Signature calculations for the Authorization header: transferring payload
in multiple chunks", and the same with trailing headers.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

from local_cloud.model.errors import CloudError, refused

_LINE_BYTES_MAX = 16 * 1024
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Signer(Protocol):
    """The chain of signatures that the chunks must carry."""

    def chunk(self, digest: str, /) -> str: ...

    def trailer(self, names_and_values: bytes, /) -> str: ...


class ChunkDecoder:
    """Turns the bytes that arrive into the payload. After the last chunk `trailers` is filled.

    With a signer every chunk, and trailers if there are any, must carry their signature. A chunk's
    payload is given before its signature was compared: use nothing of it before `end` returned.
    """

    def __init__(self, signer: Signer | None = None) -> None:
        self._pending = b""
        self._left = 0  # bytes of the current chunk that are still to come
        self._state = "size"
        self._signer = signer
        self._signature = b""  # that came with the current chunk
        self._digest = hashlib.sha256()
        self._signed_trailers = b""
        self.trailers: dict[str, str] = {}

    def end(self) -> None:
        """All was fed. Raises IncompleteBody, SignatureDoesNotMatch (trailers)."""
        if self._state not in ("trailers", "end"):
            raise refused("IncompleteBody", "The request body terminated unexpectedly")
        given = self.trailers.pop(_TRAILER_SIGNATURE, "")
        if self._signer is not None and self.trailers:
            _compare(given, self._signer.trailer(self._signed_trailers))

    def feed(self, data: bytes) -> list[bytes]:
        """Decode more bytes. Raises InvalidRequest for anything that is not aws-chunked."""
        self._pending += data
        found: list[bytes] = []
        while self._pending and self._step(found):
            pass
        return found

    def _step(self, found: list[bytes]) -> bool:
        """One chunk, line or part of one; False when more bytes are needed."""
        if self._state == "data":
            return self._take_data(found)
        line, separator, rest = self._pending.partition(b"\r\n")
        if not separator:
            if len(self._pending) > _LINE_BYTES_MAX:
                raise _broken()
            return False
        self._pending = rest
        if self._state == "size":
            self._begin_chunk(line)
        elif self._state == "after":
            if line:
                raise _broken()
            self._state = "size"
        elif not line:
            self._state = "end"
        else:
            self._take_trailer(line)
        return self._state != "end"

    def _begin_chunk(self, line: bytes) -> None:
        size, _, extension = line.partition(b";")
        try:
            self._left = int(size, 16)
        except ValueError:
            raise _broken() from None
        if self._left < 0:
            raise _broken()
        self._signature = extension.removeprefix(b"chunk-signature=").strip()
        self._digest = hashlib.sha256()
        self._state = "data" if self._left else "trailers"
        if not self._left:
            self._end_chunk()

    def _take_data(self, found: list[bytes]) -> bool:
        piece, self._pending = self._pending[: self._left], self._pending[self._left :]
        self._left -= len(piece)
        found.append(piece)
        if self._signer is not None:
            self._digest.update(piece)
        if not self._left:
            self._state = "after"
            self._end_chunk()
        return bool(self._pending)

    def _end_chunk(self) -> None:
        if self._signer is not None:
            _compare(
                self._signature.decode("latin-1"), self._signer.chunk(self._digest.hexdigest())
            )

    def _take_trailer(self, line: bytes) -> None:
        name, _, value = line.decode("latin-1").partition(":")
        key = name.strip().lower()
        self.trailers[key] = value.strip()
        if key != _TRAILER_SIGNATURE:
            self._signed_trailers += f"{key}:{value.strip()}\n".encode("latin-1")


def _compare(given: str, wanted: str) -> None:
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        raise CloudError(
            "SignatureDoesNotMatch",
            403,
            "The chunk or trailer signature we calculated does not match the one you provided.",
        )


def _broken() -> Exception:
    return refused("InvalidRequest", "The body is not valid aws-chunked content")

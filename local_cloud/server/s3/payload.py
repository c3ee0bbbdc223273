"""Receiving a request's body into a file, with the checks a client asked for."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from local_cloud.model.body import Content
from local_cloud.model.errors import CloudError, refused
from local_cloud.server.bodies import FileBodies
from local_cloud.server.s3.chunked import ChunkDecoder
from local_cloud.server.s3.xml import BODY_BYTES_MAX

_CHECKSUM = "x-amz-checksum-"
#: kept as the client gave them, but not verified: the standard library cannot compute them
_UNVERIFIED = frozenset({"crc32c", "crc64nvme"})
_NOT_VALUES = frozenset({"mode", "type", "algorithm"})


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_HASHES: dict[str, Callable[[], _Hash]] = {
    "crc32": _Crc32,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A received body; the caller retains or releases its content."""

    content: Content
    checksums: dict[str, str]  #: `crc32` → base64, as the client sent them


async def continue_if_expected(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, without which boto3 waits a second before it sends."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def read_small(request: web.BaseRequest) -> bytes:
    """A request document, whole. Raises MaxMessageLengthExceeded above 4 MiB."""
    await continue_if_expected(request)
    pieces: list[bytes] = []
    size = 0
    async for piece in _decoded(request, {}):
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise refused("MaxMessageLengthExceeded", "Your request was too large.")
        pieces.append(piece)
    return b"".join(pieces)


async def receive(request: web.BaseRequest, bodies: FileBodies) -> Stored:
    """Stream the body into a file. Raises BadDigest, IncompleteBody, InvalidRequest."""
    await continue_if_expected(request)
    given = _given_checksums(request)
    trailers: dict[str, str] = {}
    announced = request.headers.get("x-amz-trailer", "").lower().removeprefix(_CHECKSUM)
    hashes = {name: _HASHES[name]() for name in {*given, announced} if name in _HASHES}
    with bodies.new() as writer:
        async for piece in _decoded(request, trailers):
            writer.write(piece)
            for digest in hashes.values():
                digest.update(piece)
        given |= {
            name.removeprefix(_CHECKSUM): value
            for name, value in trailers.items()
            if name.startswith(_CHECKSUM)
        }
        for name, digest in hashes.items():
            if name in given and base64.b64encode(digest.digest()).decode() != given[name]:
                raise refused("BadDigest", f"The {name.upper()} you specified did not match.")
        content = writer.finish()
    try:
        _check_sizes(request, content)
    except CloudError:
        bodies.release(content.segments)
        raise
    return Stored(content=content, checksums=given)


def _given_checksums(request: web.BaseRequest) -> dict[str, str]:
    given = {
        name.lower().removeprefix(_CHECKSUM): value
        for name, value in request.headers.items()
        if name.lower().startswith(_CHECKSUM)
    }
    given = {name: value for name, value in given.items() if name not in _NOT_VALUES}
    unknown = given.keys() - _HASHES.keys() - _UNVERIFIED
    if unknown:
        raise refused("InvalidRequest", f"Unknown checksum algorithm {min(unknown)}")
    return given


def _check_sizes(request: web.BaseRequest, content: Content) -> None:
    wanted = request.headers.get("x-amz-decoded-content-length")
    if wanted is not None and wanted != str(content.size):
        raise refused(
            "IncompleteBody",
            "You did not provide the number of bytes specified by the Content-Length HTTP header",
        )
    md5 = request.headers.get("Content-MD5")
    if md5 is not None and base64.b64encode(bytes.fromhex(content.md5)).decode() != md5:
        raise refused("BadDigest", "The Content-MD5 you specified did not match what we received.")


async def _decoded(request: web.BaseRequest, trailers: dict[str, str]) -> AsyncIterator[bytes]:
    if not _is_chunked(request):
        async for piece in request.content.iter_any():
            yield piece
        return
    decoder = ChunkDecoder()
    async for data in request.content.iter_any():
        for piece in decoder.feed(data):
            yield piece
    if not decoder.complete:
        raise refused("IncompleteBody", "The request body terminated unexpectedly")
    trailers.update(decoder.trailers)


def _is_chunked(request: web.BaseRequest) -> bool:
    kind = request.headers.get("x-amz-content-sha256", "")
    encodings = request.headers.get("Content-Encoding", "").lower()
    return kind.startswith("STREAMING-") or "aws-chunked" in encodings

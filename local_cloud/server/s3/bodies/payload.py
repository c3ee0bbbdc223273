"""Receiving a request's body into a file, with the checks a client asked for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from corekit.values import Value
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import Content
from local_cloud.server.bodies import FileBodies
from local_cloud.server.s3.bodies.chunked import ChunkDecoder, Signer
from local_cloud.server.s3.bodies.xml import BODY_BYTES_MAX

_CHECKSUM = "x-amz-checksum-"
_NOT_VALUES = frozenset({"mode", "type", "algorithm"})
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Stored(Value):
    """A received body; the caller retains or releases its content."""

    content: Content
    checksums: dict[str, str]  #: `crc32` → base64: what the client sent, or S3's default
    extra: str  #: base64, by the algorithm that the caller asked for; empty without one


class _Expected(Value):
    """The size and checksums of the body by its headers."""

    algorithm: str  #: of the client's checksum; empty without one
    value: str  #: empty while it comes in a trailer
    sha256: str  #: hex, of the bytes as they are sent; empty when they are not signed
    md5: str  #: base64
    size: str  #: of the decoded body; empty when unknown


async def continue_if_expected(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, without which boto3 waits a second before it sends."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def read_small(request: web.BaseRequest, *, of_object: bool = False) -> bytes:
    """A request document, whole. Raises MaxMessageLengthExceeded above 4 MiB, and as `receive`.

    With `of_object` the checksum headers are about an object, not about these bytes.
    """
    if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-AWS4-"):
        raise not_implemented("a document that is signed in chunks")
    expected = _expected(request, checked=not of_object)
    await continue_if_expected(request)
    body = _Body(expected)
    pieces: list[bytes] = []
    size = 0
    async for piece in body.pieces(request):
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise refused("MaxMessageLengthExceeded", "Your request was too large.")
        pieces.append(piece)
    data = b"".join(pieces)
    body.check(len(data), hashlib.md5(data, usedforsecurity=False).digest())
    return data


async def receive(
    request: web.BaseRequest, bodies: FileBodies, extra: str = "", signer: Signer | None = None
) -> Stored:
    """Stream the body into a file; `extra` is an algorithm to compute in addition to the client's.

    Chunks must be signed by `signer` if there is one.

    Raises BadDigest, InvalidDigest, IncompleteBody, InvalidRequest, MalformedTrailerError,
    MissingContentLength, XAmzContentSHA256Mismatch.
    """
    if not {"Content-Length", "Transfer-Encoding"} & request.headers.keys():
        message = "You must provide the Content-Length HTTP header."
        raise CloudError("MissingContentLength", 411, message)
    expected = _expected(request)
    await continue_if_expected(request)
    also = extra or ("" if expected.algorithm else checksums.DEFAULT)
    body = _Body(expected, also, signer)
    with bodies.new() as writer:
        async for piece in body.pieces(request):
            writer.write(piece)
        content = writer.finish()
    try:
        body.check(content.size, bytes.fromhex(content.md5))
    except CloudError:
        bodies.release(content.segments)
        raise
    used = expected.algorithm or checksums.DEFAULT
    return Stored(
        content=content,
        checksums={used: body.value(used)} if used in body.digests else {},
        extra=body.value(extra) if extra else "",
    )


@dataclass(slots=True)
class _Body:
    """A body while it arrives, and its expected size and checksums."""

    expected: _Expected
    extra: str = ""
    signer: Signer | None = None
    digests: dict[str, checksums.Digest] = field(init=False)
    trailers: dict[str, str] = field(default_factory=dict)
    sent: hashlib._Hash = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for name in (self.expected.algorithm, self.extra) if name)
        self.digests = {name: checksums.new_digest(name) for name in names}

    def value(self, algorithm: str) -> str:
        return checksums.encoded(self.digests[algorithm])

    async def pieces(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The decoded body, counted and hashed."""
        async for piece in _decoded(request, self.trailers, self.signer):
            for digest in self.digests.values():
                digest.update(piece)
            if self.expected.sha256:
                self.sent.update(piece)
            yield piece

    def check(self, size: int, md5: bytes) -> None:
        """Compare with the headers and trailers. Raises as `receive`."""
        expected = self.expected
        if expected.size not in ("", str(size)):
            raise refused("IncompleteBody", _INCOMPLETE)
        if expected.md5 and base64.b64encode(md5).decode() != expected.md5:
            raise refused(
                "BadDigest", "The Content-MD5 you specified did not match what we received."
            )
        if expected.sha256 and self.sent.hexdigest() != expected.sha256:
            message = "The provided 'x-amz-content-sha256' header does not match what was computed."
            raise refused("XAmzContentSHA256Mismatch", message)
        if expected.algorithm:
            self._check_checksum(expected)

    def _check_checksum(self, expected: _Expected) -> None:
        value = expected.value or self.trailers.get(_CHECKSUM + expected.algorithm, "")
        if not value:
            raise refused(
                "MalformedTrailerError",
                "The request contained trailing data that was not well-formed or did not conform to"
                " our published schema.",
            )
        checksums.compare(expected.algorithm, value, self.value(expected.algorithm))


_INCOMPLETE = "You did not provide the number of bytes specified by the Content-Length HTTP header"


def _expected(request: web.BaseRequest, *, checked: bool = True) -> _Expected:
    headers = request.headers
    algorithm, value = given_checksum(headers) if checked else ("", "")
    md5 = headers.get("Content-MD5")
    if md5 is not None and not _is_md5(md5):
        raise refused("InvalidDigest", "The Content-MD5 you specified is not valid.")
    kind = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    is_hash = _SHA256.fullmatch(kind) is not None
    if not is_hash and kind != "UNSIGNED-PAYLOAD" and not kind.startswith("STREAMING-"):
        raise refused(
            "InvalidArgument",
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER,"
            " STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a"
            " valid sha256 value.",
        )
    return _Expected(
        algorithm=algorithm,
        value=value,
        sha256=kind if is_hash else "",
        md5=md5 or "",
        size=headers.get("x-amz-decoded-content-length", ""),
    )


def given_checksum(headers: Mapping[str, str]) -> tuple[str, str]:
    """Algorithm and value of the client's checksum; no value while it comes in a trailer."""
    given = {
        name.lower().removeprefix(_CHECKSUM): value
        for name, value in headers.items()
        if name.lower().startswith(_CHECKSUM)
    }
    given = {name: value for name, value in given.items() if name not in _NOT_VALUES}
    trailer = headers.get("x-amz-trailer", "").strip().lower()
    if trailer.startswith(_CHECKSUM):
        given.setdefault(trailer.removeprefix(_CHECKSUM), "")
    if len(given) > 1:
        raise refused(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    for name, value in given.items():
        return checksums.known(name), value
    announced = headers.get("x-amz-sdk-checksum-algorithm", "")
    if announced:
        checksums.known(announced)
        raise refused(
            "InvalidRequest",
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or"
            " x-amz-trailer headers were found.",
        )
    return "", ""


def _is_md5(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


async def _decoded(
    request: web.BaseRequest, trailers: dict[str, str], signer: Signer | None
) -> AsyncIterator[bytes]:
    if not _is_chunked(request):
        async for piece in request.content.iter_any():
            yield piece
        return
    decoder = ChunkDecoder(signer)
    async for data in request.content.iter_any():
        for piece in decoder.feed(data):
            yield piece
    decoder.end()
    trailers.update(decoder.trailers)


def _is_chunked(request: web.BaseRequest) -> bool:
    kind = request.headers.get("x-amz-content-sha256", "")
    encodings = request.headers.get("Content-Encoding", "").lower()
    decoded = "x-amz-decoded-content-length" in request.headers
    return kind.startswith("STREAMING-") or ("aws-chunked" in encodings and decoded)

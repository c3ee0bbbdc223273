"""Receiving a request's body, in one piece or aws-chunked, with the checks a client asked for.

Source of aws-chunked: S3 API reference, "Signature calculations for the Authorization header:
transferring payload in multiple chunks", and the same with trailing headers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import StreamReader, web
from aiohttp.http import HttpProcessingError

from corekit.values import Value
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import Content
from local_cloud.server.bodies import FileBodies
from local_cloud.server.s3.xml import BODY_BYTES_MAX
from local_cloud.server.signatures import ChunkSigner

_CHECKSUM = "x-amz-checksum-"
_NOT_ALGORITHMS = frozenset({"mode", "type", "algorithm"})
_SHA256 = "x-amz-content-sha256"
_CHUNK_BYTES = 256 * 1024
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Received(Value):
    """A body that arrived whole and as its headers describe it."""

    md5: str  #: hex
    given: str  #: algorithm of the client's checksum; empty without one
    checksums: Mapping[str, str]  #: by algorithm, base64: the client's, and the one asked for


async def receive_body(
    request: web.BaseRequest,
    bodies: FileBodies,
    algorithm: str = "",
    signer: ChunkSigner | None = None,
) -> tuple[Content, Received]:
    """Stream the body into a file; the caller retains or releases the content.

    `algorithm` is computed besides the client's; without either S3's default is. Chunks must be
    signed by `signer` if there is one. Raises BadDigest, IncompleteBody, InvalidRequest,
    MalformedTrailerError, MissingContentLength, XAmzContentSHA256Mismatch.
    """
    if not {"Content-Length", "Transfer-Encoding"} & request.headers.keys():
        message = "You must provide the Content-Length HTTP header."
        raise refused("MissingContentLength", message)
    given = _given_checksum(request.headers)
    also = algorithm or ("" if given[0] else checksums.DEFAULT)
    with bodies.new() as writer:
        received = await _receive(request, writer.write, given, also, signer)
        return writer.finish(received.md5), received


async def read_document(request: web.BaseRequest, *, of_object: bool = False) -> bytes:
    """A request document, whole; above 4 MiB MaxMessageLengthExceeded, else as `receive_body`.

    With `of_object` the checksum headers are about an object, not about these bytes.
    """
    if request.headers.get(_SHA256, "").startswith("STREAMING-AWS4-"):
        raise not_implemented("a document that is signed in chunks")
    document = bytearray()

    def write(piece: bytes) -> None:
        document.extend(piece)
        if len(document) > BODY_BYTES_MAX:
            raise refused("MaxMessageLengthExceeded", "Your request was too large.")

    await _receive(request, write, ("", "") if of_object else _given_checksum(request.headers))
    return bytes(document)


async def _receive(
    request: web.BaseRequest,
    write: Callable[[bytes], None],
    given: tuple[str, str],
    also: str = "",
    signer: ChunkSigner | None = None,
) -> Received:
    headers = request.headers
    wanted_md5, wanted_sha256 = headers.get("Content-MD5"), headers.get(_SHA256, "")
    is_hashed = len(wanted_sha256) == 64  # else it is unsigned, or signed in chunks
    if headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # boto3 waits a second for it
    digests = {name: checksums.new_digest(name) for name in {given[0], also} - {""}}
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    trailers: dict[str, str] = {}
    size = 0
    async for piece in _pieces(request, trailers, signer):
        size += len(piece)
        md5.update(piece)
        if is_hashed:
            sha256.update(piece)
        for digest in digests.values():
            digest.update(piece)
        write(piece)
    if headers.get("x-amz-decoded-content-length", str(size)) != str(size):
        raise _incomplete()
    if wanted_md5 is not None and base64.b64encode(md5.digest()).decode() != wanted_md5:
        raise refused("BadDigest", "The Content-MD5 you specified did not match what we received.")
    if is_hashed and sha256.hexdigest() != wanted_sha256:
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise refused("XAmzContentSHA256Mismatch", message)
    values = {name: checksums.encoded(digest) for name, digest in digests.items()}
    _check_given(given, values, trailers)
    return Received(md5=md5.hexdigest(), given=given[0], checksums=values)


def _check_given(
    given: tuple[str, str], values: Mapping[str, str], trailers: Mapping[str, str]
) -> None:
    algorithm, value = given
    if algorithm:
        value = value or trailers.get(_CHECKSUM + algorithm, "")
        if not value:
            message = "The request contained trailing data that was not well-formed."
            raise refused("MalformedTrailerError", message)
        checksums.compare(algorithm, value, values[algorithm])


def _given_checksum(headers: Mapping[str, str]) -> tuple[str, str]:
    """Algorithm and value of the client's checksum; no value while it comes in a trailer."""
    names = [*headers, headers.get("x-amz-trailer", "").strip()]
    lower = [name.lower() for name in names if name.lower().startswith(_CHECKSUM)]
    algorithms = {name.removeprefix(_CHECKSUM) for name in lower} - _NOT_ALGORITHMS
    if len(algorithms) > 1:
        raise refused("InvalidRequest", "Expecting a single x-amz-checksum- header.")
    if not algorithms:
        return "", ""
    algorithm = checksums.algorithm_of(algorithms.pop())
    return algorithm, headers.get(_CHECKSUM + algorithm, "")


async def _pieces(
    request: web.BaseRequest, trailers: dict[str, str], signer: ChunkSigner | None
) -> AsyncIterator[bytes]:
    """The body without its chunks, if it has any; then `trailers` is filled."""
    headers = request.headers
    encoded = "aws-chunked" in headers.get("Content-Encoding", "").lower()
    if headers.get(_SHA256, "").startswith("STREAMING-") or (
        encoded and "x-amz-decoded-content-length" in headers
    ):
        async for piece in _without_chunks(request.content, trailers, signer):
            yield piece
        return
    async for piece in request.content.iter_any():
        yield piece


async def _without_chunks(
    body: StreamReader, trailers: dict[str, str], signer: ChunkSigner | None
) -> AsyncIterator[bytes]:
    """The payload of an aws-chunked body. A piece is given before its signature was compared: use
    nothing of it before the end.
    """
    size = -1
    while size:
        size, signature = _chunk_head(await _line(body))
        digest = hashlib.sha256()
        left = size
        while left:
            piece = await body.read(min(left, _CHUNK_BYTES))
            if not piece:
                raise _incomplete()
            left -= len(piece)
            if signer is not None:
                digest.update(piece)
            yield piece
        if signer is not None:
            _compare(signature, signer.chunk(digest.hexdigest()))
        if size and await _line(body):
            raise _broken()
    lines = b""
    while line := await _line(body):
        name, _, value = (text.strip() for text in line.decode("latin-1").partition(":"))
        trailers[name.lower()] = value
        if name.lower() != _TRAILER_SIGNATURE:
            lines += f"{name.lower()}:{value}\n".encode("latin-1")
    given = trailers.pop(_TRAILER_SIGNATURE, "")
    if signer is not None and lines:
        _compare(given.encode("latin-1"), signer.trailer(lines))


def _chunk_head(line: bytes) -> tuple[int, bytes]:
    size, _, extension = line.partition(b";")
    if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
        raise _broken()
    return int(size, 16), extension.removeprefix(b"chunk-signature=")


async def _line(body: StreamReader) -> bytes:
    try:
        line = await body.readuntil(b"\r\n")
    except (ValueError, HttpProcessingError):  # longer than the reader's buffer
        raise _broken() from None
    if not line.endswith(b"\r\n"):
        raise _incomplete()
    return line.removesuffix(b"\r\n")


def _compare(given: bytes, wanted: str) -> None:
    if not hmac.compare_digest(given.strip(), wanted.encode()):
        message = "The chunk or trailer signature we calculated does not match yours."
        raise CloudError("SignatureDoesNotMatch", 403, message)


def _incomplete() -> CloudError:
    return refused("IncompleteBody", "The request body terminated unexpectedly")


def _broken() -> CloudError:
    return refused("InvalidRequest", "The body is not valid aws-chunked content")

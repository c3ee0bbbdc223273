"""Objects: put, copy, get with ranges and conditions, head, delete."""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import urllib.parse
from collections.abc import Mapping, Sequence

from aiohttp import web

from corekit.values import replace
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import Content, Segment, cut
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.s3.object_version import (
    Attributes,
    Condition,
    ObjectVersion,
    etag_matches,
    precondition_failed,
)
from local_cloud.model.weather import LostAnswerError
from local_cloud.server.s3 import xml
from local_cloud.server.s3.call import Call, number
from local_cloud.server.s3.metadata import (
    META,
    VERSION_HEADER,
    attributes_of,
    checksum_fields,
    version_header,
)
from local_cloud.server.s3.payload import read_document, receive_body

_SMALL_BYTES = 256 * 1024  #: objects up to here are sent by one write
#: headers with which a copy of an object to itself changes something
_CHANGING = ("x-amz-storage-class", "x-amz-website-redirect-location", "x-amz-checksum-algorithm")


async def put(call: Call) -> web.Response:
    """PutObject and CopyObject. The condition is checked when the body is complete, as S3 does."""
    if "x-amz-copy-source" in call.headers:
        return await _copy(call)
    condition = condition_of(call)
    content, received = await receive_body(call.request, call.bodies, signer=call.chunks)
    used = received.given or checksums.DEFAULT
    values = {used: received.checksums[used]}
    try:
        made = call.cloud.put_object(
            call.now_s,
            call.bucket_name,
            call.key,
            content,
            attributes_of(call.headers, values),
            condition,
        )
    except CloudError as error:
        if not isinstance(error, LostAnswerError):  # after which the object is there
            call.bodies.release(content.segments)
        raise
    headers = {"ETag": f'"{made.etag}"', **version_header(made)}
    return web.Response(headers=headers | checksums.headers(values, ""))


async def _copy(call: Call) -> web.Response:
    """The new version shares the old one's bytes."""
    source, location = source_of(call)
    if location == (call.bucket_name, call.key, "") and not _changes(call):
        raise refused("InvalidRequest", "A copy of an object to itself must change something.")
    call.bodies.retain(source.segments)  # a delete meanwhile must not take them away
    try:
        content, attributes = await _copied_content(call, source)
        made = call.cloud.put_object(
            call.now_s,
            call.bucket_name,
            call.key,
            content,
            attributes,
            condition_of(call),
            event="ObjectCreated:Copy",
        )
    finally:
        call.bodies.release(source.segments)
    answer = xml.document(
        "CopyObjectResult",
        {
            "LastModified": iso_time(made.modified_at_s),
            "ETag": f'"{made.etag}"',
            **checksum_fields(made),
        },
    )
    answer.headers.update(version_header(made))
    answer.headers["x-amz-copy-source-version-id"] = source.version_id
    return answer


def _changes(call: Call) -> bool:
    encrypts = any(n.lower().startswith("x-amz-server-side-encryption") for n in call.headers)
    return _replaces_metadata(call) or encrypts or any(name in call.headers for name in _CHANGING)


def _replaces_metadata(call: Call) -> bool:
    return call.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"


async def _copied_content(call: Call, source: ObjectVersion) -> tuple[Content, Attributes]:
    """The source's bytes, one piece now even if they were sent in parts, and what belongs to them:
    the source's or the request's.
    """
    old = source.attributes
    given = call.headers.get("x-amz-checksum-algorithm", "")
    algorithm = (
        checksums.algorithm_of(given) if given else next(iter(old.checksums), checksums.DEFAULT)
    )
    md5, values = source.etag, old.checksums
    if source.part_sizes or values.keys() != {algorithm}:
        md5, value = await digests_of(call, source.segments, algorithm)
        values = {algorithm: value}
    content = Content(segments=source.segments, size=source.size, md5=md5)
    if _replaces_metadata(call):
        return content, attributes_of(call.headers, values)
    return content, replace(old, checksums=values, checksum_type="")


async def digests_of(call: Call, segments: Sequence[Segment], algorithm: str) -> tuple[str, str]:
    """md5 in hex and checksum in base64 of stored bytes; computed in a thread."""
    md5, checksum = hashlib.md5(usedforsecurity=False), checksums.new_digest(algorithm)

    def run() -> None:
        for chunk in call.bodies.chunks(segments):
            md5.update(chunk)
            checksum.update(chunk)

    call.bodies.retain(segments)  # a delete meanwhile must not take them away
    try:
        await asyncio.to_thread(run)
    finally:
        call.bodies.release(segments)
    return md5.hexdigest(), checksums.encoded(checksum)


def source_of(call: Call) -> tuple[ObjectVersion, tuple[str, str, str]]:
    """The version that `x-amz-copy-source` names, under its conditions; and the names in it."""
    path, _, query = call.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
    if not bucket or not key:
        raise refused("InvalidArgument", "Copy Source must mention the source bucket and key")
    version_id = dict(urllib.parse.parse_qsl(query)).get("versionId", "")
    source = call.cloud.read_object(call.now_s, bucket, key, version_id)
    wanted = call.headers.get("x-amz-copy-source-if-match")
    if wanted is not None and not etag_matches(wanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-Match")
    unwanted = call.headers.get("x-amz-copy-source-if-none-match")
    if unwanted is not None and etag_matches(unwanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-None-Match")
    return source, (bucket, key, version_id)


def condition_of(call: Call) -> Condition:
    """The condition on a write. Raises NotImplemented for If-None-Match with an etag, as S3."""
    none_match = call.headers.get("If-None-Match")
    if none_match is not None and none_match != "*":
        raise not_implemented("If-None-Match with an etag on a write")
    return Condition(
        if_match=call.headers.get("If-Match", ""), if_none_match=none_match is not None
    )


# --- reading


async def get(call: Call) -> web.StreamResponse:
    """GetObject and HeadObject."""
    version_id = call.query.get("versionId", "")
    version = call.cloud.read_object(call.now_s, call.bucket_name, call.key, version_id)
    _check_read(version, call)
    start, stop = _range(version, call)
    headers = _headers(version, call.query)
    if call.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED" and (
        (start, stop) == (0, version.size)  # a range and a part have no checksum
    ):
        headers |= checksums.headers(version.attributes.checksums, version.attributes.checksum_type)
    status = 200
    if (start, stop) != (0, version.size):
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{version.size}"
    headers["Content-Length"] = str(stop - start)
    if call.request.method == "HEAD":
        return web.Response(status=status, headers=headers)
    segments = cut(version.segments, start, stop)
    if stop - start <= _SMALL_BYTES:
        return web.Response(status=status, headers=headers, body=call.bodies.read(segments))
    response = web.StreamResponse(status=status, headers=headers | call.always)
    call.bodies.retain(segments)  # a delete meanwhile must not cut this answer off
    try:
        await response.prepare(call.request)
        for chunk in call.bodies.chunks(segments):
            await response.write(chunk)
        await response.write_eof()
    finally:
        call.bodies.release(segments)
    return response


def _headers(version: ObjectVersion, query: Mapping[str, str]) -> dict[str, str]:
    attributes = version.attributes
    headers = {
        "Content-Type": attributes.content_type,
        "ETag": f'"{version.etag}"',
        "Last-Modified": email.utils.formatdate(version.modified_at_s, usegmt=True),
        "Accept-Ranges": "bytes",
        **version_header(version),
        **attributes.headers,
    }
    headers |= {META + name: text for name, text in attributes.metadata.items()}
    if version.part_sizes and "partNumber" in query:
        headers["x-amz-mp-parts-count"] = str(len(version.part_sizes))
    for name, value in query.items():
        if name.startswith("response-"):
            if not value.isprintable():
                raise refused("InvalidArgument", f"{name} is not a header's value")
            headers[name.removeprefix("response-").title()] = value
    return headers


def _check_read(version: ObjectVersion, call: Call) -> None:
    wanted, unwanted = call.headers.get("If-Match"), call.headers.get("If-None-Match")
    modified_at_s = int(version.modified_at_s)
    if wanted is not None and not etag_matches(wanted, version.etag):
        raise precondition_failed("If-Match")
    since, until = call.request.if_modified_since, call.request.if_unmodified_since
    not_modified = since is not None and modified_at_s <= since.timestamp()
    if unwanted is not None:
        not_modified = etag_matches(unwanted, version.etag)
    if not_modified:
        raise web.HTTPNotModified(headers={"ETag": f'"{version.etag}"'})
    if wanted is None and until is not None and modified_at_s > until.timestamp():
        raise precondition_failed("If-Unmodified-Since")


def _range(version: ObjectVersion, call: Call) -> tuple[int, int]:
    """First byte and the one behind the last. An unreadable Range is ignored, as S3 does."""
    if "partNumber" in call.query:
        return _part_range(version, number(call.query, "partNumber", 1))
    if "Range" not in call.headers:
        return 0, version.size
    try:
        start, stop, _ = call.request.http_range.indices(version.size)
    except ValueError:
        return 0, version.size
    if start >= stop:
        raise refused("InvalidRange", "The requested range is not satisfiable")
    return start, stop


def _part_range(version: ObjectVersion, part: int) -> tuple[int, int]:
    sizes = version.part_sizes or (version.size,)
    if not 1 <= part <= len(sizes):
        raise refused("InvalidPartNumber", "The requested partnumber is not satisfiable")
    start = sum(sizes[: part - 1])
    return start, start + sizes[part - 1]


# --- deleting


async def delete(call: Call) -> web.Response:
    """DeleteObject."""
    version_id = call.query.get("versionId", "")
    done = call.cloud.delete_object(
        call.now_s,
        call.bucket_name,
        call.key,
        version_id,
        call.headers.get("If-Match", ""),
    )
    headers: dict[str, str] = {}
    if call.bucket.versioning or version_id:
        headers[VERSION_HEADER] = done.version_id
    if done.marker:
        headers["x-amz-delete-marker"] = "true"
    return web.Response(status=204, headers=headers)


async def delete_many(call: Call) -> web.Response:
    """DeleteObjects: up to 1,000, each with its own result."""
    root = xml.parse(await read_document(call.request), "Delete")
    entries = root.findall("Object")
    if not 1 <= len(entries) <= 1000:
        raise xml.malformed()
    quiet = xml.value(root, "Quiet").lower() == "true"
    deleted: list[dict[str, object]] = []
    errors: list[dict[str, object]] = []
    for entry in entries:
        key, version_id = xml.value(entry, "Key"), xml.value(entry, "VersionId")
        named = {"Key": key, "VersionId": version_id or None}
        try:
            done = call.cloud.delete_object(
                call.now_s, call.bucket_name, key, version_id, xml.value(entry, "ETag")
            )
        except CloudError as error:
            errors.append({**named, "Code": error.code, "Message": error.message})
            continue
        marker = {"DeleteMarker": True, "DeleteMarkerVersionId": done.version_id}
        deleted.append({**named, **(marker if done.marker else {})})
    return xml.document("DeleteResult", {"Deleted": [] if quiet else deleted, "Error": errors})

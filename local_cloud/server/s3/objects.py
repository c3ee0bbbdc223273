"""Objects: put, copy, get with ranges and conditions, head, delete, tags."""

from __future__ import annotations

import asyncio
import hashlib
import re
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
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.bodies.payload import read_small, receive
from local_cloud.server.s3.dates import header_time_s, http_time
from local_cloud.server.s3.object_attributes import VERSION_HEADER, checksum_xml, version_header
from local_cloud.server.s3.object_metadata import META, attributes_of, read_tags
from local_cloud.server.s3.target import Target, number

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_SMALL_BYTES = 256 * 1024  #: objects up to here are sent by one write


async def put(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """PutObject. The condition is checked when the body is complete, as S3 does."""
    context.cloud.bucket(target.bucket)
    condition = condition_of(request)
    stored = await receive(request, context.bodies, signer=target.chunks)
    attributes = attributes_of(request.headers, stored.checksums)
    made = keep(context, target, stored.content, attributes, condition)
    headers = {"ETag": f'"{made.etag}"', **version_header(made)}
    return web.Response(headers=headers | checksums.headers(stored.checksums, ""))


def keep(
    context: Context,
    target: Target,
    content: Content,
    attributes: Attributes,
    condition: Condition,
    *,
    event: str = "ObjectCreated:Put",
) -> ObjectVersion:
    """Make received content an object, or drop it when the cloud refuses."""
    try:
        return context.cloud.put_object(
            context.now_s(), target.bucket, target.key, content, attributes, condition, event=event
        )
    except LostAnswerError:
        raise  # the object is there
    except CloudError:
        context.bodies.release(content.segments)
        raise


async def copy(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CopyObject: the new version shares the old one's bytes."""
    source, location = source_of(context, request)
    if location == (target.bucket, target.key, "") and not _changes(request):
        raise refused(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without"
            " changing the object's metadata, storage class, website redirect location or"
            " encryption attributes.",
        )
    context.bodies.retain(source.segments)  # a delete meanwhile must not take them away
    try:
        made = await _copied(context, target, source, request)
    finally:
        context.bodies.release(source.segments)
    answer = xml.document(
        "CopyObjectResult",
        xml.text("LastModified", iso_time(made.modified_at_s)),
        xml.text("ETag", f'"{made.etag}"'),
        *checksum_xml(made),
    )
    answer.headers.update(version_header(made))
    answer.headers["x-amz-copy-source-version-id"] = source.version_id
    return answer


async def _copied(
    context: Context, target: Target, source: ObjectVersion, request: web.BaseRequest
) -> ObjectVersion:
    """The new version; what was sent in parts is one piece now, whose etag is its md5."""
    attributes = await _copied_attributes(context, source, request)
    etag = await md5_of(context, source.segments) if source.part_sizes else source.etag
    return context.cloud.put_object(
        context.now_s(),
        target.bucket,
        target.key,
        Content(segments=source.segments, size=source.size, md5=etag),
        attributes,
        condition_of(request),
        event="ObjectCreated:Copy",
    )


def _changes(request: web.BaseRequest) -> bool:
    """Whether a copy asks for anything but the same object again."""
    if _replaces(request, "metadata"):
        return True
    names = ("x-amz-storage-class", "x-amz-website-redirect-location", "x-amz-checksum-algorithm")
    encrypts = any(n.lower().startswith("x-amz-server-side-encryption") for n in request.headers)
    return encrypts or any(name in request.headers for name in names)


def _replaces(request: web.BaseRequest, kind: str) -> bool:
    """Whether a copy takes its metadata or tags (`kind`) from the request, not from the source."""
    return request.headers.get(f"x-amz-{kind}-directive", "COPY").upper() == "REPLACE"


async def _copied_attributes(
    context: Context, source: ObjectVersion, request: web.BaseRequest
) -> Attributes:
    """The source's or the request's; a copy is one piece, so its checksum is of all its bytes."""
    old = source.attributes
    given = request.headers.get("x-amz-checksum-algorithm", "")
    algorithm = checksums.known(given) if given else next(iter(old.checksums), checksums.DEFAULT)
    found = dict(old.checksums)
    if found.keys() != {algorithm} or old.checksum_type == checksums.COMPOSITE:
        found = {algorithm: await checksum_of(context, source.segments, algorithm)}
    fresh = attributes_of(request.headers, found)
    if not _replaces(request, "metadata"):
        fresh = replace(old, checksums=found, checksum_type="", tags=fresh.tags, acl=fresh.acl)
    if not _replaces(request, "tagging"):
        fresh = replace(fresh, tags=old.tags)
    return fresh


async def checksum_of(context: Context, segments: Sequence[Segment], algorithm: str) -> str:
    """The checksum of stored bytes, base64; computed in a thread."""
    digest = checksums.new_digest(algorithm)
    await _feed(context, segments, digest)
    return checksums.encoded(digest)


async def md5_of(context: Context, segments: Sequence[Segment]) -> str:
    """The etag of stored bytes as one piece, hex; computed in a thread."""
    digest = hashlib.md5(usedforsecurity=False)
    await _feed(context, segments, digest)
    return digest.hexdigest()


async def _feed(
    context: Context, segments: Sequence[Segment], digest: hashlib._Hash | checksums.Digest
) -> None:
    def run() -> None:
        for chunk in context.bodies.chunks(segments):
            digest.update(chunk)

    context.bodies.retain(segments)  # a delete meanwhile must not take them away
    try:
        await asyncio.to_thread(run)
    finally:
        context.bodies.release(segments)


def source_of(
    context: Context, request: web.BaseRequest
) -> tuple[ObjectVersion, tuple[str, str, str]]:
    """The version that `x-amz-copy-source` names, under its conditions; and the names in it."""
    path, _, query = request.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
    if not bucket or not key:
        raise refused("InvalidArgument", "Copy Source must mention the source bucket and key")
    version_id = dict(urllib.parse.parse_qsl(query)).get("versionId", "")
    source = context.cloud.read_object(context.now_s(), bucket, key, version_id)
    wanted = request.headers.get("x-amz-copy-source-if-match")
    if wanted is not None and not etag_matches(wanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-Match")
    unwanted = request.headers.get("x-amz-copy-source-if-none-match")
    if unwanted is not None and etag_matches(unwanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-None-Match")
    return source, (bucket, key, version_id)


async def get(context: Context, target: Target, request: web.BaseRequest) -> web.StreamResponse:
    """GetObject and HeadObject."""
    version_id = target.query.get("versionId", "")
    version = context.cloud.read_object(context.now_s(), target.bucket, target.key, version_id)
    headers = _headers(version, request, target.query)
    _check_read(version, request, headers)
    start, stop = _range(version, request, target.query)
    status = 200
    if (start, stop) != (0, version.size):
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{version.size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return web.Response(status=status, headers=headers)
    segments = cut(version.segments, start, stop)
    if stop - start <= _SMALL_BYTES:
        return web.Response(status=status, headers=headers, body=context.bodies.read(segments))
    response = web.StreamResponse(status=status, headers=headers | target.always)
    context.bodies.retain(segments)  # a delete meanwhile must not cut this answer off
    try:
        await response.prepare(request)
        for chunk in context.bodies.chunks(segments):
            await response.write(chunk)
        await response.write_eof()
    finally:
        context.bodies.release(segments)
    return response


def delete(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """DeleteObject."""
    done = context.cloud.delete_object(
        context.now_s(),
        target.bucket,
        target.key,
        target.query.get("versionId", ""),
        request.headers.get("If-Match", ""),
    )
    headers: dict[str, str] = {}
    if context.cloud.bucket(target.bucket).versioning or target.query.get("versionId"):
        headers[VERSION_HEADER] = done.version_id
    if done.marker:
        headers["x-amz-delete-marker"] = "true"
    return web.Response(status=204, headers=headers)


async def delete_many(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """DeleteObjects: up to 1,000, each with its own result."""
    context.cloud.bucket(target.bucket)
    root = xml.parse(await read_small(request), "Delete")
    entries = root.findall("Object")
    if not 1 <= len(entries) <= 1000:
        raise xml.malformed()
    quiet = xml.value(root, "Quiet").lower() == "true"
    results: list[str] = []
    for entry in entries:
        key, version_id = xml.value(entry, "Key"), xml.value(entry, "VersionId")
        named = xml.text("Key", key) + (xml.text("VersionId", version_id) if version_id else "")
        try:
            done = context.cloud.delete_object(
                context.now_s(), target.bucket, key, version_id, xml.value(entry, "ETag")
            )
        except CloudError as error:
            code, message = xml.text("Code", error.code), xml.text("Message", error.message)
            results.append(xml.element("Error", named, code, message))
            continue
        marker = xml.text("DeleteMarker", True) if done.marker else ""
        made = xml.text("DeleteMarkerVersionId", done.version_id) if done.marker else ""
        if not quiet:
            results.append(xml.element("Deleted", named, marker, made))
    return xml.document("DeleteResult", *results)


async def tagging(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """GET, PUT and DELETE of an object's tags."""
    bucket = context.cloud.bucket(target.bucket)
    version = bucket.get(target.key, target.query.get("versionId", ""))
    if request.method == "GET":
        tags = [
            xml.element("Tag", xml.text("Key", key), xml.text("Value", value))
            for key, value in version.attributes.tags.items()
        ]
        return xml.document("Tagging", xml.element("TagSet", *tags))
    if request.method == "DELETE":
        bucket.tag(version, {})
        return web.Response(status=204)
    if request.method != "PUT":
        raise not_implemented(f"{request.method} of an object's tags")
    bucket.tag(version, read_tags(await read_small(request)))
    return web.Response(status=200)


# --- headers


def condition_of(request: web.BaseRequest) -> Condition:
    """The condition on a write. Raises NotImplemented for If-None-Match with an etag, as S3."""
    none_match = request.headers.get("If-None-Match")
    if none_match is not None and none_match != "*":
        raise not_implemented("If-None-Match with an etag on a write")
    return Condition(
        if_match=request.headers.get("If-Match", ""), if_none_match=none_match is not None
    )


def _headers(
    version: ObjectVersion, request: web.BaseRequest, query: Mapping[str, str]
) -> dict[str, str]:
    attributes = version.attributes
    headers = {
        "Content-Type": attributes.content_type,
        "ETag": f'"{version.etag}"',
        "Last-Modified": http_time(version.modified_at_s),
        "Accept-Ranges": "bytes",
        **version_header(version),
        **attributes.headers,
    }
    headers |= {META + name: text for name, text in attributes.metadata.items()}
    if attributes.tags:
        headers["x-amz-tagging-count"] = str(len(attributes.tags))
    if version.part_sizes and "partNumber" in query:
        headers["x-amz-mp-parts-count"] = str(len(version.part_sizes))
    if request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers |= _checksum_headers(version, request, query)
    for name, value in query.items():
        if name.startswith("response-"):
            if not value.isprintable():
                raise refused("InvalidArgument", f"{name} is not a header's value")
            headers[name.removeprefix("response-").title()] = value
    return headers


def _checksum_headers(
    version: ObjectVersion, request: web.BaseRequest, query: Mapping[str, str]
) -> dict[str, str]:
    """Of the whole object, or of the one part that is asked for; a range has none."""
    attributes = version.attributes
    if "partNumber" in query and version.part_checksums:
        part = number(dict(query), "partNumber", 1)
        algorithm = next(iter(attributes.checksums))
        if 1 <= part <= len(version.part_checksums):
            value = version.part_checksums[part - 1]
            return checksums.headers({algorithm: value}, attributes.checksum_type)
        return {}
    if "Range" in request.headers or ("partNumber" in query and version.part_sizes):
        return {}
    return checksums.headers(attributes.checksums, attributes.checksum_type)


def _check_read(
    version: ObjectVersion, request: web.BaseRequest, headers: Mapping[str, str]
) -> None:
    wanted, unwanted = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if wanted is not None and not etag_matches(wanted, version.etag):
        raise precondition_failed("If-Match")
    not_modified = unwanted is not None and etag_matches(unwanted, version.etag)
    since = header_time_s(request, "If-Modified-Since")
    if unwanted is None and since is not None and int(version.modified_at_s) <= since:
        not_modified = True
    if not_modified:
        raise web.HTTPNotModified(headers={"ETag": headers["ETag"]})
    until = header_time_s(request, "If-Unmodified-Since")
    if wanted is None and until is not None and int(version.modified_at_s) > until:
        raise precondition_failed("If-Unmodified-Since")


def _range(
    version: ObjectVersion, request: web.BaseRequest, query: Mapping[str, str]
) -> tuple[int, int]:
    """First byte and the one behind the last. An unreadable Range is ignored, as S3 does."""
    if "partNumber" in query:
        return _part_range(version, number(dict(query), "partNumber", 1))
    match = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if match is None or match.groups() == ("", ""):
        return 0, version.size
    first, last = match.groups()
    if not first:
        start, stop = max(version.size - int(last), 0), version.size
    else:
        start, stop = int(first), min(int(last) + 1, version.size) if last else version.size
    if start >= stop:
        raise CloudError("InvalidRange", 416, "The requested range is not satisfiable")
    return start, stop


def _part_range(version: ObjectVersion, part: int) -> tuple[int, int]:
    sizes = version.part_sizes or (version.size,)
    if not 1 <= part <= len(sizes):
        raise CloudError("InvalidPartNumber", 416, "The requested partnumber is not satisfiable")
    start = sum(sizes[: part - 1])
    return start, start + sizes[part - 1]

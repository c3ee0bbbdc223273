"""Objects: put, copy, get with ranges and conditions, head, delete, tags."""

from __future__ import annotations

import email.utils
import re
import urllib.parse
from collections.abc import Mapping

from aiohttp import web

from local_cloud.model.body import Content, cut
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.notifications import iso_time
from local_cloud.model.object_version import (
    Attributes,
    Condition,
    ObjectVersion,
    etag_matches,
    precondition_failed,
)
from local_cloud.server.context import Context
from local_cloud.server.s3 import xml
from local_cloud.server.s3.payload import read_small, receive
from local_cloud.server.s3.target import Target, number

_META = "x-amz-meta-"
#: kept with an object and given back by GET and HEAD
_KEPT = (
    "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires",
    "x-amz-storage-class", "x-amz-website-redirect-location",
)  # fmt: skip
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_SMALL_BYTES = 256 * 1024  #: objects up to here are sent by one write


async def put(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """PutObject. The condition is checked when the body is complete, as S3 does."""
    context.cloud.bucket(target.bucket)
    condition = condition_of(request)
    stored = await receive(request, context.bodies)
    attributes = attributes_of(request, stored.checksums)
    made = keep(context, target, stored.content, attributes, condition)
    headers = {"ETag": f'"{made.etag}"', **_version_header(made)}
    headers |= {f"x-amz-checksum-{name}": text for name, text in stored.checksums.items()}
    return web.Response(headers=headers)


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
    except CloudError:
        context.bodies.release(content.segments)
        raise


async def copy(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CopyObject: the new version shares the old one's bytes."""
    source = source_of(context, request)
    attributes = source.attributes
    if request.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE":
        attributes = attributes_of(request, source.attributes.checksums)
    content = Content(segments=source.segments, size=source.size, md5=source.etag)
    made = context.cloud.put_object(
        context.now_s(),
        target.bucket,
        target.key,
        content,
        attributes,
        condition_of(request),
        event="ObjectCreated:Copy",
    )
    answer = xml.document(
        "CopyObjectResult",
        xml.text("LastModified", iso_time(made.modified_at_s)),
        xml.text("ETag", f'"{made.etag}"'),
    )
    answer.headers.update(_version_header(made))
    answer.headers["x-amz-copy-source-version-id"] = source.version_id
    return answer


def source_of(context: Context, request: web.BaseRequest) -> ObjectVersion:
    """The version that `x-amz-copy-source` names, under its conditions."""
    path, _, query = request.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
    if not bucket or not key:
        raise refused("InvalidArgument", "Copy Source must mention the source bucket and key")
    version_id = dict(urllib.parse.parse_qsl(query)).get("versionId", "")
    source = context.cloud.bucket(bucket).get(key, version_id)
    wanted = request.headers.get("x-amz-copy-source-if-match")
    if wanted is not None and not etag_matches(wanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-Match")
    unwanted = request.headers.get("x-amz-copy-source-if-none-match")
    if unwanted is not None and etag_matches(unwanted, source.etag):
        raise precondition_failed("x-amz-copy-source-If-None-Match")
    return source


async def get(context: Context, target: Target, request: web.BaseRequest) -> web.StreamResponse:
    """GetObject and HeadObject."""
    bucket = context.cloud.bucket(target.bucket)
    version = bucket.get(target.key, target.query.get("versionId", ""))
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
        headers["x-amz-version-id"] = done.version_id
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
    root = xml.parse(await read_small(request), "Tagging")
    tags_given = {xml.value(t, "Key"): xml.value(t, "Value") for t in root.iterfind("TagSet/Tag")}
    bucket.tag(version, tags_given)
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


def attributes_of(request: web.BaseRequest, checksums: Mapping[str, str]) -> Attributes:
    """What the request's headers say about the object."""
    headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
    encodings = [e.strip() for e in headers.pop("Content-Encoding", "").split(",")]
    encoding = ",".join(e for e in encodings if e and e != "aws-chunked")
    if encoding:
        headers["Content-Encoding"] = encoding
    return Attributes(
        content_type=request.headers.get("Content-Type") or "binary/octet-stream",
        metadata={
            name.lower().removeprefix(_META): value
            for name, value in request.headers.items()
            if name.lower().startswith(_META)
        },
        headers=headers,
        tags=dict(
            urllib.parse.parse_qsl(request.headers.get("x-amz-tagging", ""), keep_blank_values=True)
        ),
        checksums=checksums,
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
        **_version_header(version),
        **attributes.headers,
    }
    headers |= {_META + name: text for name, text in attributes.metadata.items()}
    if attributes.tags:
        headers["x-amz-tagging-count"] = str(len(attributes.tags))
    if version.part_sizes and "partNumber" in query:
        headers["x-amz-mp-parts-count"] = str(len(version.part_sizes))
    asked = request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
    if asked and "Range" not in request.headers and "partNumber" not in query:
        headers |= {f"x-amz-checksum-{n}": text for n, text in attributes.checksums.items()}
    for name, value in query.items():
        if name.startswith("response-"):
            if not value.isprintable():
                raise refused("InvalidArgument", f"{name} is not a header's value")
            headers[name.removeprefix("response-").title()] = value
    return headers


def _version_header(version: ObjectVersion) -> dict[str, str]:
    return {} if version.version_id == "null" else {"x-amz-version-id": version.version_id}


def _check_read(
    version: ObjectVersion, request: web.BaseRequest, headers: Mapping[str, str]
) -> None:
    wanted, unwanted = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if wanted is not None and not etag_matches(wanted, version.etag):
        raise precondition_failed("If-Match")
    not_modified = unwanted is not None and etag_matches(unwanted, version.etag)
    since = _time_of(request, "If-Modified-Since")
    if unwanted is None and since is not None and int(version.modified_at_s) <= since:
        not_modified = True
    if not_modified:
        raise web.HTTPNotModified(headers={"ETag": headers["ETag"]})
    until = _time_of(request, "If-Unmodified-Since")
    if wanted is None and until is not None and int(version.modified_at_s) > until:
        raise precondition_failed("If-Unmodified-Since")


def _time_of(request: web.BaseRequest, name: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(request.headers[name]).timestamp()
    except (KeyError, ValueError):
        return None


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


def http_time(at_s: float) -> str:
    """`Sat, 31 Jan 2026 12:00:00 GMT`."""
    return email.utils.formatdate(at_s, usegmt=True)

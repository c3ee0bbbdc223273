"""Multipart uploads."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence

from aiohttp import web

from local_cloud.model.body import Content, Segment, cut
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.listing import PAGE_MAX
from local_cloud.model.notifications import iso_time
from local_cloud.server.bodies import FileBodies
from local_cloud.server.context import Context
from local_cloud.server.s3 import xml
from local_cloud.server.s3.objects import attributes_of, condition_of, source_of
from local_cloud.server.s3.payload import read_small, receive
from local_cloud.server.s3.target import Target, number

_COPY_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


def start(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CreateMultipartUpload."""
    uploads = context.cloud.bucket(target.bucket).uploads
    upload = uploads.start(context.now_s(), target.key, attributes_of(request, {}))
    return xml.document(
        "InitiateMultipartUploadResult",
        xml.text("Bucket", target.bucket),
        xml.text("Key", target.key),
        xml.text("UploadId", upload.id),
    )


async def put_part(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """UploadPart and UploadPartCopy."""
    uploads = context.cloud.bucket(target.bucket).uploads
    upload = uploads.get(target.query["uploadId"], target.key)
    part_number = number(target.query, "partNumber", 0)
    if "x-amz-copy-source" in request.headers:
        content = await _copied(context, request)
        made = uploads.put_part(context.now_s(), upload, part_number, content)
        return xml.document(
            "CopyPartResult",
            xml.text("LastModified", iso_time(made.modified_at_s)),
            xml.text("ETag", f'"{content.md5}"'),
        )
    stored = await receive(request, context.bodies)
    try:
        upload = uploads.get(upload.id, upload.key)  # it may have ended while we received
        uploads.put_part(context.now_s(), upload, part_number, stored.content)
    except CloudError:
        context.bodies.release(stored.content.segments)
        raise
    headers = {"ETag": f'"{stored.content.md5}"'}
    headers |= {f"x-amz-checksum-{name}": text for name, text in stored.checksums.items()}
    return web.Response(headers=headers)


async def _copied(context: Context, request: web.BaseRequest) -> Content:
    source = source_of(context, request)
    first, stop = 0, source.size
    wanted = request.headers.get("x-amz-copy-source-range")
    if wanted is not None:
        match = _COPY_RANGE.fullmatch(wanted)
        if match is None or int(match[2]) >= source.size or int(match[1]) > int(match[2]):
            raise refused("InvalidArgument", "The x-amz-copy-source-range value is not valid")
        first, stop = int(match[1]), int(match[2]) + 1
    segments = cut(source.segments, first, stop)
    context.bodies.retain(segments)
    try:
        md5 = await asyncio.to_thread(_md5_of, context.bodies, segments)
    finally:
        context.bodies.release(segments)
    return Content(segments=segments, size=stop - first, md5=md5)


def _md5_of(bodies: FileBodies, segments: Sequence[Segment]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in bodies.chunks(segments):
        digest.update(chunk)
    return digest.hexdigest()


async def complete(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CompleteMultipartUpload."""
    bucket = context.cloud.bucket(target.bucket)
    root = xml.parse(await read_small(request), "CompleteMultipartUpload")
    upload = bucket.uploads.get(target.query["uploadId"], target.key)
    try:
        parts = [
            (int(xml.value(node, "PartNumber")), xml.value(node, "ETag"))
            for node in root.findall("Part")
        ]
    except ValueError:
        raise xml.malformed() from None
    made = context.cloud.complete_upload(
        context.now_s(), target.bucket, upload, parts, condition_of(request)
    )
    answer = xml.document(
        "CompleteMultipartUploadResult",
        xml.text("Location", f"{context.endpoint}/{target.bucket}/{target.key}"),
        xml.text("Bucket", target.bucket),
        xml.text("Key", target.key),
        xml.text("ETag", f'"{made.etag}"'),
    )
    if made.version_id != "null":
        answer.headers["x-amz-version-id"] = made.version_id
    return answer


def abort(context: Context, target: Target) -> web.Response:
    """AbortMultipartUpload."""
    uploads = context.cloud.bucket(target.bucket).uploads
    uploads.end(uploads.get(target.query["uploadId"], target.key))
    return web.Response(status=204)


def list_parts(context: Context, target: Target) -> web.Response:
    """ListParts."""
    uploads = context.cloud.bucket(target.bucket).uploads
    upload = uploads.get(target.query["uploadId"], target.key)
    limit = min(number(target.query, "max-parts", PAGE_MAX), PAGE_MAX)
    after = number(target.query, "part-number-marker", 0)
    numbers = sorted(n for n in upload.parts if n > after)
    page = numbers[:limit]
    return xml.document(
        "ListPartsResult",
        xml.text("Bucket", target.bucket),
        xml.text("Key", target.key),
        xml.text("UploadId", upload.id),
        xml.text("PartNumberMarker", after),
        xml.text("NextPartNumberMarker", page[-1] if page else 0),
        xml.text("MaxParts", limit),
        xml.text("IsTruncated", len(numbers) > len(page)),
        *(
            xml.element(
                "Part",
                xml.text("PartNumber", n),
                xml.text("LastModified", iso_time(upload.parts[n].modified_at_s)),
                xml.text("ETag", f'"{upload.parts[n].content.md5}"'),
                xml.text("Size", upload.parts[n].content.size),
            )
            for n in page
        ),
    )

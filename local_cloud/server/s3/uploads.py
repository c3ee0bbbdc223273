"""Multipart uploads."""

from __future__ import annotations

import re

from aiohttp import web

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import Content, Segment, cut
from local_cloud.model.s3.multipart import Assembled, Upload, Uploads, WantedPart
from local_cloud.model.s3.notifications import iso_time
from local_cloud.server.context import Context
from local_cloud.server.s3 import xml
from local_cloud.server.s3.metadata import attributes_of, checksum_fields, version_header
from local_cloud.server.s3.objects import condition_of, digests_of, source_of
from local_cloud.server.s3.payload import read_document, receive_body
from local_cloud.server.s3.target import Target, number

_COPY_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


async def start(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CreateMultipartUpload. Raises InvalidRequest for an unknown algorithm or type."""
    given = request.headers.get("x-amz-checksum-algorithm", "")
    uploads = context.cloud.bucket(target.bucket).uploads
    upload = uploads.start(
        context.now_s(),
        target.key,
        attributes_of(request.headers, {}),
        algorithm=checksums.algorithm_of(given) if given else "",
        checksum_type=request.headers.get("x-amz-checksum-type", ""),
    )
    ids = {"Bucket": target.bucket, "Key": target.key, "UploadId": upload.id}
    answer = xml.document("InitiateMultipartUploadResult", ids)
    if upload.algorithm_given:
        answer.headers["x-amz-checksum-algorithm"] = upload.algorithm.upper()
        answer.headers["x-amz-checksum-type"] = upload.checksum_type
    return answer


async def put_part(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """UploadPart and UploadPartCopy."""
    uploads = context.cloud.bucket(target.bucket).uploads
    upload = uploads.get(target.query["uploadId"], target.key)
    part_number = number(target.query, "partNumber", 0)
    if "x-amz-copy-source" in request.headers:
        return await _copy_part(context, uploads, upload, part_number, request)
    content, got = await receive_body(request, context.bodies, upload.algorithm, target.chunks)
    try:
        upload = uploads.get(upload.id, upload.key)  # it may have ended while we received
        if upload.algorithm_given and got.given not in ("", upload.algorithm):
            raise refused(
                "InvalidRequest",
                "Checksum Type mismatch occurred, expected checksum Type:"
                f" {upload.algorithm}, actual checksum Type: {got.given}",
            )
        checksum = got.checksums[upload.algorithm]
        uploads.put_part(context.now_s(), upload, part_number, content, checksum)
    except CloudError:
        context.bodies.release(content.segments)
        raise
    used = got.given or upload.algorithm
    return web.Response(
        headers={"ETag": f'"{content.md5}"', f"x-amz-checksum-{used}": got.checksums[used]}
    )


async def _copy_part(
    context: Context, uploads: Uploads, upload: Upload, part_number: int, request: web.BaseRequest
) -> web.Response:
    segments, size = _copied_range(context, request)
    context.bodies.retain(segments)  # a delete meanwhile must not take them away
    try:
        md5, checksum = await digests_of(context, segments, upload.algorithm)
        content = Content(segments=segments, size=size, md5=md5)
        upload = uploads.get(upload.id, upload.key)  # it may have ended while we read
        made = uploads.put_part(context.now_s(), upload, part_number, content, checksum)
    finally:
        context.bodies.release(segments)
    return xml.document(
        "CopyPartResult",
        {
            "LastModified": iso_time(made.modified_at_s),
            "ETag": f'"{content.md5}"',
            f"Checksum{upload.algorithm.upper()}": checksum,
        },
    )


def _copied_range(context: Context, request: web.BaseRequest) -> tuple[tuple[Segment, ...], int]:
    """The segments of the source that become a part, and their size in bytes."""
    source, _ = source_of(context, request)
    first, stop = 0, source.size
    wanted = request.headers.get("x-amz-copy-source-range")
    if wanted is not None:
        match = _COPY_RANGE.fullmatch(wanted)
        if match is None or int(match[2]) >= source.size or int(match[1]) > int(match[2]):
            raise refused("InvalidArgument", "The x-amz-copy-source-range value is not valid")
        first, stop = int(match[1]), int(match[2]) + 1
    return cut(source.segments, first, stop), stop - first


async def complete(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CompleteMultipartUpload."""
    bucket = context.cloud.bucket(target.bucket)
    root = xml.parse(await read_document(request, of_object=True), "CompleteMultipartUpload")
    upload = bucket.uploads.get(target.query["uploadId"], target.key)
    parts = _wanted(root, upload.algorithm)
    _check_whole(bucket.uploads.assemble(upload, parts), request)
    made = context.cloud.complete_upload(
        context.now_s(), target.bucket, upload, parts, condition_of(request)
    )
    answer = xml.document(
        "CompleteMultipartUploadResult",
        {
            "Location": f"{context.endpoint}/{target.bucket}/{target.key}",
            "Bucket": target.bucket,
            "Key": target.key,
            "ETag": f'"{made.etag}"',
            **checksum_fields(made),
        },
    )
    answer.headers.update(version_header(made))
    return answer


def _wanted(root: xml.Element, algorithm: str) -> list[WantedPart]:
    try:
        return [
            WantedPart(
                number=int(xml.value(node, "PartNumber")),
                etag=xml.value(node, "ETag"),
                checksum=xml.value(node, f"Checksum{algorithm.upper()}"),
            )
            for node in root.findall("Part")
        ]
    except ValueError:
        raise xml.malformed() from None


def _check_whole(made: Assembled, request: web.BaseRequest) -> None:
    """Compare with the request's headers about the whole object. Raises BadDigest, …"""
    headers = request.headers
    for algorithm, value in made.attributes.checksums.items():
        given = headers.get(f"x-amz-checksum-{algorithm}", value)
        if given != value.partition("-")[0]:  # a composite one without its number of parts
            checksums.compare(algorithm, given, value)


async def abort(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """AbortMultipartUpload."""
    uploads = context.cloud.bucket(target.bucket).uploads
    uploads.end(uploads.get(target.query["uploadId"], target.key))
    return web.Response(status=204)

"""Multipart uploads."""

from __future__ import annotations

import re

from aiohttp import web

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import Content, Segment, cut
from local_cloud.model.s3.multipart import Assembled, Upload, Uploads, WantedPart
from local_cloud.model.s3.notifications import iso_time
from local_cloud.server.s3 import xml
from local_cloud.server.s3.call import Call, number
from local_cloud.server.s3.metadata import attributes_of, checksum_fields, version_header
from local_cloud.server.s3.objects import condition_of, digests_of, source_of
from local_cloud.server.s3.payload import read_document, receive_body

_COPY_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


async def start(call: Call) -> web.Response:
    """CreateMultipartUpload. Raises InvalidRequest for an unknown algorithm or type."""
    given = call.headers.get("x-amz-checksum-algorithm", "")
    uploads = call.bucket.uploads
    upload = uploads.start(
        call.now_s,
        call.key,
        attributes_of(call.headers, {}),
        algorithm=checksums.algorithm_of(given) if given else "",
        checksum_type=call.headers.get("x-amz-checksum-type", ""),
    )
    ids = {"Bucket": call.bucket_name, "Key": call.key, "UploadId": upload.id}
    answer = xml.document("InitiateMultipartUploadResult", ids)
    if upload.algorithm_given:
        answer.headers["x-amz-checksum-algorithm"] = upload.algorithm.upper()
        answer.headers["x-amz-checksum-type"] = upload.checksum_type
    return answer


async def put_part(call: Call) -> web.Response:
    """UploadPart and UploadPartCopy."""
    uploads = call.bucket.uploads
    upload = uploads.get(call.query["uploadId"], call.key)
    part_number = number(call.query, "partNumber", 0)
    if "x-amz-copy-source" in call.headers:
        return await _copy_part(call, uploads, upload, part_number)
    content, got = await receive_body(call.request, call.bodies, upload.algorithm, call.chunks)
    try:
        upload = uploads.get(upload.id, upload.key)  # it may have ended while we received
        if upload.algorithm_given and got.given not in ("", upload.algorithm):
            raise refused("InvalidRequest", f"The upload's checksums are of {upload.algorithm}.")
        checksum = got.checksums[upload.algorithm]
        uploads.put_part(call.now_s, upload, part_number, content, checksum)
    except CloudError:
        call.bodies.release(content.segments)
        raise
    used = got.given or upload.algorithm
    return web.Response(
        headers={"ETag": f'"{content.md5}"', f"x-amz-checksum-{used}": got.checksums[used]}
    )


async def _copy_part(
    call: Call, uploads: Uploads, upload: Upload, part_number: int
) -> web.Response:
    segments, size = _copied_range(call)
    call.bodies.retain(segments)  # a delete meanwhile must not take them away
    try:
        md5, checksum = await digests_of(call, segments, upload.algorithm)
        content = Content(segments=segments, size=size, md5=md5)
        upload = uploads.get(upload.id, upload.key)  # it may have ended while we read
        made = uploads.put_part(call.now_s, upload, part_number, content, checksum)
    finally:
        call.bodies.release(segments)
    return xml.document(
        "CopyPartResult",
        {
            "LastModified": iso_time(made.modified_at_s),
            "ETag": f'"{content.md5}"',
            f"Checksum{upload.algorithm.upper()}": checksum,
        },
    )


def _copied_range(call: Call) -> tuple[tuple[Segment, ...], int]:
    source, _ = source_of(call)
    first, stop = 0, source.size
    wanted = call.headers.get("x-amz-copy-source-range")
    if wanted is not None:
        match = _COPY_RANGE.fullmatch(wanted)
        if match is None or int(match[2]) >= source.size or int(match[1]) > int(match[2]):
            raise refused("InvalidArgument", "The x-amz-copy-source-range value is not valid")
        first, stop = int(match[1]), int(match[2]) + 1
    return cut(source.segments, first, stop), stop - first


async def complete(call: Call) -> web.Response:
    """CompleteMultipartUpload."""
    bucket = call.bucket
    root = xml.parse(await read_document(call.request, of_object=True), "CompleteMultipartUpload")
    upload = bucket.uploads.get(call.query["uploadId"], call.key)
    parts = _wanted(root, upload.algorithm)
    _check_whole(bucket.uploads.assemble(upload, parts), call)
    made = call.cloud.complete_upload(
        call.now_s, call.bucket_name, upload, parts, condition_of(call)
    )
    answer = xml.document(
        "CompleteMultipartUploadResult",
        {
            "Location": f"{call.context.endpoint}/{call.bucket_name}/{call.key}",
            "Bucket": call.bucket_name,
            "Key": call.key,
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


def _check_whole(made: Assembled, call: Call) -> None:
    headers = call.headers
    for algorithm, value in made.attributes.checksums.items():
        given = headers.get(f"x-amz-checksum-{algorithm}", value)
        if given != value.partition("-")[0]:  # a composite one without its number of parts
            checksums.compare(algorithm, given, value)


async def abort(call: Call) -> web.Response:
    """AbortMultipartUpload."""
    uploads = call.bucket.uploads
    uploads.end(uploads.get(call.query["uploadId"], call.key))
    return web.Response(status=204)

"""ListObjects in both versions, ListObjectVersions, and the list of uploads."""

from __future__ import annotations

import base64
import binascii
import urllib.parse
from collections.abc import Callable, Iterable

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.model.s3.bucket import Bucket
from local_cloud.model.s3.listing import PAGE_MAX
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.s3.object_version import ObjectVersion
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.buckets.acl import OWNER
from local_cloud.server.s3.target import Target, number

_OWNER = xml.element("Owner", OWNER)
_INITIATOR = xml.element("Initiator", OWNER)
_BUCKETS_MAX = 10_000  #: of one page of ListBuckets


def buckets(context: Context, target: Target) -> web.Response:
    """ListBuckets, in pages where the client asks for them."""
    query = target.query
    limit = min(number(query, "max-buckets", _BUCKETS_MAX), _BUCKETS_MAX)
    prefix, after = query.get("prefix", ""), _after(query)
    rest = [b for b in context.cloud.buckets() if b.name.startswith(prefix) and b.name > after]
    page = rest[:limit]
    found = [
        xml.element(
            "Bucket",
            xml.text("Name", bucket.name),
            xml.text("CreationDate", iso_time(bucket.created_at_s)),
            xml.text("BucketRegion", bucket.location or context.cloud.account.region),
        )
        for bucket in page
    ]
    ends = [xml.text("ContinuationToken", _token(page[-1].name))] if len(rest) > limit > 0 else []
    if prefix:
        ends.append(xml.text("Prefix", prefix))
    return xml.document("ListAllMyBucketsResult", _OWNER, xml.element("Buckets", *found), *ends)


def objects(bucket: Bucket, target: Target) -> web.Response:
    """ListObjectsV2, or the older form without `list-type=2`."""
    query = target.query
    newer = query.get("list-type") == "2"
    encode = _encoder(query)
    limit = min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = _after(query) if newer else query.get("marker", "")
    page = bucket.page(prefix=prefix, delimiter=delimiter, after=after, limit=limit)
    truncated = page.after is not None and limit > 0
    found = (bucket.get(key) for key in page.keys)
    parts = [
        xml.text("Name", bucket.name),
        xml.text("Prefix", encode(prefix)),
        xml.text("MaxKeys", limit),
        xml.text("Delimiter", encode(delimiter)) if delimiter else "",
        xml.text("EncodingType", "url") if "encoding-type" in query else "",
        xml.text("IsTruncated", truncated),
        *(
            _contents(v, encode, owner=not newer or query.get("fetch-owner") == "true")
            for v in found
        ),
        *_common(page.prefixes, encode),
    ]
    if newer:
        parts.append(xml.text("KeyCount", len(page.keys) + len(page.prefixes)))
        if "start-after" in query:
            parts.append(xml.text("StartAfter", encode(query["start-after"])))
        if "continuation-token" in query:
            parts.append(xml.text("ContinuationToken", query["continuation-token"]))
        if truncated:
            parts.append(xml.text("NextContinuationToken", _token(page.after or "")))
    else:
        parts.append(xml.text("Marker", encode(after)))
        if truncated and delimiter:
            parts.append(xml.text("NextMarker", encode(page.after or "")))
    return xml.document("ListBucketResult", *parts)


def versions(bucket: Bucket, target: Target) -> web.Response:
    """ListObjectVersions."""
    query = target.query
    encode = _encoder(query)
    limit = min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = (query.get("key-marker", ""), query.get("version-id-marker", ""))
    page = bucket.version_page(prefix=prefix, delimiter=delimiter, after=after, limit=limit)
    entries = []
    for version in page.versions:
        latest = f"{version.key}\0{version.version_id}" in page.latest
        entries.append(_version(version, encode, latest=latest))
    ends = []
    if page.after is not None:
        ends = [
            xml.text("NextKeyMarker", encode(page.after[0])),
            xml.text("NextVersionIdMarker", page.after[1]),
        ]
    return xml.document(
        "ListVersionsResult",
        xml.text("Name", bucket.name),
        xml.text("Prefix", encode(prefix)),
        xml.text("KeyMarker", encode(after[0])),
        xml.text("VersionIdMarker", after[1]),
        xml.text("MaxKeys", limit),
        xml.text("EncodingType", "url") if "encoding-type" in query else "",
        xml.text("IsTruncated", page.after is not None),
        *ends,
        *entries,
        *_common(page.prefixes, encode),
    )


def uploads(bucket: Bucket, target: Target) -> web.Response:
    """ListMultipartUploads, one page of up to 1,000."""
    encode = _encoder(target.query)
    prefix = target.query.get("prefix", "")
    found = [u for u in bucket.uploads.all() if u.key.startswith(prefix)][:PAGE_MAX]
    return xml.document(
        "ListMultipartUploadsResult",
        xml.text("Bucket", bucket.name),
        xml.text("Prefix", encode(prefix)),
        xml.text("MaxUploads", PAGE_MAX),
        xml.text("IsTruncated", False),
        *(
            xml.element(
                "Upload",
                xml.text("Key", encode(upload.key)),
                xml.text("UploadId", upload.id),
                _INITIATOR,
                _OWNER,
                xml.text("StorageClass", "STANDARD"),
                xml.text("Initiated", iso_time(upload.started_at_s)),
            )
            for upload in found
        ),
    )


def _contents(version: ObjectVersion, encode: Callable[[str], str], *, owner: bool) -> str:
    return xml.element("Contents", *_fields(version, encode), _OWNER if owner else "")


def _fields(version: ObjectVersion, encode: Callable[[str], str]) -> list[str]:
    return [
        xml.text("Key", encode(version.key)),
        xml.text("LastModified", iso_time(version.modified_at_s)),
        xml.text("ETag", f'"{version.etag}"'),
        xml.text("Size", version.size),
        xml.text("StorageClass", "STANDARD"),
        *(xml.text("ChecksumAlgorithm", name.upper()) for name in version.attributes.checksums),
    ]


def _version(version: ObjectVersion, encode: Callable[[str], str], *, latest: bool) -> str:
    shared = [xml.text("VersionId", version.version_id), xml.text("IsLatest", latest), _OWNER]
    if version.marker:
        key = xml.text("Key", encode(version.key))
        modified = xml.text("LastModified", iso_time(version.modified_at_s))
        return xml.element("DeleteMarker", key, modified, *shared)
    return xml.element("Version", *_fields(version, encode), *shared)


def _common(prefixes: Iterable[str], encode: Callable[[str], str]) -> list[str]:
    return [xml.element("CommonPrefixes", xml.text("Prefix", encode(p))) for p in prefixes]


def _encoder(query: dict[str, str]) -> Callable[[str], str]:
    if query.get("encoding-type") == "url":
        return lambda text: urllib.parse.quote(text, safe="/*-._")
    return lambda text: text


def _token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode()


def _after(query: dict[str, str]) -> str:
    token = query.get("continuation-token")
    if token is None:
        return query.get("start-after", "")
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise refused("InvalidArgument", "The continuation token provided is incorrect") from None

"""ListBuckets, ListObjects in both versions, ListObjectVersions."""

from __future__ import annotations

import base64
import binascii
import urllib.parse
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.model.s3.listing import PAGE_MAX
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.s3.object_version import ObjectVersion
from local_cloud.server.context import Context
from local_cloud.server.s3 import xml
from local_cloud.server.s3.target import Target, number

_OWNER = xml.element("Owner", xml.text("ID", "0" * 64), xml.text("DisplayName", "embedded-cloud"))


async def buckets(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """ListBuckets, in one page."""
    prefix = target.query.get("prefix", "")
    shown = [
        xml.element(
            "Bucket",
            xml.text("Name", bucket.name),
            xml.text("CreationDate", iso_time(bucket.created_at_s)),
            xml.text("BucketRegion", bucket.location or context.cloud.account.region),
        )
        for bucket in context.cloud.buckets()
        if bucket.name.startswith(prefix)
    ]
    return xml.document("ListAllMyBucketsResult", _OWNER, xml.element("Buckets", *shown))


async def objects(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """ListObjectsV2, or the older form (of boto3's resources) without `list-type=2`."""
    bucket, query = context.cloud.bucket(target.bucket), target.query
    context.cloud.storage.check_load()
    newer = query.get("list-type") == "2"
    encode = _encoder(query)
    limit = min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    delimiter = query.get("delimiter", "")
    after = _after(query) if newer else query.get("marker", "")
    page = bucket.page(
        prefix=query.get("prefix", ""), delimiter=delimiter, after=after, limit=limit
    )
    truncated = page.after is not None and limit > 0
    parts = [
        *_head(bucket.name, query, limit, truncated=truncated),
        xml.text("Delimiter", encode(delimiter)) if delimiter else "",
    ]
    with_owner = not newer or query.get("fetch-owner") == "true"
    for version in (bucket.get(key) for key in page.keys):
        owner = _OWNER if with_owner else ""
        parts.append(xml.element("Contents", *_fields(version, encode), owner))
    parts += _common(page.prefixes, encode)
    if newer:
        parts.append(xml.text("KeyCount", len(page.keys) + len(page.prefixes)))
        if "start-after" in query:
            parts.append(xml.text("StartAfter", encode(query["start-after"])))
        if "continuation-token" in query:
            parts.append(xml.text("ContinuationToken", query["continuation-token"]))
        if truncated:
            token = base64.urlsafe_b64encode((page.after or "").encode()).decode()
            parts.append(xml.text("NextContinuationToken", token))
    else:
        parts.append(xml.text("Marker", encode(after)))
        if truncated and delimiter:
            parts.append(xml.text("NextMarker", encode(page.after or "")))
    return xml.document("ListBucketResult", *parts)


async def versions(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """ListObjectVersions."""
    bucket, query = context.cloud.bucket(target.bucket), target.query
    context.cloud.storage.check_load()
    encode = _encoder(query)
    limit = min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    after = (query.get("key-marker", ""), query.get("version-id-marker", ""))
    page = bucket.version_page(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        after=after,
        limit=limit,
    )
    parts = _head(bucket.name, query, limit, truncated=page.after is not None)
    parts += [xml.text("KeyMarker", encode(after[0])), xml.text("VersionIdMarker", after[1])]
    if page.after is not None:
        parts.append(xml.text("NextKeyMarker", encode(page.after[0])))
        parts.append(xml.text("NextVersionIdMarker", page.after[1]))
    for version in page.versions:
        parts.append(_version(version, encode, latest=bucket.is_latest(version)))
    return xml.document("ListVersionsResult", *parts, *_common(page.prefixes, encode))


def _head(name: str, query: Mapping[str, str], limit: int, *, truncated: bool) -> list[str]:
    return [
        xml.text("Name", name),
        xml.text("Prefix", _encoder(query)(query.get("prefix", ""))),
        xml.text("MaxKeys", limit),
        xml.text("EncodingType", "url") if "encoding-type" in query else "",
        xml.text("IsTruncated", truncated),
    ]


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


def _encoder(query: Mapping[str, str]) -> Callable[[str], str]:
    if query.get("encoding-type") == "url":
        return lambda text: urllib.parse.quote(text, safe="/*-._")
    return lambda text: text


def _after(query: Mapping[str, str]) -> str:
    token = query.get("continuation-token")
    if token is None:
        return query.get("start-after", "")
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise refused("InvalidArgument", "The continuation token provided is incorrect") from None

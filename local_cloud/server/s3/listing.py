"""ListBuckets, ListObjects in both versions, ListObjectVersions."""

from __future__ import annotations

import base64
import binascii
import urllib.parse
from collections.abc import Callable, Mapping

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.model.s3.bucket import PAGE_MAX
from local_cloud.model.s3.notifications import iso_time
from local_cloud.model.s3.object_version import ObjectVersion
from local_cloud.server.s3 import xml
from local_cloud.server.s3.call import Call, number

_OWNER = {"ID": "0" * 64, "DisplayName": "embedded-cloud"}


async def buckets(call: Call) -> web.Response:
    """ListBuckets, in one page."""
    shown = [
        {
            "Name": bucket.name,
            "CreationDate": iso_time(bucket.created_at_s),
            "BucketRegion": bucket.location or call.cloud.account.region,
        }
        for bucket in call.cloud.buckets()
        if bucket.name.startswith(call.query.get("prefix", ""))
    ]
    return xml.document("ListAllMyBucketsResult", {"Owner": _OWNER, "Buckets": {"Bucket": shown}})


async def objects(call: Call) -> web.Response:
    """ListObjectsV2, or the older form (of boto3's resources) without `list-type=2`."""
    bucket, query = call.bucket, call.query
    call.cloud.storage.check_load()
    newer = query.get("list-type") == "2"
    encode, limit = _encoder(query), min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = _after(query) if newer else query.get("marker", "")
    page = bucket.page(prefix=prefix, delimiter=delimiter, after=after, limit=limit)
    end = page.after if limit > 0 else None
    with_owner = {"Owner": _OWNER} if not newer or query.get("fetch-owner") == "true" else {}
    shown: dict[str, object] = {
        **_head(bucket.name, query, limit),
        "Delimiter": encode(delimiter) if delimiter else None,
        "IsTruncated": end is not None,
        "Contents": [{**_fields(bucket.get(key), encode), **with_owner} for key in page.keys],
        "CommonPrefixes": [{"Prefix": encode(prefix)} for prefix in page.prefixes],
    }
    if newer:
        token = None if end is None else base64.urlsafe_b64encode(end.encode()).decode()
        shown["KeyCount"] = len(page.keys) + len(page.prefixes)
        shown["StartAfter"] = encode(query["start-after"]) if "start-after" in query else None
        shown["ContinuationToken"] = query.get("continuation-token")
        shown["NextContinuationToken"] = token
    else:
        shown["Marker"] = encode(after)
        shown["NextMarker"] = encode(end) if end is not None and delimiter else None
    return xml.document("ListBucketResult", shown)


async def versions(call: Call) -> web.Response:
    """ListObjectVersions."""
    bucket, query = call.bucket, call.query
    call.cloud.storage.check_load()
    encode, limit = _encoder(query), min(number(query, "max-keys", PAGE_MAX), PAGE_MAX)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = (query.get("key-marker", ""), query.get("version-id-marker", ""))
    page = bucket.version_page(prefix=prefix, delimiter=delimiter, after=after, limit=limit)
    shown: dict[str, list[object]] = {"Version": [], "DeleteMarker": []}
    for version in page.versions:
        fields = _fields(version, encode)
        if version.marker:
            fields = {name: fields[name] for name in ("Key", "LastModified")}
        fields |= {"VersionId": version.version_id, "IsLatest": bucket.is_latest(version)}
        shown["DeleteMarker" if version.marker else "Version"].append(fields | {"Owner": _OWNER})
    return xml.document(
        "ListVersionsResult",
        {
            **_head(bucket.name, query, limit),
            "KeyMarker": encode(after[0]),
            "VersionIdMarker": after[1],
            "IsTruncated": page.after is not None,
            "NextKeyMarker": encode(page.after[0]) if page.after is not None else None,
            "NextVersionIdMarker": page.after[1] if page.after is not None else None,
            **shown,
            "CommonPrefixes": [{"Prefix": encode(prefix)} for prefix in page.prefixes],
        },
    )


def _head(name: str, query: Mapping[str, str], limit: int) -> dict[str, object]:
    return {
        "Name": name,
        "Prefix": _encoder(query)(query.get("prefix", "")),
        "MaxKeys": limit,
        "EncodingType": "url" if "encoding-type" in query else None,
    }


def _fields(version: ObjectVersion, encode: Callable[[str], str]) -> dict[str, object]:
    return {
        "Key": encode(version.key),
        "LastModified": iso_time(version.modified_at_s),
        "ETag": f'"{version.etag}"',
        "Size": version.size,
        "StorageClass": "STANDARD",
        "ChecksumAlgorithm": [name.upper() for name in version.attributes.checksums],
    }


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

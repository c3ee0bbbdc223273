"""`ObjectStore` over S3."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from botocore.httpchecksum import Crc32Checksum
from botocore.utils import parse_timestamp

from contract.aws.clients import condition, quoted
from orchgpu.adapters.aws.api import Client, Shape, translated
from orchgpu.adapters.aws.calls import Answer, Calls
from orchgpu.core.reconcile import Cursor, ObjectVersion, VersionPage
from orchgpu.ports import StoredObject

#: Larger bodies are sent in chunks, by botocore.
WHOLE_BODY_MAX = 2**20
#: Headers of the user's metadata.
_METADATA = "x-amz-meta-"


class S3Store:
    """Uses one shared client. Nothing larger than the caller's limit is ever read into memory."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._call = Calls(client)
        self._owners: dict[str, str] = {}  #: bucket → account that must own it

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        self._owners.update(owners)

    def _in(self, bucket: str) -> dict[str, str]:
        """The parameters of every call: see `contract.aws.clients.expect_owner`."""
        owner = self._owners.get(bucket)
        return {"Bucket": bucket, "ExpectedBucketOwner": owner} if owner else {"Bucket": bucket}

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        if_match: str | None = None,
        bytes_max: int,
    ) -> StoredObject:
        where = {**self._in(bucket), "Key": key}
        if version_id is not None:
            where["VersionId"] = version_id
        if if_match:
            where["IfMatch"] = quoted(if_match)
        with translated(f"s3:GetObject {bucket}/{key}"):
            return _stored(await self._call("GetObject", where, bytes_max=bytes_max))

    async def head(self, bucket: str, key: str) -> StoredObject:
        with translated(f"s3:HeadObject {bucket}/{key}"):
            return _stored(await self._call("HeadObject", {**self._in(bucket), "Key": key}))

    async def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> None:
        conditions = condition(if_match or "") if if_absent or if_match else {}
        where = {**self._in(bucket), "Key": key, **conditions}
        with translated(f"s3:PutObject {bucket}/{key}"):
            if len(body) > WHOLE_BODY_MAX:
                await self._client.put_object(**where, Body=body)
                return
            checksum = Crc32Checksum().handle(body)
            whole = {**where, "Body": body, "ChecksumCRC32": checksum}
            await self._call("PutObject", whole)

    async def delete(self, bucket: str, key: str) -> None:
        with translated(f"s3:DeleteObject {bucket}/{key}"):
            await self._call("DeleteObject", {**self._in(bucket), "Key": key})

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        more: dict[str, str] = {}
        while True:  # botocore's paginator makes a class for each use
            with translated(f"s3:ListObjectsV2 {bucket}/{prefix}"):
                page = await self._client.list_objects_v2(**self._in(bucket), Prefix=prefix, **more)
            listed = page.get("Contents", ())
            found.update((entry["Key"], entry["ETag"].strip('"')) for entry in listed)
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def versions(
        self, bucket: str, prefix: str, *, after: Cursor | None = None
    ) -> VersionPage:
        start: dict[str, str] = {}
        if after is not None:
            start["KeyMarker"] = after.key
            if after.version_id:
                start["VersionIdMarker"] = after.version_id
        with translated(f"s3:ListObjectVersions {bucket}/{prefix}"):
            page = await self._client.list_object_versions(
                **self._in(bucket), Prefix=prefix, **start
            )
        end = None
        if page.get("IsTruncated"):
            version = page.get("NextVersionIdMarker") or ""
            end = Cursor(key=page["NextKeyMarker"], version_id=version)
        versions = tuple(_version(entry) for entry in page.get("Versions", ()))
        return VersionPage(versions=versions, after=end)


def _version(entry: Shape) -> ObjectVersion:
    version = entry["VersionId"]
    return ObjectVersion(
        key=entry["Key"],
        version_id=None if version == "null" else version,
        etag=entry["ETag"].strip('"'),
        size=int(entry["Size"]),
        modified_s=entry["LastModified"].timestamp(),
    )


def _stored(answer: Answer) -> StoredObject:
    headers = answer.headers
    version = headers.get("x-amz-version-id")
    return StoredObject(
        body=answer.content,
        etag=headers["etag"].strip('"'),
        version_id=version if version not in (None, "null") else None,
        last_modified=_date(headers["last-modified"]),
        size=int(headers["content-length"]),
        metadata={
            name[len(_METADATA) :].lower(): value
            for name, value in headers.items()
            if name.lower().startswith(_METADATA)
        },
    )


def _date(text: str) -> str:
    try:
        return parsedate_to_datetime(text).isoformat()
    except ValueError:  # not as RFC 7231 has it, but botocore may read it
        return str(parse_timestamp(text).isoformat())

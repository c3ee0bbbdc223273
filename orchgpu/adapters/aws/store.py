"""`ObjectStore` over S3."""

from __future__ import annotations

from collections.abc import Mapping

from contract.aws.clients import condition, quoted
from orchgpu.adapters.aws.api import Client, Shape, translated
from orchgpu.core.reconcile import Cursor, ObjectVersion, VersionPage
from orchgpu.ports import StoredObject


class S3Store:
    """Uses one shared client. Nothing larger than the caller's limit is ever read into memory."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.owners: dict[str, str] = {}  #: bucket → account that must own it

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        self.owners.update(owners)

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        if_match: str | None = None,
        bytes_max: int,
    ) -> StoredObject:
        conditions: dict[str, str] = {}
        if version_id is not None:
            conditions["VersionId"] = version_id
        if if_match:
            conditions["IfMatch"] = quoted(if_match)
        with translated(f"s3:GetObject {bucket}/{key}"):
            answer = await self._client.get_object(Bucket=bucket, Key=key, **conditions)
            async with answer["Body"] as stream:
                size = int(answer["ContentLength"])
                body = await stream.read() if size <= bytes_max else None
                if body is None:
                    stream.close()  # the rest of a large object is not read
        return _stored(answer, body)

    async def head(self, bucket: str, key: str) -> StoredObject:
        with translated(f"s3:HeadObject {bucket}/{key}"):
            answer = await self._client.head_object(Bucket=bucket, Key=key)
        return _stored(answer, None)

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
        with translated(f"s3:PutObject {bucket}/{key}"):
            await self._client.put_object(Bucket=bucket, Key=key, Body=body, **conditions)

    async def delete(self, bucket: str, key: str) -> None:
        with translated(f"s3:DeleteObject {bucket}/{key}"):
            await self._client.delete_object(Bucket=bucket, Key=key)

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        more: dict[str, str] = {}
        while True:  # botocore's paginator makes a class for each use
            with translated(f"s3:ListObjectsV2 {bucket}/{prefix}"):
                page = await self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
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
            page = await self._client.list_object_versions(Bucket=bucket, Prefix=prefix, **start)
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


def _stored(answer: Shape, body: bytes | None) -> StoredObject:
    version = answer.get("VersionId")
    return StoredObject(
        body=body,
        etag=answer["ETag"].strip('"'),
        version_id=version if version not in (None, "null") else None,
        last_modified=answer["LastModified"].isoformat(),
        size=int(answer["ContentLength"]),
        metadata=answer.get("Metadata") or {},
    )

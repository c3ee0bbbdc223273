"""Revisions and locks: small objects of the state bucket, by boto3."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.errors import translated
from orchgpu.deploy.revisions import REVISIONS_KEPT, Revision

#: A lock that is older belongs to a deploy that died: what it guards takes a second or two.
_LOCK_S = 60.0
_LOCK_POLL_S = 0.1
_LOCK_TRIES = 900
_NUMBER_TRIES = 20


class Revisions:
    """`revisions/<function>/`: numbers and packages."""

    def __init__(self, s3: Any, place: DeployTarget) -> None:
        self._s3 = s3
        self._bucket = place.state_bucket

    def of(self, name: str) -> tuple[Revision, ...]:
        """All that are kept, oldest first."""
        keys = [key for key in self._keys(name) if key.endswith(".json")]
        found = [decode_json_known(Revision, self._read(key), key)[0] for key in keys]
        return tuple(sorted(found, key=lambda revision: revision.number))

    def package(self, revision: Revision) -> bytes:
        """Its zip. Raises NOT_FOUND."""
        return self._read(_package_key(revision.name, revision.package))

    def write(self, revision: Revision, data: bytes | None) -> Revision:
        """Keep it under its number, or the next one that is free; the oldest ones go."""
        if data is not None:
            self._put(_package_key(revision.name, revision.package), data)
        for number in range(revision.number, revision.number + _NUMBER_TRIES):
            numbered = Revision(**{**_fields(revision), "number": number})
            try:
                body = json.dumps(encode(numbered)).encode()
                self._put(_key(revision.name, number), body, IfNoneMatch="*")
            except AppError as error:
                if error.code is not ErrorCode.CONFLICT:
                    raise
                continue  # another deploy took the number
            self._forget_old(revision.name)
            return numbered
        raise AppError(ErrorCode.CONFLICT, f"somebody keeps deploying {revision.name}; try again")

    def forget(self, name: str) -> None:
        """Delete all of a function."""
        for key in self._keys(name):
            self._delete(key)

    def _forget_old(self, name: str) -> None:
        kept = self.of(name)
        for revision in kept[:-REVISIONS_KEPT]:
            self._delete(_key(name, revision.number))
        needed = {_package_key(name, revision.package) for revision in kept[-REVISIONS_KEPT:]}
        for key in self._keys(name):
            if key.endswith(".zip") and key not in needed:
                self._delete(key)

    def _keys(self, name: str) -> list[str]:
        keys: list[str] = []
        try:
            with translated(f"ListObjectsV2 {self._bucket}"):
                pages = self._s3.get_paginator("list_objects_v2")
                for page in pages.paginate(Bucket=self._bucket, Prefix=f"revisions/{name}/"):
                    keys += [str(item["Key"]) for item in page.get("Contents", ())]
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
        return keys

    def _read(self, key: str) -> bytes:
        with translated(f"GetObject {key}"):
            body: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return body

    def _put(self, key: str, body: bytes, **conditions: str) -> None:
        with translated(f"PutObject {key}"):
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, **conditions)

    def _delete(self, key: str) -> None:
        with translated(f"DeleteObject {key}"):
            self._s3.delete_object(Bucket=self._bucket, Key=key)


def _fields(revision: Revision) -> dict[str, Any]:
    return {name: getattr(revision, name) for name in Revision.__slots__}


def _key(name: str, number: int) -> str:
    return f"revisions/{name}/{number:06d}.json"


def _package_key(name: str, sha256: str) -> str:
    return f"revisions/{name}/{sha256}.zip"


class Locks:
    """One deploy at a time changes what S3 can only replace whole: a bucket's rules.

    `locks/<what>` in the state bucket, made on the condition that there is none. It is a courtesy
    among deploys of ours; changes are verified besides, because others know nothing of it.
    """

    def __init__(self, s3: Any, place: DeployTarget) -> None:
        self._s3 = s3
        self._bucket = place.state_bucket

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Wait for the lock, and free it at the end. Raises CONFLICT when it is never free."""
        key, token = f"locks/{what}", uuid.uuid4().hex
        self._take(key, token)
        ends_s = time.monotonic() + _LOCK_S
        try:
            yield
        finally:
            if time.monotonic() < ends_s:  # else it ran out, and may be another one's by now
                with suppress(AppError), translated(f"DeleteObject {key}"):
                    self._s3.delete_object(Bucket=self._bucket, Key=key)

    def _take(self, key: str, token: str) -> None:
        for _ in range(_LOCK_TRIES):
            body = json.dumps({"token": token, "until_s": time.time() + _LOCK_S}).encode()
            if self._written(key, body, IfNoneMatch="*"):
                return
            etag = self._run_out(key)
            if etag is not None and self._written(key, body, IfMatch=etag):
                return
            time.sleep(_LOCK_POLL_S)
        what = key.removeprefix("locks/")
        raise AppError(ErrorCode.CONFLICT, f"another deploy is changing {what}; try again later")

    def _written(self, key: str, body: bytes, **condition: str) -> bool:
        try:
            with translated(f"PutObject {key}"):
                self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
        except AppError as error:
            freed = error.code is ErrorCode.NOT_FOUND and "IfMatch" in condition
            if freed or error.code in (ErrorCode.CONFLICT, ErrorCode.UNAVAILABLE):
                return False
            raise
        return True

    def _run_out(self, key: str) -> str | None:
        """The etag of a lock whose holder is gone."""
        try:
            with translated(f"GetObject {key}"):
                answer = self._s3.get_object(Bucket=self._bucket, Key=key)
                until_s = float(json.loads(answer["Body"].read()).get("until_s", 0.0))
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        except (ValueError, AttributeError):
            until_s = 0.0
        return str(answer["ETag"]) if until_s < time.time() else None

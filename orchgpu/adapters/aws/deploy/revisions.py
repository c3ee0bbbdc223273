"""Revisions and locks: small objects of the state bucket, by boto3."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import Client, all_keys, answer_or_none, write_once
from orchgpu.deploy.revisions import REVISIONS_KEPT, Revision

#: An older lock belongs to a deploy that died: the guarded change takes a second or two.
_LOCK_S = 60.0
_NUMBER_TRIES = 20


class Revisions:
    """`revisions/<function>/`: numbers and packages."""

    def __init__(self, s3: Client, place: DeployTarget) -> None:
        self._s3 = s3
        self._bucket = place.state_bucket

    def of(self, name: str) -> tuple[Revision, ...]:
        """Every kept revision, oldest first."""
        keys = [key for key in self._keys(name) if key.endswith(".json")]
        found = [decode_json_known(Revision, self._read(key), key)[0] for key in keys]
        return tuple(sorted(found, key=lambda revision: revision.number))

    def package(self, revision: Revision) -> bytes:
        """Its zip. Raises NOT_FOUND."""
        return self._read(_package_key(revision.name, revision.package))

    def write(self, revision: Revision, data: bytes | None) -> Revision:
        """Store it under its number, or the next free one, and delete the oldest ones."""
        if data is not None:
            self._put(_package_key(revision.name, revision.package), data)
        for number in range(revision.number, revision.number + _NUMBER_TRIES):
            numbered = replace(revision, number=number)
            try:
                body = json.dumps(encode(numbered)).encode()
                write_once(self._s3, self._bucket, _key(revision.name, number), body)
            except AppError as error:
                if error.code is not ErrorCode.CONFLICT:
                    raise
                continue  # another deploy took the number
            self._forget_old(revision.name)
            return numbered
        raise AppError(
            ErrorCode.CONFLICT,
            f"{revision.name} is being deployed by others at the same time; try again",
        )

    def forget(self, name: str) -> None:
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
        return all_keys(self._s3, self._bucket, f"revisions/{name}/")

    def _read(self, key: str) -> bytes:
        body: bytes = self._s3.body(Bucket=self._bucket, Key=key)[0]
        return body

    def _put(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=body)

    def _delete(self, key: str) -> None:
        self._s3.delete_object(Bucket=self._bucket, Key=key)


def _key(name: str, number: int) -> str:
    return f"revisions/{name}/{number:06d}.json"


def _package_key(name: str, sha256: str) -> str:
    return f"revisions/{name}/{sha256}.zip"


class Locks:
    """One deploy at a time changes what S3 can only replace whole: a bucket's rules.

    `locks/<what>` in the state bucket, created on the condition that there is none. Only deploys of
    orchgpu take part; changes are verified as well, because other programs ignore the lock.
    """

    def __init__(
        self, s3: Client, place: DeployTarget, *, tries: int = 900, pause_s: float = 0.1
    ) -> None:
        self._s3 = s3
        self._bucket = place.state_bucket
        self._tries = tries
        self._pause_s = pause_s

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Wait for the lock, and release it at the end. Raises CONFLICT when it stays held."""
        key, token = f"locks/{what}", uuid.uuid4().hex
        self._take(key, token)
        ends_s = time.monotonic() + _LOCK_S
        try:
            yield
        finally:
            if time.monotonic() < ends_s:  # else it expired, and may be held by another
                with suppress(AppError):
                    self._s3.delete_object(Bucket=self._bucket, Key=key)

    def _take(self, key: str, token: str) -> None:
        for _ in range(self._tries):
            body = json.dumps({"token": token, "until_s": time.time() + _LOCK_S}).encode()
            if self._written(key, body):
                return
            etag = self._expired_etag(key)
            if etag is not None and self._written(key, body, replaces=etag):
                return
            time.sleep(self._pause_s)
        what = key.removeprefix("locks/")
        raise AppError(ErrorCode.CONFLICT, f"another deploy is changing {what}; try again later")

    def _written(self, key: str, body: bytes, *, replaces: str = "") -> bool:
        try:
            write_once(self._s3, self._bucket, key, body, replaces=replaces)
        except AppError as error:
            freed = error.code is ErrorCode.NOT_FOUND and replaces
            if freed or error.code in (ErrorCode.CONFLICT, ErrorCode.UNAVAILABLE):
                return False
            raise
        return True

    def _expired_etag(self, key: str) -> str | None:
        read = answer_or_none(self._s3.body, Bucket=self._bucket, Key=key)
        if read is None:
            return None
        body, answer = read
        try:
            until_s = float(json.loads(body).get("until_s", 0.0))
        except (ValueError, AttributeError):
            until_s = 0.0
        return str(answer["ETag"]).strip('"') if until_s < time.time() else None

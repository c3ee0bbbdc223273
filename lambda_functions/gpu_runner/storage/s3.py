"""The function's only S3 client, with its errors as `StorageError`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from contract.aws.clients import expect_owner, patience, quoted
from contract.aws.faults import code_of, status_of
from contract.record import JsonObject
from lambda_functions.gpu_runner.errors import StorageError

#: A boto3 S3 client; boto3 carries no types.
S3 = Any
T = TypeVar("T")

#: Conditions of a write: parameter of PutObject → header.
_CONDITIONS = {"IfNoneMatch": "If-None-Match", "IfMatch": "If-Match"}

#: For 15 minutes after versioning was first enabled on a bucket, reads of what was just written may
#: answer 404, now and then; an input that was deleted costs these seconds of the device.
ABSENT_PAUSES_S = (0.3, 0.7, 1.5)

#: Bytes copied at once between S3 and a file.
CHUNK_BYTES = 1 << 20


def make_client(
    account: str = "", owners: Mapping[str, str] = MappingProxyType({}), **settings: str
) -> S3:
    """The client of this environment; made once, at import, so that warm runs reuse its connection.

    Timeouts are bounded like the whole run: 4 tries of 5 s + 30 s fit the reserve of a 15-minute
    function. Emulators have no DNS for buckets, so they get path-style addresses; with botocore's
    own choice, links would name the global endpoint, which newer Regions refuse. `account` owns
    all buckets but those in `owners`; "" = not known, as with deploys of older versions.
    `settings`: further ones of botocore.
    """
    emulated = "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
    config = Config(
        **patience(tries=4, connect_s=5, read_s=30),
        tcp_keepalive=True,
        user_agent="orchgpu-runner",  # botocore builds its own one for every call
        s3={"addressing_style": "path" if emulated else "virtual"},
        **settings,
    )
    client = boto3.client("s3", config=config)
    _send_conditions(client)
    if account:
        expect_owner(client, lambda bucket: owners.get(bucket, account))
    return client


def _send_conditions(client: S3) -> None:
    """Send the conditions of a write as headers where this boto3 lacks their parameters.

    Lambda's runtime and region determine the bundled release; those before November 2024 refuse
    `IfNoneMatch` and `IfMatch` of PutObject as unknown parameters.
    """
    known = client.meta.service_model.operation_model("PutObject").input_shape.members
    absent = {name: header for name, header in _CONDITIONS.items() if name not in known}

    def remove(params: dict[str, Any], context: dict[str, Any], **_: object) -> dict[str, Any]:
        context["conditions"] = {absent[name]: params[name] for name in absent if name in params}
        return {name: value for name, value in params.items() if name not in absent}

    def add(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        params["headers"].update(context["conditions"])

    if absent:
        client.meta.events.register("provide-client-params.s3.PutObject", remove)
        client.meta.events.register("before-call.s3.PutObject", add)


@contextmanager
def s3_errors(what: str) -> Iterator[None]:
    """Turn every failure of a boto3 call inside into a `StorageError` that names `what`."""
    try:
        yield
    except ClientError as error:
        status = status_of(error)
        raise StorageError(
            f"{what}: S3 answered {status} {code_of(error)}", status=status
        ) from error
    except BotoCoreError as error:
        raise StorageError(f"{what}: {error}") from error


def etag_of(s3: S3, bucket: str, key: str) -> str | None:
    """The ETag of an object, without quotes; None = there is no object. Raises StorageError."""
    reply = head_of(s3, bucket, key)
    return None if reply is None else str(reply.get("ETag", "")).strip('"')


def head_of(s3: S3, bucket: str, key: str, **pin: str) -> JsonObject | None:
    """S3's answer about an object; None = there is no object. Raises StorageError."""
    return _found(lambda: s3.head_object(Bucket=bucket, Key=key, **pin), bucket, key)


def small_body(s3: S3, bucket: str, key: str, **pin: str) -> bytes | None:
    """The whole content of an object; None = there is no object. Raises StorageError."""
    return _found(lambda: s3.get_object(Bucket=bucket, Key=key, **pin)["Body"].read(), bucket, key)


def _found(read: Callable[[], T], bucket: str, key: str) -> T | None:
    try:
        with s3_errors(f"read s3://{bucket}/{key}"):
            return read()
    except StorageError as error:
        if error.status == 404:
            return None
        raise


def download(
    s3: S3,
    target: Path,
    *,
    bucket: str,
    key: str,
    version: str | None = None,
    etag: str = "",
    seen: Callable[[bytes], object] = bool,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Stream one object into `target`, and its bytes to `seen`; returns its size in bytes.

    Pinned by `version`, else by `etag`, else the current version. Raises StorageError: status 404
    for a deleted object, also after some seconds; 412 for an overwritten one.
    """
    pin = {"VersionId": version} if version else {"IfMatch": quoted(etag)} if etag else {}

    def stream() -> int:
        with s3_errors(f"read s3://{bucket}/{key}"):
            reply = s3.get_object(Bucket=bucket, Key=key, **pin)
            size = 0
            with target.open("wb") as file:
                for chunk in reply["Body"].iter_chunks(CHUNK_BYTES):
                    size += file.write(chunk)
                    seen(chunk)
        return size

    for pause_s in ABSENT_PAUSES_S:
        try:
            return stream()
        except StorageError as error:
            if error.status != 404:
                raise
        pause(pause_s)
    return stream()

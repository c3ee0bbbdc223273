"""Clients of AWS, for every program: sessions, patience, owners of buckets, conditional writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import botocore.session
from botocore import exceptions
from botocore.loaders import create_loader

from contract.aws.faults import Fault, fault_of

#: A client of one service: botocore makes it from data files when the program runs.
Client = Any


def session_of(profile: str | None = None, variables: Mapping[str, Any] | None = None) -> Client:
    """A boto3 session, whose clients share the slow data. `variables`: botocore's own."""
    inner = botocore.session.Session(variables, profile=profile)
    inner.register_component("data_loader", service_descriptions())
    return boto3.Session(botocore_session=inner)


@functools.cache
def service_descriptions() -> object:
    """botocore's data files, parsed once per process: parsing is most of a client's cost."""
    return create_loader()


def patience(*, tries: int, connect_s: float, read_s: float) -> dict[str, Any]:
    """Arguments of botocore's Config: tries of a call, and the longest waits of each."""
    return {
        "retries": {"mode": "standard", "total_max_attempts": tries},
        "connect_timeout": connect_s,
        "read_timeout": read_s,
    }


def expect_owner(s3: Client, owner_of: Callable[[str], str | None]) -> None:
    """Name the account that must own its bucket in every later call of this client; idempotent.

    Names of buckets are predictable, or become free when their owner deletes them: another account
    could make one first, would receive users' data, and would supply functions' code. S3 refuses
    the call (403 AccessDenied) when the account is another. None: the account is not known.
    """

    def owned(params: dict[str, Any], model: Any, **_: object) -> None:
        """`model`: botocore's description of the operation; not every one takes an owner."""
        shape = model.input_shape
        takes = shape is not None and "ExpectedBucketOwner" in shape.members
        if owner := owner_of(str(params.get("Bucket", ""))) if takes else None:
            params.setdefault("ExpectedBucketOwner", owner)

    event = "provide-client-params.s3"
    s3.meta.events.register(event, owned, unique_id="orchgpu-bucket-owner")


#: S3 answers 409 when two conditional writes meet; the next try sees one of them as written.
RACE_TRIES = 5
RACE_PAUSE_S = 0.05


def quoted(etag: str) -> str:
    """An etag in quotes, as HTTP conditions need it; events have it without."""
    return f'"{etag.strip(chr(34))}"'


def condition(replaces: str) -> dict[str, Any]:
    """Parameters of PutObject: over the object with that etag; "" = where there is none."""
    return {"IfMatch": quoted(replaces)} if replaces else {"IfNoneMatch": "*"}


def write_once(
    s3: Client,
    bucket: str,
    key: str,
    body: bytes,
    *,
    pause: Callable[[float], None],
    replaces: str = "",
    content_type: str = "application/octet-stream",
    metadata: Mapping[str, str] | None = None,
    is_same: Callable[[bytes], bool] | None = None,
    look: Callable[[], bool | None] | None = None,
) -> bool:
    """Write on a condition. True: this object is in place; False: another one is.

    A client that got no answer repeats a write by itself, and S3 then answers 412, because the
    object is there: the client's own, which is known by `is_same`. [default: by its bytes]
    `look` finds that without the bytes of a large object; None: it was removed meanwhile.
    Raises botocore's errors.
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
    """
    where, how = {"Bucket": bucket, "Key": key}, condition(replaces)
    how |= {"Metadata": dict(metadata)} if metadata else {}
    for last in (*[False] * (RACE_TRIES - 1), True):
        try:
            s3.put_object(**where, Body=body, ContentType=content_type, **how)
            return True
        except exceptions.ClientError as error:
            match fault_of(error):
                case Fault.CONFLICT:
                    ours = look() if look else _is_ours(_stored(s3, where), is_same, body)
                    if ours is not None:  # else it was removed meanwhile
                        return ours
                case Fault.RACED:
                    pass
                case _:
                    raise
            if last:
                raise
        pause(RACE_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _is_ours(
    stored: bytes | None, is_same: Callable[[bytes], bool] | None, body: bytes
) -> bool | None:
    if stored is None:
        return None
    return is_same(stored) if is_same else stored == body


def _stored(s3: Client, where: Mapping[str, str]) -> bytes | None:
    try:
        body: bytes = s3.get_object(**where)["Body"].read()
    except exceptions.ClientError as error:
        if fault_of(error) is Fault.ABSENT:
            return None
        raise
    return body

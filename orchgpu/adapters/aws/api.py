"""AWS's API as botocore offers it: untyped clients and answers, and calls that may find nothing.

botocore makes clients from data files when the program runs, so this file names the only two types
that are `Any` for that reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from contract.aws import clients
from contract.aws.clients import Client as Client
from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.errors import translated

#: A structure of a request or an answer, as AWS documents it.
Shape = dict[str, Any]

T = TypeVar("T")


def found(name: str, call: Callable[[], T]) -> T | None:
    """The answer of one call, called `name` in errors; None for NOT_FOUND."""
    try:
        with translated(name):
            return call()
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return None
        raise


def all_keys(s3: Client, bucket: str, prefix: str) -> list[str]:
    """Every key below a prefix, in order; none in a bucket that does not exist."""

    def listed() -> list[str]:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [str(item["Key"]) for page in pages for item in page.get("Contents", ())]

    return found(f"ListObjectsV2 {bucket}", listed) or []


def write_once(s3: Client, bucket: str, key: str, body: bytes, *, replaces: str = "") -> None:
    """Write JSON where there is no object, or over the one with the etag `replaces`.

    Raises CONFLICT when another object is there, NOT_FOUND when that one is not.
    """
    call, kind = f"PutObject {bucket}/{key}", "application/json"
    where = (s3, bucket, key, body)
    with translated(call):
        ours = clients.write_once(*where, replaces=replaces, content_type=kind, pause=time.sleep)
    if not ours:
        raise AppError(ErrorCode.CONFLICT, f"{call}: another object is there")

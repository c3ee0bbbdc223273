"""AWS's API as botocore offers it: untyped clients and answers, and calls that may find nothing.

botocore makes clients from data files when the program runs, so this file names the only two types
that are `Any` for that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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

"""Writes on a condition, with their failures as `AppError`."""

from __future__ import annotations

import time

from contract.aws import clients
from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import Client
from orchgpu.adapters.aws.errors import translated

_JSON = "application/json"


def write_once(s3: Client, bucket: str, key: str, body: bytes, *, replaces: str = "") -> None:
    """Write JSON where there is no object, or over the one with the etag `replaces`.

    Raises CONFLICT when another object is there, NOT_FOUND when that one is not.
    """
    call = f"PutObject {bucket}/{key}"
    with translated(call):
        ours = clients.write_once(
            s3, bucket, key, body, replaces=replaces, content_type=_JSON, pause=time.sleep
        )
    if not ours:
        raise AppError(ErrorCode.CONFLICT, f"{call}: another object is there")

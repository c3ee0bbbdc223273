"""Writes on a condition: repeated after a race, and recognised when their answer was lost.

S3 answers 409 to a conditional write that raced with another call, and asks to repeat it, as a
client of `deploy.settling` does. A client that got no answer repeats a write by itself; S3 then
answers 412, because the object is there: the client's own.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import Client, found
from orchgpu.adapters.aws.errors import translated


def write_once(
    s3: Client, bucket: str, key: str, body: bytes, *, replaces: str = "", content_type: str = ""
) -> None:
    """Write where there is no object, or over the one with the etag `replaces`.

    Raises CONFLICT when another object is there, NOT_FOUND when that one is not.
    """
    condition = {"IfMatch": f'"{replaces}"'} if replaces else {"IfNoneMatch": "*"}
    kind = {"ContentType": content_type} if content_type else {}
    try:
        with translated(f"PutObject {bucket}/{key}"):
            s3.put_object(Bucket=bucket, Key=key, Body=body, **kind, **condition)
    except AppError as error:
        if error.code is not ErrorCode.CONFLICT or not _stands(s3, bucket, key, body):
            raise


def _stands(s3: Client, bucket: str, key: str, body: bytes) -> bool:
    """Whether the stored object is this one."""
    answer = found(f"GetObject {key}", lambda: s3.get_object(Bucket=bucket, Key=key))
    if answer is None:
        return False
    with translated(f"GetObject {key}"):
        return bool(answer["Body"].read() == body)

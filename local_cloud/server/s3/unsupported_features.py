"""Object lock and replication, which no bucket here has: S3's answers about such buckets.

Tools that describe a bucket (Terraform, backup clients) request these settings and expect S3's own
"not found"; a request that needs them is refused, never accepted without effect.
"""

from __future__ import annotations

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.server.context import Context
from local_cloud.server.s3.target import Target

_LOCK_HEADER = "x-amz-object-lock-"
_ENABLED = "x-amz-bucket-object-lock-enabled"


def check_headers(request: web.BaseRequest) -> None:
    """Raises InvalidRequest or NotImplemented for a request that asks for object lock."""
    if any(name.lower().startswith(_LOCK_HEADER) for name in request.headers):
        raise _no_lock()
    if request.headers.get(_ENABLED, "false").lower() == "true":
        raise not_implemented("S3 object lock")


def check_query(context: Context, target: Target, request: web.BaseRequest) -> None:
    """Raises S3's errors for a bucket that has neither."""
    method = request.method
    if target.key:
        if "retention" in target.query or "legal-hold" in target.query:
            bucket = context.cloud.bucket(target.bucket)
            bucket.get(target.key, target.query.get("versionId", ""))
            raise _no_lock()
        return
    if not {"object-lock", "replication"} & target.query.keys():
        return
    bucket = context.cloud.bucket(target.bucket)
    if "object-lock" in target.query:
        if method == "GET":
            message = "Object Lock configuration does not exist for this bucket"
            raise CloudError("ObjectLockConfigurationNotFoundError", 404, message)
        if bucket.versioning != "Enabled":
            message = "Versioning must be 'Enabled' on the bucket to apply a Object Lock"
            raise CloudError("InvalidBucketState", 409, f"{message} configuration")
    elif method == "GET":
        message = "The replication configuration was not found"
        raise CloudError("ReplicationConfigurationNotFoundError", 404, message)


def _no_lock() -> CloudError:
    return refused("InvalidRequest", "Bucket is missing Object Lock Configuration")

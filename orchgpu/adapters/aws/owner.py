"""The owners of buckets, checked by S3 in every call.

Names of buckets are predictable, or become free when their owner deletes them: another account
could make one first, and would then receive the registry, the packages and users' data, and supply
functions' code. S3 refuses a call (403 AccessDenied) whose `ExpectedBucketOwner` is not the owner
of its bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchgpu.adapters.aws.api import Client, Shape

_EVENT = "provide-client-params.s3"
_ID = "orchgpu-bucket-owner"


def expect_owner(s3: Client, owner_of: Callable[[str], str | None]) -> None:
    """Add the account of its bucket to every later call of this client; idempotent.

    `owner_of` gives the account for a bucket's name, or None where it is not known.
    """

    def owned(params: Shape, model: Any, **_: object) -> None:
        """`model` is botocore's description of the operation, which has no types."""
        known = model.input_shape is not None and "ExpectedBucketOwner" in model.input_shape.members
        owner = owner_of(str(params.get("Bucket", ""))) if known else None
        if owner:
            params.setdefault("ExpectedBucketOwner", owner)

    s3.meta.events.register(_EVENT, owned, unique_id=_ID)

"""The owner of the state bucket, checked by S3 in every call.

The bucket's name is predictable: another account could make it first, and would then receive the
registry and the packages, and supply functions' code. S3 refuses a call (403 AccessDenied) whose
`ExpectedBucketOwner` is not the owner of its bucket.
"""

from __future__ import annotations

from typing import Any

from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import Client, Shape

_EVENT = "provide-client-params.s3"
_ID = "orchgpu-state-bucket-owner"


def expect_owner(s3: Client, place: DeployTarget) -> None:
    """Add the account to every later call of this client to the state bucket; idempotent."""

    def owned(params: Shape, model: Any, **_: object) -> None:
        """`model` is botocore's description of the operation, which has no types."""
        known = model.input_shape is not None and "ExpectedBucketOwner" in model.input_shape.members
        if known and params.get("Bucket") == place.state_bucket:
            params.setdefault("ExpectedBucketOwner", place.account)

    s3.meta.events.register(_EVENT, owned, unique_id=_ID)

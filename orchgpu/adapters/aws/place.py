"""The account and region of a cloud, and the name of its state bucket."""

from __future__ import annotations

from collections.abc import Callable

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import Client
from orchgpu.adapters.aws.errors import translated

#: The account of clouds that have no STS (LocalStack's and the embedded cloud's default).
LOCAL_ACCOUNT = "000000000000"


def place_of(client: Callable[[str], Client], *, local: bool) -> DeployTarget:
    """Ask the cloud. `client` makes the client of a service; `local`: it is not AWS's own."""
    s3 = client("s3")
    place = DeployTarget(
        account=_account(client, local=local),
        region=str(s3.meta.region_name or "us-east-1"),
        partition=str(s3.meta.partition),
        local=local,
    )
    return place if local else replace(place, account_regional=not has_older_state(s3, place))


def has_older_state(s3: Client, place: DeployTarget) -> bool:
    """Whether the account has a state bucket of the earlier name, and none of the newer."""
    newer = replace(place, account_regional=True).state_bucket
    return not _is_ours(s3, newer, place) and _is_ours(s3, place.state_bucket, place)


def _is_ours(s3: Client, bucket: str, place: DeployTarget) -> bool:
    """Whether the account has this bucket; False for one of another account."""
    try:
        with translated(f"HeadBucket {bucket}"):
            s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=place.account)
    except AppError as error:
        if error.code in (ErrorCode.NOT_FOUND, ErrorCode.DENIED):
            return False
        raise
    return True


def _account(client: Callable[[str], Client], *, local: bool) -> str:
    try:
        with translated("GetCallerIdentity"):
            return str(client("sts").get_caller_identity()["Account"])
    except AppError as error:
        if local and error.code in (ErrorCode.INVALID, ErrorCode.NOT_FOUND):
            return LOCAL_ACCOUNT
        raise

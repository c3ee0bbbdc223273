"""Buckets of functions: their owner, region and versioning. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.errors import AppError, ErrorCode
from fdl.plan.desired import buckets_of, users_buckets
from fdl.plan.functions import owners_of
from orchgpu.inspection.model import (
    Check,
    Finding,
    Read,
    ReadCall,
    Subject,
    good,
    refused,
    warning,
    wrong,
)


def _buckets(subject: Subject, read: Read) -> Iterator[Finding]:
    functions = [inspected.function for inspected in subject.functions]
    owners = {name: owner for f in functions for name, owner in owners_of(f).items()}
    versioned = {name for f in functions for name in users_buckets(f)}
    named = [subject.place.state_bucket, *(name for f in functions for name in buckets_of(f))]
    for name in dict.fromkeys(named):
        owned = {"Bucket": name, "ExpectedBucketOwner": owners.get(name, subject.place.account)}
        yield _bucket(subject, owned, read, versioned=name in versioned)


def _bucket(subject: Subject, owned: dict[str, str], read: Read, *, versioned: bool) -> Finding:
    where, wanted = f"bucket {owned['Bucket']}", subject.place.region
    try:
        head = read(ReadCall(service="s3", operation="HeadBucket", arguments=owned))
    except AppError as error:
        return _refused(where, error)
    region = str(head.get("BucketRegion") or wanted)
    if region != wanted:
        message = f"it is in {region}, but the functions are in {wanted}"
        remedy = "name another bucket, or deploy to its region: S3 events do not cross regions"
        return wrong(where, message, remedy)
    exists = f"exists in {region}, owned by {owned['ExpectedBucketOwner']}"
    if not versioned:
        return good(where, exists)
    try:
        answer = read(ReadCall(service="s3", operation="GetBucketVersioning", arguments=owned))
    except AppError as error:
        return refused(error, where)
    if answer.get("Status") == "Enabled":
        return good(where, f"{exists}, with versions")
    message = "it keeps no versions: an input that is overwritten before its job loses it"
    command = f"aws s3api put-bucket-versioning --bucket {owned['Bucket']}"
    return warning(where, message, f"{command} --versioning-configuration Status=Enabled")


def _refused(where: str, error: AppError) -> Finding:
    if error.code is ErrorCode.NOT_FOUND:
        return good(where, "does not exist yet; deploy creates it")
    if error.code is not ErrorCode.DENIED:
        return refused(error, where)
    message = "it belongs to another account, or s3:ListBucket on it is not allowed"
    remedy = "allow s3:ListBucket; else choose another name, or declare its `owner: ACCOUNT`"
    return wrong(where, message, remedy)


CHECK = Check(title="buckets", examine=_buckets)

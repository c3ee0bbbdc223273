"""Tries a store, for `orchgpu.adapters.own.probe`: a bucket of its own, removed in the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.adapters.aws.api import Client, Shape
from orchgpu.adapters.own.probe import StoreFacts
from orchgpu.ports import Tolerating

#: Simultaneous conditional writes of one key.
RACERS = 8
_UNKNOWN_ETAG = '"00000000000000000000000000000000"'
_UNKNOWN_OWNER = "999999999999"
_RULE = "orchgpu-probe"
#: The answers by which a store refuses what it was asked.
_REFUSED = (ErrorCode.CONFLICT, ErrorCode.INVALID, ErrorCode.NOT_FOUND, ErrorCode.DENIED)
#: The code of a call that it does not know (HTTP status 501).
_UNKNOWN = "NotImplemented"


def try_store(s3: Client) -> StoreFacts:
    """The facts. Raises AppError when the store cannot be reached or refuses the keys."""
    bucket = f"orchgpu-probe-{secrets.token_hex(8)}"
    s3.create_bucket(Bucket=bucket)
    try:
        return _facts(s3, bucket)
    finally:
        _remove(s3, bucket)


def _facts(s3: Client, bucket: str) -> StoreFacts:
    def put(key: str, body: bytes = b"", **conditions: str) -> bool:
        return _works(lambda: s3.put_object(Bucket=bucket, Key=key, Body=body, **conditions))

    with ThreadPoolExecutor(RACERS) as threads:
        race = threads.map(lambda n: put("race", b"%d" % n, IfNoneMatch="*"), range(RACERS))
        winners = sum(race)
    put("kept", b"1")
    etag = s3.head_object(Bucket=bucket, Key="kept")["ETag"]
    facts = StoreFacts(
        winners=winners,
        keeps_existing=not put("kept", b"2", IfNoneMatch="*"),
        keeps_changed=not put("kept", b"2", IfMatch=_UNKNOWN_ETAG),
        replaces_known=put("kept", b"3", IfMatch=etag),
        reads_pinned=not _works(
            lambda: s3.get_object(Bucket=bucket, Key="kept", IfMatch=_UNKNOWN_ETAG)
        ),
        checks_owner=not _works(
            lambda: s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=_UNKNOWN_OWNER)
        ),
        expires=_works(lambda: _expires(s3, bucket)),
        notifies=_works(lambda: _notifies(s3, bucket)),
        versions=_works(lambda: _versions(s3, bucket)),
        keeps_filled=False,
    )
    put("versioned", b"333")  # the bucket holds versions alone, which some stores do not look for
    return replace(facts, keeps_filled=not _works(lambda: s3.delete_bucket(Bucket=bucket)))


def _works(call: Callable[[], object]) -> bool:
    """True when a call succeeds; False: the store refused it, or what it promised does not hold."""
    try:
        return call() is not False
    except AppError as error:
        if error.code in _REFUSED or _UNKNOWN in error.message:
            return False
        raise


def _expires(s3: Client, bucket: str) -> bool:
    rule = {"ID": _RULE, "Filter": {"Prefix": "x/"}, "Status": "Enabled", "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    rules = s3.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", ())
    return any(one.get("ID") == _RULE for one in rules)


def _notifies(s3: Client, bucket: str) -> bool:
    """A rule with a target that no store has: those that check targets refuse it by its name."""
    rule: Shape = {
        "Id": _RULE,
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orchgpu-probe",
        "Events": ["s3:ObjectCreated:*"],
    }
    try:
        s3.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [rule]}
        )
    except AppError as error:
        return "arn" in error.message.lower().replace("putbucketnotification", "")
    kept = s3.get_bucket_notification_configuration(Bucket=bucket)
    return bool(kept.get("QueueConfigurations"))


def _versions(s3: Client, bucket: str) -> bool:
    for key in ("race", "kept"):
        s3.delete_object(Bucket=bucket, Key=key)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"22"):
        s3.put_object(Bucket=bucket, Key="versioned", Body=body)
    found = s3.list_object_versions(Bucket=bucket, Prefix="versioned").get("Versions", ())
    if len({one["VersionId"] for one in found}) != 2:
        return False
    old = next(one for one in found if not one["IsLatest"])
    body, _ = s3.body(Bucket=bucket, Key="versioned", VersionId=old["VersionId"])
    return bool(body == b"1")


def _remove(s3: Client, bucket: str) -> None:
    """Remove the bucket with all that the calls left; some stores list no versions."""
    with Tolerating(*_REFUSED, ErrorCode.UNAVAILABLE):
        listed = s3.list_object_versions(Bucket=bucket)
        for one in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())):
            s3.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])
    with Tolerating(*_REFUSED):
        for one in s3.list_objects_v2(Bucket=bucket).get("Contents", ()):
            s3.delete_object(Bucket=bucket, Key=one["Key"])
    with Tolerating(*_REFUSED):
        s3.delete_bucket(Bucket=bucket)

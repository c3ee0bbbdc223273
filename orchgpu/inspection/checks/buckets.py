"""Buckets of functions: their owner, region and versioning. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.plan.desired import buckets_of, users_buckets
from orchgpu.inspection.model import (
    Call,
    Finding,
    Reason,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    unknown,
    warning,
    wrong,
)


class Buckets:
    """The state bucket, and those that the definition names."""

    title = "buckets"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        versioned = {name for f in subject.functions for name in users_buckets(f.function)}
        owners = _owners(subject)
        for name in dict.fromkeys(_names(subject)):
            owner = owners.get(name, subject.place.account)
            findings += yield from _of(subject, name, owner, versioned=name in versioned)
        return findings


def _names(subject: Subject) -> Iterator[str]:
    yield subject.place.state_bucket
    for inspected in subject.functions:
        yield from buckets_of(inspected.function)


def _owners(subject: Subject) -> dict[str, str]:
    """The accounts of buckets that the definition declares to be others'."""
    functions = [inspected.function for inspected in subject.functions]
    storages = [s for f in functions for s in (*f.user_input, *f.function.output)]
    return {storage.path.bucket: storage.owner for storage in storages if storage.owner}


def _of(subject: Subject, name: str, owner: str, *, versioned: bool) -> Steps[list[Finding]]:
    where = f"bucket {name}"
    owned = {"Bucket": name, "ExpectedBucketOwner": owner}
    head = yield from attempted(Call(service="s3", operation="HeadBucket", arguments=owned))
    if isinstance(head, Refusal):
        return [(yield from _refused(subject, name, head))]
    region = head.get("BucketRegion") or (yield from _location(owned))
    if region != subject.place.region:
        message = f"it is in {region}, but the functions are in {subject.place.region}"
        remedy = "name another bucket, or deploy to its region: S3 events do not cross regions"
        return [wrong(where, message, remedy)]
    if not versioned:
        return [good(where, f"exists in {region}, owned by {owner}")]
    answer = yield from attempted(
        Call(service="s3", operation="GetBucketVersioning", arguments=owned)
    )
    if isinstance(answer, Refusal):
        return [unknown(answer, where)]
    if answer.get("Status") != "Enabled":
        message = "it keeps no versions: an input that is overwritten before its job loses it"
        remedy = (
            f"aws s3api put-bucket-versioning --bucket {name}"
            " --versioning-configuration Status=Enabled"
        )
        return [warning(where, message, remedy)]
    return [good(where, f"exists in {region}, owned by {owner}, with versions")]


def _location(owned: dict[str, str]) -> Steps[str]:
    answer = yield Call(service="s3", operation="GetBucketLocation", arguments=owned)
    # https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetBucketLocation.html
    found = answer.get("LocationConstraint") or "us-east-1"
    return "eu-west-1" if found == "EU" else str(found)


def _refused(subject: Subject, name: str, head: Refusal) -> Steps[Finding]:
    where = f"bucket {name}"
    if head.reason is Reason.ABSENT:
        return good(where, "does not exist yet; deploy creates it")
    if head.reason is not Reason.DENIED:
        return unknown(head, where)
    call = Call(service="s3", operation="HeadBucket", arguments={"Bucket": name})
    anyone = yield from attempted(call)
    if not isinstance(anyone, Refusal):
        return wrong(where, "it belongs to another account", _choose(subject, name))
    message = "it belongs to another account, or s3:ListBucket on it is not allowed"
    return wrong(where, message, f"allow s3:ListBucket; else {_choose(subject, name)}")


def _choose(subject: Subject, name: str) -> str:
    if name == subject.place.state_bucket:
        return "use another region, or ask AWS to release the name: nothing of yours is in it"
    return "choose another name, or declare its owner in the definition: owner: ACCOUNT"


CHECK = Buckets()

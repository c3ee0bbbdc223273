"""Buckets with their notifications and lifecycles, and the state bucket's objects, by boto3."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from email.utils import parsedate_to_datetime
from typing import NoReturn

from corekit.decode import decode, decode_known, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import replace
from fdl.plan.resources import (
    EVENT_BRIDGE,
    Bucket,
    DeployTarget,
    Expiry,
    Ledger,
    Notification,
    Package,
    Record,
    WorkflowRecord,
)
from fdl.plan.tags import own_tags
from orchgpu.adapters.aws.api import Client, Shape, all_keys, answer_or_none
from orchgpu.adapters.registry import CHANGED_KEY
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import Tolerating

#: Kinds of target in a notification configuration, with the name of their ARN.
_TARGETS = {
    "QueueConfigurations": "QueueArn",
    "LambdaFunctionConfigurations": "LambdaFunctionArn",
    "TopicConfigurations": "TopicArn",
}
_TARGET_OF = dict(zip(("sqs", "lambda", "sns"), _TARGETS, strict=True))
#: Present in a configuration: all events of the bucket go to EventBridge too.
_EVENT_BRIDGE = "EventBridgeConfiguration"
#: Other programs may write the same configuration between our read and our write.
_MERGE_TRIES = 4
#: Holds the lock of a bucket's rules for a block.
Held = Callable[[str], AbstractContextManager[None]]
#: The key of a record that deploy writes beside the plan's.
DEPLOYED_AT = "deployed_at_s"
#: The keys of a record that name its input: with another input, its uploads count from now.
_INPUT = ("input_bucket", "input_prefix", "input_suffixes")
#: In a versioned bucket expiry only hides: hidden versions are deleted after this.
_HIDDEN_DAYS = 1
#: S3 refuses a rule that both expires objects and deletes the markers which that leaves.
_MARKERS = "-markers"
#: Settings beside the rules, which a put without them would set back.
_SETTINGS = ("TransitionDefaultMinimumObjectSize",)
#: Ids of the rules by which the moto bridge hears of objects (local_cloud.bridge.moto).
_MIRROR_ID_PREFIX = "local-cloud-bridge-"


class Buckets:
    """Buckets. Only empty ones are deleted."""

    def __init__(self, s3: Client, place: DeployTarget) -> None:
        self._s3 = s3
        self._place = place
        self._region = place.region

    def observe(self, name: str, *, owner: str = "", tagged: bool = False) -> Bucket | None:
        """The bucket. `owner`: its account, where not ours; `tagged`: with its tags.

        Raises DENIED for a bucket of another account.
        """
        try:
            answer = answer_or_none(self._s3.head_bucket, Bucket=name)
        except AppError as error:
            if error.code is ErrorCode.DENIED:
                raise AppError(ErrorCode.DENIED, self._not_ours(name, owner)) from error
            raise
        if answer is None:
            return None
        versioning = self._s3.get_bucket_versioning(Bucket=name)
        return Bucket(
            name=name,
            versioned=versioning.get("Status") == "Enabled",
            owner=owner,
            region=_region_of(answer),
            tags=own_tags(self._tags(name)) if tagged else {},
        )

    def _not_ours(self, name: str, owner: str) -> str:
        if owner:
            return (
                f"bucket {name!r} does not belong to account {owner}, or its policy does not let"
                f" account {self._place.account} use it"
            )
        return (
            f"bucket {name!r} belongs to another account than {self._place.account}, or this one's"
            " keys may not use it: choose another name, or write `owner: ACCOUNT` beside its path"
        )

    def _tags(self, name: str) -> dict[str, str]:
        answer = answer_or_none(self._s3.get_bucket_tagging, Bucket=name)
        listed = answer["TagSet"] if answer is not None else ()
        return {str(tag["Key"]): str(tag["Value"]) for tag in listed}

    def _retag(self, bucket: Bucket) -> None:
        """S3 replaces all tags at once: foreign ones are written again."""
        before = self._tags(bucket.name)
        own = own_tags(before)
        tags = {key: value for key, value in before.items() if key not in own} | dict(bucket.tags)
        if tags == before:
            return
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        self._s3.put_bucket_tagging(Bucket=bucket.name, Tagging={"TagSet": listed})

    def put(self, bucket: Bucket, *, exists: bool) -> None:
        if not exists:
            place = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
            arguments = {} if self._region == "us-east-1" else place
            # an interrupted deploy may have made it
            with (
                Tolerating(ErrorCode.CONFLICT),
                _own_namespace(self._s3, bucket.name.endswith(self._place.own_suffix)),
            ):
                self._s3.create_bucket(Bucket=bucket.name, **arguments)
        if bucket.versioned:
            status = {"Status": "Enabled"}
            self._s3.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration=status)
        if bucket.tags:
            self._retag(bucket)

    def delete(self, name: str) -> None:
        """Raises CONFLICT when something was put into it since the plan was made."""
        try:
            answer_or_none(self._s3.delete_bucket, Bucket=name)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            message = f"bucket {name!r} is not empty any more; run the command again to keep it"
            raise AppError(ErrorCode.CONFLICT, message) from error

    def filled(self, name: str) -> bool:
        """True while it holds objects or old versions of them."""
        answer = self._s3.list_object_versions(Bucket=name, MaxKeys=1)
        return bool(answer.get("Versions") or answer.get("DeleteMarkers"))


@contextmanager
def _own_namespace(s3: Client, own: bool) -> Iterator[None]:
    """Calls of a block make buckets in the account's own namespace, where `own`.

    By the header, as S3's model of 2026 has it: older ones of botocore have no such parameter.
    """

    def add(params: Shape, **_: object) -> None:
        params["headers"]["x-amz-bucket-namespace"] = "account-regional"

    event = "before-call.s3.CreateBucket"
    if own:
        s3.meta.events.register(event, add)
    try:
        yield
    finally:
        if own:
            s3.meta.events.unregister(event, add)


def _region_of(answer: Shape) -> str:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(answer.get("BucketRegion") or headers.get("x-amz-bucket-region") or "")


class Notifications:
    """Rules of buckets, changed by get, merge, put, verify: foreign rules survive.

    S3 replaces all rules of a bucket at once and without a condition, so two deploys that merge at
    the same time would lose a rule: `held` serialises them.
    """

    def __init__(self, s3: Client, held: Held | None = None) -> None:
        """Without `held` the rules are read-only."""
        self._s3 = s3
        self._held = held or _only_read

    def observe(self, bucket: str) -> tuple[Notification, ...]:
        """Every rule of a bucket, without the mirrors that the moto bridge adds."""
        configuration = self._get(bucket)
        rules = [
            _rule(bucket, item, item[arn])
            for target, arn in _TARGETS.items()
            for item in configuration.get(target, ())
            if not str(item.get("Id", "")).startswith(_MIRROR_ID_PREFIX)
        ]
        if _EVENT_BRIDGE in configuration:
            rules.append(Notification(bucket=bucket, id=EVENT_BRIDGE, target_arn="", events=()))
        return tuple(rules)

    def put(self, rule: Notification) -> None:
        with self._held(rule.bucket):
            self._merge(rule.bucket, (rule.id,), rule)

    def delete(self, rule: Notification, *along: Notification) -> None:
        """Remove rules of one bucket in one write; no write when none of them is there.

        The destinations of the rules that stay are not checked: one whose function was deleted
        elsewhere would prevent the removal.
        """
        with self._held(rule.bucket):
            self._merge(rule.bucket, (rule.id, *(other.id for other in along)), None)

    def _merge(self, bucket: str, ids: Sequence[str], rule: Notification | None) -> None:
        for _ in range(_MERGE_TRIES):
            before = self._get(bucket)
            merged = _without(before, ids)
            if rule is None and _ids(merged) == _ids(before):
                return
            if rule is not None and rule.id == EVENT_BRIDGE:
                merged[_EVENT_BRIDGE] = {}
            elif rule is not None:
                target, item = _item(rule)
                merged[target] = [*merged.get(target, ()), item]
            self._put(bucket, merged, unchecked=rule is None)
            after = self._get(bucket)
            if _ids(after) == _ids(merged):
                return
        message = f"bucket {bucket}: its notifications are being changed by others; try again later"
        raise AppError(ErrorCode.CONFLICT, message)

    def _get(self, bucket: str) -> Shape:
        answer = self._s3.get_bucket_notification_configuration(Bucket=bucket)
        return {key: value for key, value in answer.items() if key != "ResponseMetadata"}

    def _put(self, bucket: str, configuration: Shape, *, unchecked: bool) -> None:
        self._s3.put_bucket_notification_configuration(
            Bucket=bucket,
            NotificationConfiguration=configuration,
            SkipDestinationValidation=unchecked,
        )


def _only_read(bucket: str) -> NoReturn:
    raise AppError(ErrorCode.INTERNAL, f"the rules of {bucket} are read-only here")


def _rule(bucket: str, item: Shape, arn: str) -> Notification:
    rules = item.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    filters = {str(rule["Name"]).lower(): str(rule["Value"]) for rule in rules}
    return Notification(
        bucket=bucket,
        id=str(item.get("Id", "")),
        target_arn=arn,
        prefix=filters.get("prefix", ""),
        suffix=filters.get("suffix", ""),
        events=tuple(item.get("Events", ())),
    )


def _item(rule: Notification) -> tuple[str, Shape]:
    target = _TARGET_OF[rule.target_arn.split(":")[2]]
    filters = [("prefix", rule.prefix), ("suffix", rule.suffix)]
    rules = [{"Name": name, "Value": value} for name, value in filters if value]
    item: Shape = {"Id": rule.id, _TARGETS[target]: rule.target_arn, "Events": list(rule.events)}
    if rules:
        item["Filter"] = {"Key": {"FilterRules": rules}}
    return target, item


def _without(configuration: Shape, ids: Sequence[str]) -> Shape:
    """`EVENT_BRIDGE` is the setting, whatever a user's rule is called."""
    merged, own = dict(configuration), set(ids) - {EVENT_BRIDGE}
    for target in _TARGETS:
        kept = [item for item in merged.pop(target, ()) if item.get("Id") not in own]
        if kept:
            merged[target] = kept
    if EVENT_BRIDGE in ids:
        merged.pop(_EVENT_BRIDGE, None)
    return merged


def _ids(configuration: Shape) -> list[str]:
    items = [item for target in _TARGETS for item in configuration.get(target, ())]
    flags = [EVENT_BRIDGE] if _EVENT_BRIDGE in configuration else []
    return sorted([*flags, *(str(item.get("Id", "")) for item in items)])


class Expiries:
    """Lifecycle rules of buckets, changed by get, merge, put while their lock is held."""

    def __init__(self, s3: Client, held: Held) -> None:
        self._s3 = s3
        self._held = held

    def observe(self, bucket: str, rule_id: str) -> Expiry | None:
        rules = {str(rule.get("ID")): rule for rule in self._get(bucket).get("Rules", ())}
        rule = rules.get(rule_id)
        if rule is None or rule.get("Status") != "Enabled":
            return None
        days = int(rule.get("Expiration", {}).get("Days", 0))
        if days and rule_id + _MARKERS not in rules:
            return None
        uploads = rule.get("AbortIncompleteMultipartUpload", {})
        return Expiry(
            bucket=bucket,
            id=rule_id,
            prefix=str(rule.get("Filter", {}).get("Prefix", "")),
            days=days,
            uploads_days=int(uploads.get("DaysAfterInitiation", 0)),
        )

    def put(self, expiry: Expiry) -> None:
        with self._held(expiry.bucket):
            self._merge(expiry, _rules(expiry))

    def delete(self, expiry: Expiry) -> None:
        with self._held(expiry.bucket):
            self._merge(expiry, [])

    def _merge(self, expiry: Expiry, rules: list[Shape]) -> None:
        own = (expiry.id, expiry.id + _MARKERS)
        before = self._get(expiry.bucket)
        others = [_filtered(one) for one in before.get("Rules", ()) if one.get("ID") not in own]
        kept = {name: before[name] for name in _SETTINGS if name in before}
        self._put(expiry.bucket, [*others, *rules], kept)

    def _get(self, bucket: str) -> Shape:
        # no bucket, or no rules
        return answer_or_none(self._s3.get_bucket_lifecycle_configuration, Bucket=bucket) or {}

    def _put(self, bucket: str, rules: list[Shape], settings: Shape) -> None:
        if rules:
            self._s3.put_bucket_lifecycle_configuration(
                Bucket=bucket, LifecycleConfiguration={"Rules": rules}, **settings
            )
        else:
            self._s3.delete_bucket_lifecycle(Bucket=bucket)


def _rules(expiry: Expiry) -> list[Shape]:
    common = {"Filter": {"Prefix": expiry.prefix}, "Status": "Enabled"}
    if not expiry.days:
        return [{"ID": expiry.id, **common, **_uploads(expiry)}]
    return [
        {
            "ID": expiry.id,
            **common,
            "Expiration": {"Days": expiry.days},
            "NoncurrentVersionExpiration": {"NoncurrentDays": _HIDDEN_DAYS},
            **_uploads(expiry),
        },
        {"ID": expiry.id + _MARKERS, **common, "Expiration": {"ExpiredObjectDeleteMarker": True}},
    ]


def _uploads(expiry: Expiry) -> Shape:
    days = expiry.uploads_days
    return {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days}} if days else {}


def _filtered(rule: Shape) -> Shape:
    """A foreign rule in the newer form: S3 refuses `Prefix` of the older one beside filters."""
    if "Filter" in rule or "Prefix" not in rule:
        return rule
    rest = {name: value for name, value in rule.items() if name != "Prefix"}
    return {**rest, "Filter": {"Prefix": rule["Prefix"]}}


class StateObjects:
    """Packages, and records and ledgers in the state bucket."""

    def __init__(self, s3: Client, place: DeployTarget) -> None:
        self._s3 = s3
        self._place = place

    def package(self, bucket: str, sha256: str) -> Package | None:
        package = Package(bucket=bucket, sha256=sha256)
        key = package.object_key
        head = answer_or_none(self._s3.head_object, Bucket=bucket, Key=key)
        return None if head is None else package

    def record(self, kind: str, name: str) -> Record | None:
        """The record of a function or a workflow; None where there is none."""
        made = WorkflowRecord if kind == WorkflowRecord.kind else Record
        empty = made(name=name, bucket=self._place.state_bucket, body={})
        body = self._read(empty.object_key)
        if not isinstance(body, dict):
            return None
        if body.get(DEPLOYED_AT):  # a time is not a part of any plan
            del body[DEPLOYED_AT]
        return replace(empty, body=body)

    def ledgers(self) -> dict[str, Ledger]:
        """Every ledger; an unreadable one is INVALID, because ignoring it could delete too much."""
        ledgers = {}
        for key in all_keys(self._s3, self._place.state_bucket, "deployments/"):
            body = self._read(key)
            if body is not None:
                ledger, _ = decode_known(Ledger, body, key)
                ledgers[ledger.name] = ledger
        return ledgers

    def write_package(self, package: Package, data: bytes) -> None:
        self._write(package.object_key, data, "application/zip", bucket=package.bucket)

    def write_record(self, record: Record) -> None:
        if DEPLOYED_AT in record.body:
            body = dict(record.body)
        else:
            body = {**record.body, DEPLOYED_AT: self._deployed_at_s(record)}
        kind = Workflow if isinstance(record, WorkflowRecord) else Function
        decode(kind, body, record.object_key)  # orchestrators must be able to read it
        self._write(record.object_key, _json(body), "application/json")
        self._announce()

    def _deployed_at_s(self, record: Record) -> float:
        """The store's time of the first deploy with the input of this record."""
        before = self._read(record.object_key)
        if isinstance(before, dict) and all(before.get(k) == record.body.get(k) for k in _INPUT):
            known = before.get(DEPLOYED_AT)
            if isinstance(known, float) and known > 0:
                return known
        answer = self._s3.head_bucket(Bucket=record.bucket)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return parsedate_to_datetime(date).timestamp() if date else time.time()

    def write_ledger(self, ledger: Ledger) -> None:
        self._write(ledger.object_key, _json(encode(ledger)), "application/json")

    def delete(self, item: Package | Record | Ledger) -> None:
        self._s3.delete_object(Bucket=item.bucket, Key=item.object_key)
        if isinstance(item, Record):
            self._announce()

    def _announce(self) -> None:
        self._write(CHANGED_KEY, uuid.uuid4().hex.encode(), "text/plain")

    def _read(self, key: str) -> object:
        bucket = self._place.state_bucket
        read = answer_or_none(self._s3.body, Bucket=bucket, Key=key)
        if read is None:
            return None
        try:
            return json.loads(read[0])
        except ValueError as error:
            raise invalid(f"s3://{bucket}/{key} is not JSON: {error}") from error

    def _write(self, key: str, data: bytes, content_type: str, *, bucket: str = "") -> None:
        self._s3.put_object(
            Bucket=bucket or self._place.state_bucket,
            Key=key,
            Body=data,
            ContentType=content_type,
        )


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()

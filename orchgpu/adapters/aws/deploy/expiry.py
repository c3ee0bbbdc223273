"""Lifecycle rules by boto3: what deletes envelopes, results and cut-off uploads; others survive."""

from __future__ import annotations

from fdl.plan.resources import Expiry
from orchgpu.adapters.aws.api import Client, Shape, found
from orchgpu.adapters.aws.deploy.storage import Held
from orchgpu.adapters.aws.errors import translated

#: In a versioned bucket expiry only hides: hidden versions are deleted after this.
_HIDDEN_DAYS = 1
#: S3 refuses a rule that both expires objects and deletes the markers which that leaves.
_MARKERS = "-markers"
#: Settings beside the rules, which a put without them would set back.
_SETTINGS = ("TransitionDefaultMinimumObjectSize",)


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
        """Replace the rules of one expiry; all else of the bucket's lifecycle stays."""
        own = (expiry.id, expiry.id + _MARKERS)
        before = self._get(expiry.bucket)
        others = [_filtered(one) for one in before.get("Rules", ()) if one.get("ID") not in own]
        kept = {name: before[name] for name in _SETTINGS if name in before}
        self._put(expiry.bucket, [*others, *rules], kept)

    def _get(self, bucket: str) -> Shape:
        answer = found(
            f"GetBucketLifecycleConfiguration {bucket}",
            lambda: self._s3.get_bucket_lifecycle_configuration(Bucket=bucket),
        )
        return answer or {}  # no bucket, or no rules

    def _put(self, bucket: str, rules: list[Shape], settings: Shape) -> None:
        with translated(f"PutBucketLifecycleConfiguration {bucket}"):
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

"""Lifecycle rules that delete staged envelopes, by boto3; foreign rules of a bucket survive."""

from __future__ import annotations

from fdl.plan.resources import Expiry
from orchgpu.adapters.aws.api import Client, Shape, found
from orchgpu.adapters.aws.deploy.settling import BUSY_BUCKET, Settling
from orchgpu.adapters.aws.deploy.storage import Held
from orchgpu.adapters.aws.errors import translated

#: In a versioned bucket expiry only hides: hidden versions are deleted after this.
_HIDDEN_DAYS = 1
#: S3 refuses a rule that both expires objects and deletes the markers which that leaves.
_MARKERS = "-markers"


class Expiries:
    """Lifecycle rules of buckets, changed by get, merge, put while their lock is held."""

    def __init__(self, s3: Client, held: Held, settling: Settling | None = None) -> None:
        self._s3 = s3
        self._settled = (settling or Settling()).settled
        self._held = held

    def observe(self, bucket: str, rule_id: str) -> Expiry | None:
        rules = {str(rule.get("ID")): rule for rule in self._get(bucket)}
        rule = rules.get(rule_id)
        if rule is None or rule_id + _MARKERS not in rules or rule.get("Status") != "Enabled":
            return None
        return Expiry(
            bucket=bucket,
            id=rule_id,
            prefix=str(rule.get("Filter", {}).get("Prefix", "")),
            days=int(rule.get("Expiration", {}).get("Days", 0)),
        )

    def put(self, expiry: Expiry) -> None:
        with self._held(expiry.bucket):
            self._put(expiry.bucket, [*self._foreign(expiry), *_rules(expiry)])

    def delete(self, expiry: Expiry) -> None:
        with self._held(expiry.bucket):
            self._put(expiry.bucket, self._foreign(expiry))

    def _foreign(self, expiry: Expiry) -> list[Shape]:
        own = (expiry.id, expiry.id + _MARKERS)
        return [rule for rule in self._get(expiry.bucket) if rule.get("ID") not in own]

    def _get(self, bucket: str) -> list[Shape]:
        answer = found(
            f"GetBucketLifecycleConfiguration {bucket}",
            lambda: self._s3.get_bucket_lifecycle_configuration(Bucket=bucket),
        )
        return [] if answer is None else list(answer.get("Rules", ()))  # no bucket, or no rules

    def _put(self, bucket: str, rules: list[Shape]) -> None:
        with translated(f"PutBucketLifecycleConfiguration {bucket}"):
            if rules:
                self._settled(
                    lambda: self._s3.put_bucket_lifecycle_configuration(
                        Bucket=bucket, LifecycleConfiguration={"Rules": rules}
                    ),
                    *BUSY_BUCKET,
                )
            else:
                self._settled(lambda: self._s3.delete_bucket_lifecycle(Bucket=bucket), *BUSY_BUCKET)


def _rules(expiry: Expiry) -> list[Shape]:
    common = {"Filter": {"Prefix": expiry.prefix}, "Status": "Enabled"}
    return [
        {
            "ID": expiry.id,
            **common,
            "Expiration": {"Days": expiry.days},
            "NoncurrentVersionExpiration": {"NoncurrentDays": _HIDDEN_DAYS},
        },
        {"ID": expiry.id + _MARKERS, **common, "Expiration": {"ExpiredObjectDeleteMarker": True}},
    ]

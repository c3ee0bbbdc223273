"""S3 event notifications: rules, their filters, and the records, exactly as AWS makes them.

Sources: S3 user guide, "Event message structure" (version 2.1) and "Configuring event
notifications": one rule per event type and overlapping filters, destinations are checked when the
configuration is set, and a queue gets an `s3:TestEvent`.
"""

from __future__ import annotations

import datetime
import itertools
import re
import urllib.parse
from collections.abc import Iterable, Sequence

from corekit.values import Value
from local_cloud.model.arns import Account
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3.object_version import ObjectVersion

#: Event types a rule may name. Only those of created and removed objects are produced.
_EVENT = re.compile(
    r"s3:(ObjectCreated:(\*|Put|Post|Copy|CompleteMultipartUpload)"
    r"|ObjectRemoved:(\*|Delete|DeleteMarkerCreated)"
    r"|ObjectRestore:(\*|Post|Completed|Delete)|ReducedRedundancyLostObject|Replication:\*"
    r"|ObjectTagging:(\*|Put|Delete)|ObjectAcl:Put|LifecycleTransition|IntelligentTiering"
    r"|LifecycleExpiration:(\*|Delete|DeleteMarkerCreated))"
)


class Rule(Value):
    """One destination for the events of matching keys."""

    id: str
    arn: str  #: of a queue or a function
    events: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""

    def matches(self, event: str, key: str) -> bool:
        """`event` is without `s3:` in front, as in a record's eventName."""
        return (
            any(_covers(wanted, "s3:" + event) for wanted in self.events)
            and key.startswith(self.prefix)
            and key.endswith(self.suffix)
        )


def check_rules(rules: Sequence[Rule]) -> None:
    """Raises InvalidArgument for unknown event types, repeated ids and overlapping rules."""
    for rule in rules:
        if not rule.events or not all(map(_EVENT.fullmatch, rule.events)):
            raise refused("InvalidArgument", "The event is not supported for notifications")
    if len({rule.id for rule in rules}) < len(rules):
        raise refused("InvalidArgument", "Same ID used for multiple configurations.")
    for rule, other in itertools.combinations(rules, 2):
        if _overlap(rule, other):
            raise refused("InvalidArgument", "Configurations overlap by a common event type.")


def _overlap(rule: Rule, other: Rule) -> bool:
    events = any(
        _covers(a, b) or _covers(b, a) for a, b in itertools.product(rule.events, other.events)
    )
    prefixes = rule.prefix.startswith(other.prefix) or other.prefix.startswith(rule.prefix)
    suffixes = rule.suffix.endswith(other.suffix) or other.suffix.endswith(rule.suffix)
    return events and prefixes and suffixes


def _covers(pattern: str, event: str) -> bool:
    if pattern.endswith(":*"):
        return event.startswith(pattern[:-1])
    return pattern == event


def bad_destination() -> CloudError:
    """S3's answer to an unknown destination, or one that does not let S3 in."""
    return refused("InvalidArgument", "Unable to validate the following destination configurations")


def record_of(
    rule: Rule,
    event: str,
    at_s: float,
    bucket: str,
    version: ObjectVersion,
    account: Account,
    request_id: str,
) -> dict[str, object]:
    """One entry of `Records`. Fields of a removal are those that AWS leaves: key and sequencer."""
    entity: dict[str, object] = {"key": quoted_key(version.key)}
    if event.startswith("ObjectCreated"):
        entity |= {"size": version.size, "eTag": version.etag}
    elif version.marker:
        entity |= {"eTag": "d41d8cd98f00b204e9800998ecf8427e"}
    if version.version_id != "null":
        entity["versionId"] = version.version_id
    entity["sequencer"] = version.sequencer
    owner = {"principalId": f"AWS:{account.id}"}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": account.region,
        "eventTime": iso_time(at_s),
        "eventName": event,
        "userIdentity": owner,
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": request_id, "x-amz-id-2": request_id},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": rule.id,
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": account.id},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": entity,
        },
    }


def test_event(bucket: str, at_s: float, request_id: str) -> dict[str, object]:
    """The test event of a queue, sent when a configuration that names it is set."""
    return {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": iso_time(at_s),
        "Bucket": bucket,
        "RequestId": request_id,
        "HostId": request_id,
    }


def matching(rules: Iterable[Rule], event: str, key: str) -> list[Rule]:
    """The rules that an event of this key goes by (at most one, as they cannot overlap)."""
    return [rule for rule in rules if rule.matches(event, key)]


def quoted_key(key: str) -> str:
    """A key as in AWS's records: form-encoded, space as `+`, `/` unchanged."""
    return urllib.parse.quote_plus(key, safe="/")


def iso_time(at_s: float) -> str:
    """`2026-01-31T12:00:00.000Z`."""
    whole, thousandths = divmod(round(at_s * 1000), 1000)
    moment = datetime.datetime.fromtimestamp(whole, tz=datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{thousandths:03d}Z"

"""The events of stores' webhooks, in their several forms, as events of S3. Pure; raises nothing.

SeaweedFS reports changes of files, its own among them: an object `KEY` of a versioned bucket is the
file `/buckets/BUCKET/KEY.versions/v_ID`, of another one `/buckets/BUCKET/KEY`. MinIO, RustFS
and Ceph send S3's records. What is not a new object of a user is left out.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from corekit.values import Value
from fdl.plan.resources import Notification
from orchgpu.core.routing import RECORDS_MAX, InputEvent, classify

_BUCKETS, _VERSIONS, _VERSION = "/buckets/", ".versions", "v_"
#: Parts of uploads, and SeaweedFS's own objects.
_HIDDEN = ".uploads"
_SYSTEM = "."
_EXTENDED = "Seaweed-X-Amz-"


class _Bucket(Value):
    """A taker of all events of one bucket."""

    name: str
    input_bucket: str


def events_of(body: object) -> list[InputEvent]:
    """The new objects that a webhook's JSON reports, in its order."""
    if not isinstance(body, Mapping):
        return []
    records = body.get("Records")
    if isinstance(records, list):
        found = [_of_record(record) for record in records[:RECORDS_MAX]]
    else:
        found = [_of_file(body)]
    return [event for event in found if event is not None]


def messages_for(event: InputEvent, rules: Iterable[Notification]) -> Iterator[tuple[str, str]]:
    """The queue and the body of each message that the rules of the event's bucket want."""
    for rule in rules:
        wanted = any("ObjectCreated:" in name for name in rule.events)
        matches = event.key.startswith(rule.prefix) and event.key.endswith(rule.suffix)
        if wanted and matches and rule.bucket == event.bucket:
            yield name_of(rule.target_arn), json.dumps(event.as_s3_event())


def name_of(arn: str) -> str:
    """The queue that a plan names by an ARN; "" = none."""
    return arn.rpartition(":")[2]


def _of_record(record: object) -> InputEvent | None:
    """Of a record in S3's form; MinIO's event names begin with `s3:`."""
    if not isinstance(record, Mapping):
        return None
    bucket = _at(record, "s3", "bucket", "name")
    if not isinstance(bucket, str):
        return None
    plain = {**record, "eventName": str(record.get("eventName", "")).removeprefix("s3:")}
    try:
        text = json.dumps({"Records": [plain]})
    except (ValueError, RecursionError):
        return None
    event = classify(text, _Bucket(name=bucket, input_bucket=bucket))
    return event if isinstance(event, InputEvent) else None


def _of_file(body: Mapping[str, object]) -> InputEvent | None:
    """Of a change of a file in SeaweedFS."""
    kind, folder = body.get("event_type"), _at(body, "message", "new_parent_path")
    entry = _at(body, "message", "new_entry")
    if not isinstance(entry, Mapping) or not isinstance(folder, str) or entry.get("is_directory"):
        return None
    path = f"{folder}/{entry.get('name')}"
    bucket, _, key = path.removeprefix(_BUCKETS).partition("/")
    if not path.startswith(_BUCKETS) or not key or bucket.startswith(_SYSTEM):
        return None
    if key.split("/", 1)[0] == _HIDDEN or _extended(entry, "Delete-Marker") == "true":
        return None
    version = None
    parent, _, name = key.rpartition("/")
    if parent.endswith(_VERSIONS) and name.startswith(_VERSION):
        key, version = parent.removesuffix(_VERSIONS), name.removeprefix(_VERSION)
        if kind == "update":  # an older version, which has become the second newest
            return None
    return InputEvent(
        bucket=bucket,
        key=key,
        version_id=version,
        etag=_extended(entry, "ETag"),
        size=_number(_at(entry, "attributes", "file_size")),
        event_name="ObjectCreated:Put",
        event_time=_time(_number(_at(entry, "attributes", "mtime"))),
    )


def _at(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _extended(entry: Mapping[str, object], name: str) -> str:
    """One of the attributes that SeaweedFS keeps for S3, in base64; "" = none."""
    text = _at(entry, "extended", _EXTENDED + name)
    try:
        return base64.b64decode(text, validate=True).decode() if isinstance(text, str) else ""
    except (binascii.Error, ValueError):
        return ""


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _time(wall_s: int) -> str:
    try:
        return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""

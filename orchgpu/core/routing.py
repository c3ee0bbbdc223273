"""The verdict on a queue message: an input event, or the reason why it is not one. Raises nothing.

S3 sends its events at least once, with keys `unquote_plus`-encoded, sometimes several records in a
message, and an `s3:TestEvent` when a trigger is configured (AWS: "Event message structure").
Messages forwarded by SNS or EventBridge are unwrapped; invalid ones are quarantined.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote, unquote_plus

import msgspec

from contract.run import RUN_ID, inputs_key, step_job_id
from contract.states import Reason
from corekit.values import Value, replace

#: SQS's own limit of a message.
BODY_BYTES_MAX = 1024 * 1024
KEY_BYTES_MAX = 1024  #: S3's limit of a key, in UTF-8
VERSION_CHARS_MAX = 1024  #: S3's limit of a version id
OBJECT_BYTES_MAX = 2**53  #: above what S3 stores (50 TiB), below what every JSON reader keeps exact
#: S3 puts one record into an event; SNS or a script may gather a few. A message of thousands would
#: delay every other job while it is split.
RECORDS_MAX = 100
_WALL_S_MAX = 1e11  #: the year 5138


class StepOf(Value):
    """The place of a job in a run: the step of a workflow that it is, and the part of it."""

    run: str
    workflow: str
    step: str  #: the name of its function
    part: str = ""  #: see `contract.run.step_job_id`
    feeder: str = ""  #: the step that wrote its one file; "" = the input of the run, or a list
    #: Of `run.json`, whose metadata the job gets too; "" = the run's input has none.
    run_bucket: str = ""
    files_text: str = ""  #: for people: the files of its list; "" = it has one file

    @property
    def job(self) -> str:
        return step_job_id(self.run, self.step, self.part)


class InputEvent(Value):
    """One object version, as an event names it."""

    bucket: str
    key: str  #: decoded exactly once
    version_id: str | None  #: None on an unversioned bucket
    etag: str  #: without quotes; "" when the event had none
    size: int
    event_name: str
    event_time: str
    sequencer: str = ""
    dead_at_s: float | None = None  #: of a redriven dead-letter copy: the time it was sent
    step: StepOf | None = None  #: of a run of a workflow; None = a job of its own
    max_cost_usd: float | None = None  #: of a step's job: what its run has left
    counts_cost: bool = False  #: of a step's job: its run has an objective of cost
    ready_at_s: float | None = None  #: of a step: wall clock of the end of those before it

    @property
    def lists_files(self) -> bool:
        """Whether the object is the list of a step's files (`contract.run`), not a file."""
        return self.step is not None and self.key == inputs_key(self.step.run, self.step.step)

    def as_s3_event(self) -> dict[str, object]:
        """The event with this one record, as the user's script finds it in EVENT."""
        entry: dict[str, object] = {
            "key": quote(self.key, safe="/!-_.*'()"),
            "size": self.size,
            "eTag": self.etag,
            "sequencer": self.sequencer,
        }
        if self.version_id is not None:
            entry["versionId"] = self.version_id
        record = {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "eventTime": self.event_time,
            "eventName": self.event_name,
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": self.bucket, "arn": f"arn:aws:s3:::{self.bucket}"},
                "object": entry,
            },
        }
        return {"Records": [record]}


class Ignored(Value):
    """Nothing to do and nothing wrong: delete the message."""

    why: str


class Rejected(Value):
    """An invalid event: quarantine the message with this reason."""

    reason: Reason
    detail: str


class Several(Value):
    """More than one record: each is sent again as a message of its own."""

    bodies: tuple[str, ...]


Classified = InputEvent | Ignored | Rejected | Several


class Taker(Protocol):
    """A function or a workflow, as far as its events are concerned."""

    @property
    def name(self) -> str: ...

    @property
    def input_bucket(self) -> str: ...


def classify(body: str, function: Taker) -> Classified:
    """The verdict on a message of its queue. Total: any string gives one.

    msgspec refuses half of a surrogate pair, which the standard library reads and no encoder
    accepts: it would raise at the next hop.
    """
    if len(body) > BODY_BYTES_MAX:
        return Rejected(reason=Reason.BAD_EVENT, detail="the message is larger than 1 MiB")
    try:
        value = _unwrap(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return Rejected(reason=Reason.BAD_EVENT, detail="the message is not JSON of Unicode text")
    return _classify_value(value, function)


def _unwrap(value: object) -> object:
    """Take an S3 event out of an SNS notification or an EventBridge event, once."""
    if not isinstance(value, Mapping):
        return value
    if value.get("Type") == "Notification" and isinstance(value.get("Message"), str):
        return msgspec.json.decode(value["Message"])
    if value.get("source") == "aws.s3" and isinstance(value.get("detail"), Mapping):
        return {"Records": [_from_event_bridge(value)]}
    return value


def _from_event_bridge(value: Mapping[str, object]) -> dict[str, object]:
    detail = _mapping(value.get("detail"))
    entry = _mapping(detail.get("object"))
    created = value.get("detail-type") == "Object Created"
    return {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:" + str(detail.get("reason", "Put")) if created else "Other",
        "eventTime": value.get("time", ""),
        "s3": {
            "bucket": detail.get("bucket"),
            "object": {
                "key": quote(str(entry.get("key", ""))),  # EventBridge does not encode keys
                "size": entry.get("size"),
                "eTag": entry.get("etag"),
                "versionId": entry.get("version-id"),
                "sequencer": entry.get("sequencer"),
            },
        },
    }


def _classify_value(value: object, function: Taker) -> Classified:
    if not isinstance(value, Mapping):
        return Rejected(reason=Reason.BAD_EVENT, detail="the message is not a JSON object")
    if value.get("Event") == "s3:TestEvent":
        return Ignored(why="s3:TestEvent")
    records = value.get("Records")
    if not isinstance(records, list):
        return Rejected(reason=Reason.BAD_EVENT, detail="the message has no list of Records")
    if not records:
        return Ignored(why="an event without records")
    if len(records) > RECORDS_MAX:
        detail = (
            f"the message has {len(records)} records; at most {RECORDS_MAX} are accepted: send them"
            " in several messages"
        )
        return Rejected(reason=Reason.BAD_EVENT, detail=detail)
    if len(records) > 1:
        rest = {k: v for k, v in value.items() if k != "Records"}
        return Several(bodies=tuple(json.dumps({**rest, "Records": [r]}) for r in records))
    note = _mapping(value.get("orchgpu"))
    step = _step_of(note) if "step" in note else None
    if "step" in note and (step is None or step.step != function.name):
        detail = f"the message is of no step of a run that {function.name} has"
        return Rejected(reason=Reason.BAD_EVENT, detail=detail)
    verdict = _classify_record(records[0], step, function)
    if isinstance(verdict, InputEvent):
        dead_at_s, ready_at_s = _wall_s(note, "dead_at"), _wall_s(note, "ready_at")
        cap_usd = None if step is None else _max_cost_usd(note)
        return replace(
            verdict,
            dead_at_s=dead_at_s,
            step=step,
            ready_at_s=ready_at_s,
            max_cost_usd=cap_usd,
            counts_cost=step is not None and note.get("counts_cost") is True,
        )
    return verdict


def _step_of(note: Mapping[str, object]) -> StepOf | None:
    """The place of a job in a run; None for anything that is not one."""
    value = _mapping(note.get("step"))
    texts = {name: text for name, text in value.items() if isinstance(text, str)}
    known = {name: texts[name] for name in StepOf.__struct_fields__ if name in texts}
    if not RUN_ID.fullmatch(known.get("run", "")) or not {"workflow", "step"} <= known.keys():
        return None
    return StepOf(**known)


def _wall_s(note: Mapping[str, object], name: str) -> float | None:
    """A time of a note: `dead_at`, a dead-letter copy was sent; `ready_at`, a step could begin."""
    wall_s = note.get(name)
    if isinstance(wall_s, bool) or not isinstance(wall_s, (int, float)):
        return None
    return float(wall_s) if 0 <= wall_s < _WALL_S_MAX else None


def _max_cost_usd(note: Mapping[str, object]) -> float | None:
    """The rest of the cap of a step's run; None = it has no cap."""
    cap = note.get("max_cost_usd")
    if isinstance(cap, bool) or not isinstance(cap, (int, float)):
        return None
    return float(cap) if 0 <= cap < math.inf else None


def _classify_record(record: object, step: StepOf | None, function: Taker) -> Classified:
    if not isinstance(record, Mapping) or not isinstance(record.get("s3"), Mapping):
        return Rejected(reason=Reason.BAD_EVENT, detail="the record is not an S3 event record")
    name = record.get("eventName")
    if not isinstance(name, str):
        return Rejected(reason=Reason.BAD_EVENT, detail="the record has no eventName")
    if not name.removeprefix("s3:").startswith("ObjectCreated:"):
        return Ignored(why=f"{name[:60]} creates no object")
    bucket, entry = record["s3"].get("bucket"), record["s3"].get("object")
    if not isinstance(bucket, Mapping) or not isinstance(entry, Mapping):
        return Rejected(reason=Reason.BAD_EVENT, detail="the record names no bucket or no object")
    if step is None and bucket.get("name") != function.input_bucket:
        detail = f"bucket {str(bucket.get('name'))[:80]!r} is not the input of {function.name}"
        return Rejected(reason=Reason.BAD_EVENT, detail=detail)
    return _classify_object(entry, record, str(bucket.get("name")), name)


def _classify_object(
    entry: Mapping[str, object], record: Mapping[str, object], bucket: str, name: str
) -> Classified:
    raw = entry.get("key")
    if not isinstance(raw, str) or not raw:
        return Rejected(reason=Reason.BAD_KEY, detail="the record has no object key")
    key = unquote_plus(raw, errors="surrogateescape")
    if "\0" in key or len(key.encode("utf-8", "surrogateescape")) > KEY_BYTES_MAX:
        return Rejected(reason=Reason.BAD_KEY, detail="the object key is not a valid S3 key")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in key):
        return Rejected(reason=Reason.BAD_KEY, detail="the object key is not UTF-8")
    if key.endswith("/"):
        return Ignored(why="a folder marker")
    size, version = entry.get("size"), entry.get("versionId")
    if isinstance(version, str) and len(version) > VERSION_CHARS_MAX:
        return Rejected(reason=Reason.BAD_EVENT, detail="the version id is longer than any of S3's")
    return InputEvent(
        bucket=bucket,
        key=key,
        version_id=version if isinstance(version, str) and version not in ("", "null") else None,
        etag=_text(entry.get("eTag")).strip('"'),
        size=size if type(size) is int and 0 <= size <= OBJECT_BYTES_MAX else 0,
        event_name=name,
        event_time=_text(record.get("eventTime")),
        sequencer=_text(entry.get("sequencer")),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    """A string field of an event, bounded: events come from outside."""
    return value[:128] if isinstance(value, str) else ""

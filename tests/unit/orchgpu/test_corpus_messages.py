"""The corpora of messages and keys: each with its exact verdict, and nothing else happens.

A key goes the whole way in one process: S3's encoding of it in an event, the envelope, the name of
the file that the script gets. `tests/e2e/test_events_and_keys.py` sends some through real ones.
"""

import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from lambda_functions.gpu_runner.envelope import Envelope
from lambda_functions.gpu_runner.sandbox import input_name
from orchgpu.core import actions as do
from orchgpu.core.routing import Ignored, InputEvent, Rejected, Several, classify
from orchgpu.ports import StoredObject
from orchgpu.replica.actions.packing import pack
from tests.unit.orchgpu.jobs import FUNCTION, JOB, granted, s3_record
from tests.unit.orchgpu.test_routing import EVENT_BRIDGE, SNS, TEST_EVENT

RECORD = s3_record()


def one(**changes: Any) -> str:
    """A message with one record, changed at its top."""
    return json.dumps({"Records": [{**RECORD, **changes}]})


def of(**changes: Any) -> str:
    """A message whose record's object is changed; None takes a field away."""
    entry = {**RECORD["s3"]["object"], **changes}
    entry = {name: value for name, value in entry.items() if value is not None}
    return one(s3={"bucket": {"name": "in"}, "object": entry})


def deep(levels: int) -> str:
    return '{"Records": ' + "[" * levels + "]" * levels + "}"


EVENTS: dict[str, tuple[str, str]] = {
    "test event": (json.dumps(TEST_EVENT), "ignored: s3:TestEvent"),
    "empty": ("", "BAD_EVENT: the message is not JSON of Unicode text"),
    "blank": ("  \n", "BAD_EVENT: the message is not JSON of Unicode text"),
    "empty object": ("{}", "BAD_EVENT: the message has no list of Records"),
    "empty list": ("[]", "BAD_EVENT: the message is not a JSON object"),
    "null": ("null", "BAD_EVENT: the message is not a JSON object"),
    "a number": ("7", "BAD_EVENT: the message is not a JSON object"),
    "a text": ('"Records"', "BAD_EVENT: the message is not a JSON object"),
    "not JSON": ("<Error/>", "BAD_EVENT: the message is not JSON of Unicode text"),
    "cut JSON": (one()[:-9], "BAD_EVENT: the message is not JSON of Unicode text"),
    "NaN": ("NaN", "BAD_EVENT: the message is not JSON of Unicode text"),
    "nested too deep": (deep(100_000), "BAD_EVENT: the message is not JSON of Unicode text"),
    "nested deep": (deep(50), "BAD_EVENT: the record is not an S3 event record"),
    "over 1 MiB": (one(x="x" * 2**20), "BAD_EVENT: the message is larger than 1 MiB"),
    "half a surrogate": (of(key="\ud800"), "BAD_EVENT: the message is not JSON of Unicode text"),
    "records are no list": ('{"Records": {}}', "BAD_EVENT: the message has no list of Records"),
    "no records": ('{"Records": []}', "ignored: an event without records"),
    "two records": (json.dumps({"Records": [RECORD, RECORD]}), "2 messages"),
    "records of two buckets": (
        json.dumps({"Records": [RECORD, {"s3": {"bucket": {"name": "x"}}}]}),
        "2 messages",
    ),
    "a record that is null": (
        '{"Records": [null]}',
        "BAD_EVENT: the record is not an S3 event record",
    ),
    "an empty record": ('{"Records": [{}]}', "BAD_EVENT: the record is not an S3 event record"),
    "no event name": (one(eventName=None), "BAD_EVENT: the record has no eventName"),
    "s3 is no object": (one(s3="in/key"), "BAD_EVENT: the record is not an S3 event record"),
    "no bucket": (
        one(s3={"object": RECORD["s3"]["object"]}),
        "BAD_EVENT: the record names no bucket or no object",
    ),
    "no object": (
        one(s3={"bucket": {"name": "in"}}),
        "BAD_EVENT: the record names no bucket or no object",
    ),
    "a foreign bucket": (
        one(s3={"bucket": {"name": "other"}, "object": {"key": "k"}}),
        "BAD_EVENT: bucket 'other' is not the input of search",
    ),
    "no key": (of(key=None), "BAD_KEY: the record has no object key"),
    "an empty key": (of(key=""), "BAD_KEY: the record has no object key"),
    "a key that is a number": (of(key=5), "BAD_KEY: the record has no object key"),
    "a key with NUL": (of(key="a%00b"), "BAD_KEY: the object key is not a valid S3 key"),
    "a key that is no UTF-8": (of(key="%FF"), "BAD_KEY: the object key is not UTF-8"),
    "a key of 1,025 bytes": (of(key="x" * 1025), "BAD_KEY: the object key is not a valid S3 key"),
    "a folder marker": (of(key="in/"), "ignored: a folder marker"),
    "an object removed": (
        one(eventName="ObjectRemoved:Delete"),
        "ignored: ObjectRemoved:Delete creates no object",
    ),
    "an object restored": (
        one(eventName="s3:ObjectRestore:Completed"),
        "ignored: s3:ObjectRestore:Completed creates no object",
    ),
    "an unknown version of events": (
        one(eventVersion="9.9"),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "another service's event": (
        one(eventSource="aws:dynamodb"),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "a sequencer that is none": (
        of(sequencer={"a": 1}),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "a size that is a text": (
        of(size="10"),
        "input seqs/a b.fasta: 0 bytes, etag 'e1', version v1",
    ),
    "a negative size": (of(size=-1), "input seqs/a b.fasta: 0 bytes, etag 'e1', version v1"),
    "no etag": (of(eTag=None), "input seqs/a b.fasta: 10 bytes, etag '', version v1"),
    "no version": (of(versionId=None), "input seqs/a b.fasta: 10 bytes, etag 'e1', version None"),
    "version null": (
        of(versionId="null"),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version None",
    ),
    "a version beyond S3's length": (
        of(versionId="v" * 1025),
        "BAD_EVENT: the version id is longer than any of S3's",
    ),
    "a time in the future": (
        one(eventTime="2999-01-01T00:00:00.000Z"),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "a time that is a number": (
        one(eventTime=5),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "replayed from the dead letters": (
        json.dumps({"Records": [RECORD], "orchgpu": {"dead_at": 5.0}}),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1, dead at 5",
    ),
    "buried at a time that is none": (
        json.dumps({"Records": [RECORD], "orchgpu": {"dead_at": "x"}}),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
    "wrapped by SNS": (json.dumps(SNS), "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1"),
    "SNS around junk": (
        json.dumps({"Type": "Notification", "Message": "hello"}),
        "BAD_EVENT: the message is not JSON of Unicode text",
    ),
    "wrapped by EventBridge": (
        json.dumps(EVENT_BRIDGE),
        "input a b+c.fa: 5 bytes, etag 'e', version v9",
    ),
    "EventBridge of a removal": (
        json.dumps({**EVENT_BRIDGE, "detail-type": "Object Deleted"}),
        "ignored: Other creates no object",
    ),
    "EventBridge without a detail": (
        json.dumps({**EVENT_BRIDGE, "detail": None}),
        "BAD_EVENT: the message has no list of Records",
    ),
    "fields nobody knows": (
        one(glacierEventData={}, more=[1]),
        "input seqs/a b.fasta: 10 bytes, etag 'e1', version v1",
    ),
}


def verdict(text: str) -> str:
    """In one line: what it is, and what counts of it."""
    found = classify(text, FUNCTION)
    match found:
        case Ignored():
            return f"ignored: {found.why}"
        case Rejected():
            return f"{found.reason}: {found.detail}"
        case Several():
            return f"{len(found.bodies)} messages"
        case InputEvent():
            dead = "" if found.dead_at_s is None else f", dead at {found.dead_at_s:g}"
            about = f"{found.size} bytes, etag {found.etag!r}, version {found.version_id}{dead}"
            return f"input {found.key}: {about}"


@pytest.mark.parametrize("case", EVENTS)
def test_every_message_has_its_verdict(case: str) -> None:
    text, expected = EVENTS[case]
    assert verdict(text) == expected


#: Key → name of the file that the script gets.
KEYS: dict[str, str] = {
    "with space": "with space",
    "two  spaces": "two  spaces",
    " leading space": " leading space",
    "trailing space ": "trailing space ",
    "plus+sign": "plus+sign",
    "per%cent": "per%cent",
    "per%20cent": "per%20cent",
    "%2B": "%2B",
    "%252B": "%252B",
    "100%": "100%",
    "../up": "up",
    "a/../../up": "up",
    "..": "input",
    ".": "input",
    "./here": "here",
    "/leading/slash": "slash",
    "//two": "two",
    "a//b": "b",
    "dir.with.dots/file": "file",
    "no-dot": "no-dot",
    "many.dots.in.a.tar.gz": "many.dots.in.a.tar.gz",
    ".hidden": ".hidden",
    "trailing.": "trailing.",
    "ünïcödé": "ünïcödé",
    "ü decomposed": "ü decomposed",
    "日本語": "日本語",
    "😀": "😀",
    "\u202egpj.exe": "\u202egpj.exe",
    "new\nline": "new\nline",
    "tab\there": "tab\there",
    "bell\u0007": "bell\u0007",
    "back\\slash": "back\\slash",
    "C:\\x": "C:\\x",
    "quote'd": "quote'd",
    'double"quote': 'double"quote',
    "$(reboot)": "$(reboot)",
    "`id`;rm -rf *": "`id`;rm -rf *",
    "-rf": "-rf",
    "&amp;<>": "&amp;<>",
    "k" * 1024: "k" * 200,
    "ü" * 512: "ü" * 100,
    "x" * 255 + "/" + "y" * 255: "y" * 200,
    "#frag?query=1": "#frag?query=1",
    "a\x7fb": "a\x7fb",
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:30])
def test_every_key_arrives_as_a_file(key: str, tmp_path: Path) -> None:
    raw = quote_plus(key, safe="/")  # as S3 does it
    source = classify(json.dumps({"Records": [s3_record(raw)]}), FUNCTION)
    assert isinstance(source, InputEvent)
    assert source.key == key
    action = do.StageEnvelope(
        job=JOB, attempt=1, function=FUNCTION, input=source, granted=granted(), replace_etag=None
    )
    stored = StoredObject(body=b"abc", etag="e1", version_id="v1", last_modified="t", size=3)
    data = pack(action, stored, {"connection": {}}, staged_at_s=5.0, connect_by_s=150.0)
    with Envelope(io.BytesIO(data)) as envelope:
        assert envelope.job.input_key == key
        path = tmp_path / input_name(envelope.job.input_key)
        envelope.save_input(path)
    assert path.name == KEYS[key]
    assert [p.name for p in tmp_path.iterdir()] == [KEYS[key]]
    assert path.read_bytes() == b"abc"


def test_the_corpora_have_their_size() -> None:
    assert len(EVENTS) >= 35
    assert len(KEYS) >= 40

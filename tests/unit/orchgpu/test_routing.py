"""Classifying queue messages: the corpus of events and keys, and any string at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.keys import job_id
from contract.states import Reason
from corekit.decode import encode_json
from orchgpu.core.dead_letters import LETTER_BYTES_MAX, dead_letter_body
from orchgpu.core.routing import (
    RECORDS_MAX,
    Ignored,
    InputEvent,
    Rejected,
    Several,
    classify,
)
from tests.unit.orchgpu.jobs import FUNCTION, body, s3_record

TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-01-01T00:00:00.000Z",
    "Bucket": "in",
    "RequestId": "R",
    "HostId": "H",
}
SNS = {"Type": "Notification", "MessageId": "x", "Message": body()}
EVENT_BRIDGE = {
    "version": "0",
    "source": "aws.s3",
    "detail-type": "Object Created",
    "time": "2026-01-01T00:00:00Z",
    "detail": {
        "bucket": {"name": "in"},
        "reason": "PutObject",
        "object": {"key": "a b+c.fa", "size": 5, "etag": "e", "version-id": "v9"},
    },
}


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("a+b.fa", "a b.fa"),
        ("a%2Bb.fa", "a+b.fa"),
        ("100%25.fa", "100%.fa"),
        ("a%252Fb", "a%2Fb"),
        ("in%2Fa.zip", "in/a.zip"),
        ("in/a.zip", "in/a.zip"),
        ("%C3%BC%F0%9F%A7%AC.fa", "ü🧬.fa"),
        ("noextension", "noextension"),
        ("many.dots.in.name.tar.gz", "many.dots.in.name.tar.gz"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("%0Anewline", "\nnewline"),
        ("$(reboot);`x`.fa", "$(reboot);`x`.fa"),
    ],
)
def test_keys_are_decoded_exactly_once(raw: str, key: str) -> None:
    verdict = classify(body(s3_record(raw)), FUNCTION)
    assert isinstance(verdict, InputEvent)
    assert verdict.key == key


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_every_key_comes_back(key: str) -> None:
    verdict = classify(body(s3_record(quote_plus(key))), FUNCTION)
    if len(key.encode()) > 1024:
        assert isinstance(verdict, Rejected)
    elif key.endswith("/"):
        assert isinstance(verdict, Ignored)
    else:
        assert isinstance(verdict, InputEvent)
        assert verdict.key == key
        again = classify(json.dumps(verdict.as_s3_event()), FUNCTION)
        assert isinstance(again, InputEvent)
        assert again.key == key


def test_forwarded_events_are_unwrapped() -> None:
    assert isinstance(classify(json.dumps(SNS), FUNCTION), InputEvent)
    verdict = classify(json.dumps(EVENT_BRIDGE), FUNCTION)
    assert isinstance(verdict, InputEvent)
    assert (verdict.key, verdict.version_id) == ("a b+c.fa", "v9")


def test_several_records_become_several_messages() -> None:
    verdict = classify(body(s3_record("a"), s3_record("b"), extra=1), FUNCTION)
    assert isinstance(verdict, Several)
    parts = [classify(text, FUNCTION) for text in verdict.bodies]
    assert [part.key for part in parts if isinstance(part, InputEvent)] == ["a", "b"]


def test_a_message_of_thousands_is_one_dead_letter_with_the_reason() -> None:
    records = [s3_record(str(number)) for number in range(RECORDS_MAX + 1)]
    assert isinstance(classify(body(*records[1:]), FUNCTION), Several)
    verdict = classify(body(*records), FUNCTION)
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.BAD_EVENT
    assert "101 records" in verdict.detail
    assert "at most 100" in verdict.detail


@pytest.mark.parametrize(
    "text",
    [
        body(*[s3_record("k" * 900 + str(number)) for number in range(300)]),
        "\U0001f600" * 300_000,
        "[" * 400_000,
    ],
)
def test_a_dead_letter_fits_into_its_queue(text: str) -> None:
    letter = dead_letter_body(text, None, "BAD_EVENT", "d" * 5000, 1.0)
    assert len(letter.encode()) <= LETTER_BYTES_MAX
    assert json.loads(letter)["orchgpu"]["reason"] == "BAD_EVENT"


@pytest.mark.parametrize("version", [None, "", "null"])
def test_an_unversioned_object_has_no_version(version: str | None) -> None:
    verdict = classify(body(s3_record(version=version)), FUNCTION)
    assert isinstance(verdict, InputEvent)
    assert verdict.version_id is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Records", "s3", "object", "key", "bucket", "name", "eventName"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(_JSON)
def test_any_json_gets_a_verdict(value: Any) -> None:
    assert isinstance(
        classify(json.dumps(value), FUNCTION), InputEvent | Ignored | Rejected | Several
    )


@given(st.text())
def test_any_text_gets_a_verdict(text: str) -> None:
    assert classify(text, FUNCTION) is not None


def _mutations(value: Any, bad: Any) -> Iterator[Any]:
    """The value with each leaf, one after the other, replaced."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from ({**value, key: changed} for changed in _mutations(item, bad))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for changed in _mutations(item, bad):
                yield [*value[:index], changed, *value[index + 1 :]]
    else:
        yield bad


@pytest.mark.parametrize(
    "bad",
    [
        "\ud800",
        "x\udfff",
        10**400,
        -(10**400),
        2**63,
        -1,
        1e308,
        float("nan"),
        "",
        "x" * 2000,
        None,
        True,
        [],
        {},
    ],
    ids=lambda bad: ascii(bad)[:20],
)
def test_whatever_stands_in_a_field_the_verdict_can_be_stored(bad: Any) -> None:
    """One message in the queue of one function must never end the replica that serves all."""
    buried = {"Records": [s3_record()], "orchgpu": {"dead_at": 1.5, "job_id": "j"}}
    notice = {"Type": "Notification", "Message": json.dumps(buried)}
    for whole in (buried, EVENT_BRIDGE, notice):
        for changed in _mutations(whole, bad):
            verdict = classify(json.dumps(changed), FUNCTION)
            assert isinstance(verdict, InputEvent | Ignored | Rejected | Several)
            encode_json(verdict)
            if isinstance(verdict, InputEvent):
                job_id("in", verdict.key, verdict.version_id or verdict.etag, "f")


def test_a_notice_with_half_a_surrogate_is_rejected() -> None:
    inner = json.dumps({"Records": [s3_record(key="\ud800")]})
    verdict = classify(json.dumps({"Type": "Notification", "Message": inner}), FUNCTION)
    assert isinstance(verdict, Rejected)

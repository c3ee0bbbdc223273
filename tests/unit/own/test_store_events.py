"""The forms of webhooks. Those of SeaweedFS are as version 4.48 sent them, shortened."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl.plan.resources import Notification
from orchgpu.adapters.own.events import events_of, messages_for
from orchgpu.adapters.own.listener import allowed
from orchgpu.core.routing import InputEvent

MTIME = 1795801950


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def of_file(kind: str, folder: str, name: str, **entry: Any) -> dict[str, Any]:
    new = {
        "name": name,
        "attributes": {"file_size": 3, "mtime": MTIME},
        "extended": {"Seaweed-X-Amz-ETag": b64("f97c5d29941bfb1b2fdab0874906ab82")},
        **entry,
    }
    message = {"new_entry": new, "delete_chunks": True, "new_parent_path": folder}
    return {"event_type": kind, "key": f"{folder}/{name}", "message": message}


EXPECTED = InputEvent(
    bucket="bucket1",
    key="in/a b+ü.txt",
    version_id=None,
    etag="f97c5d29941bfb1b2fdab0874906ab82",
    size=3,
    event_name="ObjectCreated:Put",
    event_time="2026-11-27T17:52:30Z",
)
VERSION = "671407a408808b2783015ebc3c53b25f"
VERSIONS = "/buckets/bucket1/in/a b+ü.txt.versions"


@pytest.mark.parametrize("kind", ["create", "update", "rename"])
def test_a_file_of_a_bucket_is_an_object(kind: str) -> None:
    body = of_file(kind, "/buckets/bucket1/in", "a b+ü.txt")
    assert events_of(body) == [EXPECTED]


def test_a_file_of_a_versions_folder_is_a_version() -> None:
    body = of_file("create", VERSIONS, f"v_{VERSION}")
    (event,) = events_of(body)
    assert (event.key, event.version_id) == ("in/a b+ü.txt", VERSION)


@pytest.mark.parametrize(
    "body",
    [
        of_file("update", VERSIONS, f"v_{VERSION}"),  # it is not the newest any more
        of_file("create", VERSIONS, "v_1", extended={"Seaweed-X-Amz-Delete-Marker": b64("true")}),
        of_file("create", "/buckets/bucket1/in", "a.versions", is_directory=True),
        of_file("create", "/buckets", "bucket1", is_directory=True),
        of_file("create", "/buckets/.system/owners/orchgpu", "bucket1"),
        of_file("create", "/buckets/bucket1/.uploads/95c4_45", "0001_188a.part"),
        of_file("create", "/etc", "iam"),
        {"event_type": "delete", "key": "/buckets/bucket1/a", "message": {"old_entry": {}}},
        {"message": None},
        [],
        None,
        {"Records": [None, {"s3": 1}, {"s3": {"bucket": {"name": "b"}}}]},
        {"Records": [{"eventName": "s3:ObjectRemoved:Delete", "s3": {"bucket": {"name": "b"}}}]},
    ],
)
def test_anything_else_is_no_event(body: object) -> None:
    assert events_of(body) == []


def of_minio(key: str, **record: Any) -> dict[str, Any]:
    """As MinIO and RustFS document it."""
    found = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "eventName": "s3:ObjectCreated:Put",
        "eventTime": EXPECTED.event_time,
        "s3": {
            "bucket": {"name": "bucket1"},
            "object": {"key": key, "size": 3, "eTag": EXPECTED.etag, "versionId": VERSION},
        },
        **record,
    }
    return {"EventName": "s3:ObjectCreated:Put", "Key": f"bucket1/{key}", "Records": [found]}


@pytest.mark.parametrize("name", ["s3:ObjectCreated:Put", "ObjectCreated:Put"])
def test_records_in_the_form_of_s3_are_taken(name: str) -> None:
    (event,) = events_of(of_minio("in%2Fa+b%2B%C3%BC.txt", eventName=name))
    assert event == InputEvent(
        bucket=EXPECTED.bucket,
        key=EXPECTED.key,
        version_id=VERSION,
        etag=EXPECTED.etag,
        size=EXPECTED.size,
        event_name="ObjectCreated:Put",
        event_time=EXPECTED.event_time,
    )


def rule(queue: str, **changes: Any) -> Notification:
    given = {"bucket": "bucket1", "prefix": "in/", "suffix": "", **changes}
    arn = f"arn:aws:sqs:us-east-1:000000000000:{queue}"
    return Notification(id=queue, target_arn=arn, **given)


def test_rules_choose_the_queues() -> None:
    rules = [
        rule("jobs"),
        rule("texts", suffix=".txt"),
        rule("images", suffix=".png"),
        rule("results", prefix="results/"),
        rule("other", bucket="bucket2"),
        rule("removals", events=("s3:ObjectRemoved:*",)),
    ]
    found = dict(messages_for(EXPECTED, rules))
    assert sorted(found) == ["jobs", "texts"]
    assert json.loads(found["jobs"]) == EXPECTED.as_s3_event()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    *("Records", "message", "new_entry", "new_parent_path", "name", "event_type"),
                    *("attributes", "extended", "s3", "bucket", "object", "key", "eventName"),
                )
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_no_body_raises(body: object) -> None:
    events_of(body)


@pytest.mark.parametrize(
    ("header", "good"),
    [
        ("Bearer secret-of-the-store", True),
        ("bearer secret-of-the-store ", True),
        ("Basic " + b64("ceph:secret-of-the-store"), True),
        ("Basic " + b64("secret-of-the-store"), False),
        ("Basic ü", False),
        ("Bearer \udcff", False),  # bytes that are not UTF-8, as the server reads them
        ("Bearer secret", False),
        ("secret-of-the-store", True),
        ("", False),
    ],
)
def test_the_token_is_a_bearer_token_or_a_password(header: str, good: bool) -> None:
    assert allowed(header, "secret-of-the-store") is good

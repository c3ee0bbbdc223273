"""S3 events: records as AWS makes them, filters, and what a configuration is refused for."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.body import MemoryBodies
from local_cloud.model.s3.multipart import WantedPart
from local_cloud.model.s3.notifications import Rule, quoted_key
from local_cloud.model.s3.object_version import Attributes

CREATED = ("s3:ObjectCreated:*",)
POLICY: dict[str, Any] = {
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "s3.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": "arn:aws:sqs:us-east-1:000000000000:q",
            "Condition": {
                "ArnEquals": {"aws:SourceArn": "arn:aws:s3:::bucket"},
                "StringEquals": {"aws:SourceAccount": "000000000000"},
            },
        }
    ]
}


class World:
    """A bucket, a queue that lets S3 in, and a function that does not yet."""

    def __init__(self) -> None:
        self.bodies = MemoryBodies()
        self.cloud = Cloud(bodies=self.bodies)
        self.cloud.create_bucket(0.0, "bucket").set_versioning("Enabled")
        self.queue = self.cloud.queues.create(0.0, "q", {"Policy": json.dumps(POLICY)})
        self.function = self.cloud.functions.create(0.0, FunctionSettings(name="f"))

    def configure(self, *rules: Rule) -> None:
        self.cloud.configure_notifications(1.0, "bucket", rules)

    def to_queue(self, **changes: Any) -> Rule:
        return Rule(**{"id": "r", "arn": self.queue.arn, "events": CREATED, **changes})

    def put(self, key: str, data: bytes = b"data") -> str:
        return self.cloud.put_object(2.0, "bucket", key, self.bodies.add(data)).version_id

    def messages(self) -> list[Any]:
        return [json.loads(m.body) for m in self.queue.receive(5.0, count_max=10)]

    def events(self) -> list[tuple[str, str]]:
        records = [r for m in self.messages() for r in m.get("Records", ())]
        return [(r["eventName"], r["s3"]["object"]["key"]) for r in records]


def test_a_record_is_as_aws_sends_it() -> None:
    world = World()
    world.configure(world.to_queue(prefix="in/"))
    version = world.put("in/a b+c%.txt", b"hello")
    test, event = world.messages()
    assert test["Event"] == "s3:TestEvent"
    assert (test["Bucket"], test["Service"]) == ("bucket", "Amazon S3")
    (record,) = event["Records"]
    assert record["s3"]["object"] | {"sequencer": "…"} == {
        "key": "in/a+b%2Bc%25.txt",
        "size": 5,
        "eTag": "5d41402abc4b2a76b9719d911017c592",
        "versionId": version,
        "sequencer": "…",
    }
    assert record["s3"]["bucket"]["arn"] == "arn:aws:s3:::bucket"
    assert record["s3"]["configurationId"] == "r"
    assert (record["eventVersion"], record["eventSource"]) == ("2.1", "aws:s3")
    assert (record["awsRegion"], record["eventName"]) == ("us-east-1", "ObjectCreated:Put")
    assert record["eventTime"] == "1970-01-01T00:00:02.000Z"


def test_copies_multipart_and_deletes_have_their_own_names() -> None:
    world = World()
    world.configure(world.to_queue(events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")))
    cloud = world.cloud
    content = world.bodies.add(b"x")
    cloud.put_object(2.0, "bucket", "copy", content, event="ObjectCreated:Copy")
    upload = cloud.bucket("bucket").uploads.start(2.0, "parts", Attributes())
    cloud.bucket("bucket").uploads.put_part(2.0, upload, 1, world.bodies.add(b"y"))
    cloud.complete_upload(2.0, "bucket", upload, [WantedPart(number=1)])
    marker = cloud.delete_object(2.0, "bucket", "copy")
    cloud.delete_object(2.0, "bucket", "copy", marker.version_id)
    cloud.delete_object(2.0, "bucket", "never was", "some-version")
    assert world.events() == [
        ("ObjectCreated:Copy", "copy"),
        ("ObjectCreated:CompleteMultipartUpload", "parts"),
        ("ObjectRemoved:DeleteMarkerCreated", "copy"),
        ("ObjectRemoved:Delete", "copy"),
    ]


@pytest.mark.parametrize(
    "rules",
    [
        [Rule(id="1", arn="arn:aws:sqs:us-east-1:000000000000:unknown", events=CREATED)],
        [Rule(id="1", arn="arn:aws:sqs:eu-west-1:000000000000:q", events=CREATED)],
        [Rule(id="1", arn="arn:aws:lambda:us-east-1:000000000000:function:f", events=CREATED)],
        [Rule(id="1", arn="arn:aws:lambda:us-east-1:000000000000:function:no", events=CREATED)],
        [Rule(id="1", arn="arn:aws:sns:us-east-1:000000000000:topic", events=CREATED)],
        [Rule(id="1", arn="q", events=("s3:Nonsense",))],
    ],
)
def test_unknown_and_closed_destinations_are_refused(rules: list[Rule]) -> None:
    world = World()
    with pytest.raises(CloudError) as error:
        world.configure(*rules)
    assert error.value.code == "InvalidArgument"
    assert world.cloud.rules("bucket") == ()
    assert world.messages() == []


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ({"prefix": "a"}, {"prefix": "ab"}, True),
        ({"prefix": "a/"}, {"prefix": "b/"}, False),
        ({"suffix": ".zip"}, {"prefix": "in/"}, True),
        ({"suffix": ".zip"}, {"suffix": ".fa"}, False),
        ({"events": ("s3:ObjectCreated:Put",)}, {"events": ("s3:ObjectCreated:Copy",)}, False),
        ({"events": ("s3:ObjectCreated:Put",)}, {}, True),
        ({"events": ("s3:ObjectRemoved:*",)}, {}, False),
    ],
)
def test_overlapping_rules_are_refused(
    one: dict[str, Any], other: dict[str, Any], overlap: bool
) -> None:
    world = World()
    rules = world.to_queue(id="1", **one), world.to_queue(id="2", **other)
    if not overlap:
        world.configure(*rules)
        return
    with pytest.raises(CloudError, match="Configurations overlap"):
        world.configure(*rules)


@given(st.text(min_size=1).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_keys_survive_their_quoting_when_unquoted_once(key: str) -> None:
    assert urllib.parse.unquote_plus(quoted_key(key)) == key
    assert quoted_key(key).isascii()

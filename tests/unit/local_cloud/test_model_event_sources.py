"""Event source mappings: their checks, and what a run has finished by its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.functions.event_sources import EventSource, event_of, finished
from local_cloud.model.functions.function import Outcome
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.sqs.queue import Message

ROLE = "arn:aws:iam::000000000000:role/f"


def cloud(*, hidden_s: int = 60, timeout_s: int = 30) -> Cloud:
    made = Cloud()
    made.queues.create(0.0, "q", {"VisibilityTimeout": str(hidden_s)})
    made.functions.create(
        0.0, FunctionSettings(name="f", given={"Role": ROLE, "Timeout": timeout_s})
    )
    return made


def arguments(**more: Any) -> dict[str, Any]:
    return {"FunctionName": "f", "EventSourceArn": "arn:aws:sqs:us-east-1:000000000000:q", **more}


def test_a_mapping_is_made_changed_listed_and_deleted() -> None:
    sources = cloud().event_sources
    changed: list[str] = []
    sources.on_change = changed.append
    made = sources.create(1.0, arguments(BatchSize=1, ScalingConfig={"MaximumConcurrency": 2}))
    assert (made.batch_max, made.concurrency_max, made.reports_failures) == (1, 2, False)
    answers = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
    updated = sources.update(2.0, made.uuid, {**answers, "Enabled": False})
    assert (updated.batch_max, updated.enabled, updated.reports_failures) == (1, False, True)
    assert sources.all(function="f") == [updated]
    assert sources.all(queue_arn="arn:other") == []
    sources.delete(made.uuid)
    assert changed == [made.uuid] * 3
    with pytest.raises(CloudError, match="ResourceNotFoundException"):
        sources.get(made.uuid)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"FunctionName": "g"}, "ResourceNotFoundException"),
        ({"EventSourceArn": "arn:aws:sqs:us-east-1:000000000000:r"}, "InvalidParameterValue"),
        ({"EventSourceArn": "arn:aws:kinesis:us-east-1:000000000000:q"}, "InvalidParameterValue"),
        ({"BatchSize": 11}, "Maximum batch window"),
        ({"FilterCriteria": {"Filters": []}}, "FilterCriteria"),
        ({"Tags": {"a": "b"}}, "Tags"),
    ],
)
def test_a_mapping_that_aws_refuses(given: dict[str, Any], code: str) -> None:
    with pytest.raises(CloudError, match=code):
        cloud().event_sources.create(1.0, arguments(**given))


def test_a_queue_hides_messages_for_as_long_as_its_function_may_run() -> None:
    with pytest.raises(CloudError, match="less than Function timeout"):
        cloud(hidden_s=20).event_sources.create(1.0, arguments())


def test_a_queue_and_a_function_are_mapped_once() -> None:
    sources = cloud().event_sources
    sources.create(1.0, arguments())
    with pytest.raises(CloudError, match="ResourceConflictException"):
        sources.create(1.0, arguments())


def test_a_mapping_connects_what_exists() -> None:
    made = cloud()
    mapping = made.event_sources.create(1.0, arguments())
    assert made.event_sources.parts(mapping) is not None
    made.functions.delete("f")
    assert made.event_sources.parts(mapping) is None


def test_the_event_of_a_message() -> None:
    made = cloud()
    queue = made.queues.get("q")
    note = {"note": {"DataType": "String", "StringValue": "x"}}
    queue.send(1.0, "hello", attributes=note)
    (message,) = queue.receive(2.0)
    event: Any = event_of([message], queue.arn, "us-east-1")
    (record,) = event["Records"]
    assert (record["messageId"], record["body"]) == (message.id, "hello")
    assert record["receiptHandle"] == message.handle
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert record["messageAttributes"]["note"]["stringValue"] == "x"
    assert record["messageAttributes"]["note"]["dataType"] == "String"
    assert (record["eventSource"], record["eventSourceARN"]) == ("aws:sqs", queue.arn)
    assert record["md5OfBody"] == "5d41402abc4b2a76b9719d911017c592"


def _failures(*ids: Any) -> str:
    return json.dumps({"batchItemFailures": [{"itemIdentifier": name} for name in ids]})


@pytest.mark.parametrize(
    ("payload", "done"),
    [
        ("null", ["a", "b"]),
        ("{}", ["a", "b"]),
        ('{"batchItemFailures": null}', ["a", "b"]),
        (_failures(), ["a", "b"]),
        (_failures("a"), ["b"]),
        (_failures("a", "b"), []),
        (_failures("c"), []),
        (_failures(""), []),
        (_failures(None), []),
        ('{"batchItemFailures": [{"name": "a"}]}', []),
        ('{"batchItemFailures": "a"}', []),
        ('"done"', []),
        ("no JSON", []),
    ],
)
def test_an_answer_finishes_the_messages_that_it_does_not_name(
    payload: str, done: list[str]
) -> None:
    answers = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
    mapping = EventSource(uuid="u", queue_arn="q", function="f", given=answers)
    assert [m.id for m in finished(mapping, MESSAGES, Outcome(payload=payload))] == done


@pytest.mark.parametrize("outcome", [{"error": "Unhandled"}, {"throttled": True}])
def test_a_run_that_failed_finishes_nothing(outcome: dict[str, Any]) -> None:
    mapping = EventSource(uuid="u", queue_arn="q", function="f")
    assert finished(mapping, MESSAGES, Outcome(payload="null", **outcome)) == []
    assert finished(mapping, MESSAGES, Outcome(payload=_failures("a"))) == MESSAGES


MESSAGES = [
    Message(id=name, body="x", attributes={}, sent_at_s=0.0, visible_at_s=9.0) for name in "ab"
]

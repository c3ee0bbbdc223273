"""SQS as our code uses it, on the embedded cloud and on moto."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

Cloud = Any
Refused = Callable[[Callable[[], Any]], str]


def _receive(cloud: Cloud, url: str, **arguments: Any) -> list[Any]:
    arguments = {"MaxNumberOfMessages": 10, **arguments}
    return list(cloud.client("sqs").receive_message(QueueUrl=url, **arguments).get("Messages", ()))


def test_a_message_with_attributes_goes_round(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": "ü"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="böd\ny", MessageAttributes=attributes)
    (got,) = _receive(cloud, url, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert (got["Body"], got["MessageId"]) == ("böd\ny", sent["MessageId"])
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["MessageAttributes"]["raw"]["BinaryValue"] == b"\0\1"
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_unknown_queues_have_the_code_sdks_know(cloud: Cloud, refused: Refused) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    code = refused(lambda: sqs.get_queue_url(QueueName="no-such-queue"))
    assert code == "AWS.SimpleQueueService.NonExistentQueue"
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=url, MessageBody="x")


def test_a_received_message_is_hidden_until_given_back(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = _receive(cloud, url, VisibilityTimeout=30)
    assert _receive(cloud, url) == []
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = _receive(cloud, url, AttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert again["ReceiptHandle"] != got["ReceiptHandle"]


def test_visibility_passes_by_itself_and_wakes_a_poller(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    began_s = time.monotonic()
    _receive(cloud, url, VisibilityTimeout=1)
    assert len(_receive(cloud, url, WaitTimeSeconds=20)) == 1
    assert time.monotonic() - began_s > 0.9


def test_an_older_handle_deletes_nothing(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (old,) = _receive(cloud, url, VisibilityTimeout=0)
    (new,) = _receive(cloud, url, VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    (left,) = _receive(cloud, url, VisibilityTimeout=0)
    assert left["MessageId"] == new["MessageId"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=left["ReceiptHandle"])
    assert _receive(cloud, url) == []


def test_visibility_beyond_twelve_hours_from_the_receipt_is_refused(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = _receive(cloud, url)
    change = {"QueueUrl": url, "ReceiptHandle": got["ReceiptHandle"]}
    code, ends_s = "", time.monotonic() + cloud.patience_s
    while not code:  # within the second of the receipt it is exactly twelve hours
        assert time.monotonic() < ends_s, "twelve hours from now were accepted"
        try:
            sqs.change_message_visibility(**change, VisibilityTimeout=43200)
        except ClientError as error:
            code = error.response["Error"]["Code"]
        time.sleep(0.05)
    assert code == "InvalidParameterValue"
    sqs.change_message_visibility(**change, VisibilityTimeout=43100)


def test_batches_name_the_failed_entries(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    got = _receive(cloud, url)
    assert {m["Body"] for m in got} == {f"m{n}" for n in range(10)}
    handles = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(got)]
    hidden = [{**entry, "VisibilityTimeout": 60} for entry in handles[:9]]
    hidden.append({"Id": "bad", "ReceiptHandle": "nonsense", "VisibilityTimeout": 60})
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=hidden)
    assert [f["Id"] for f in answer["Failed"]] == ["bad"]
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([("1", "a"), ("1", "b")], "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
        (
            [(str(n), "x") for n in range(11)],
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        ),
    ],
)
def test_invalid_batches_are_refused_as_a_whole(
    cloud: Cloud, refused: Refused, entries: list[tuple[str, str]], code: str
) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    batch = [{"Id": name, "MessageBody": body} for name, body in entries]
    assert refused(lambda: sqs.send_message_batch(QueueUrl=url, Entries=batch)) == code


def test_a_poison_message_goes_to_the_dead_letter_queue(cloud: Cloud) -> None:
    sqs = cloud.client("sqs")
    dead_url, dead_arn = cloud.queue()
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": "2"})
    url, _ = cloud.queue(RedrivePolicy=policy)
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(2):
        assert len(_receive(cloud, url, VisibilityTimeout=0)) == 1
    assert _receive(cloud, url, VisibilityTimeout=0) == []
    (buried,) = _receive(cloud, dead_url)
    assert buried["Body"] == "poison"


def test_delay_and_counts(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue(VisibilityTimeout="60")
    sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=600)
    sqs.send_message(QueueUrl=url, MessageBody="now")
    sqs.send_message(QueueUrl=url, MessageBody="held")
    _receive(cloud, url, MaxNumberOfMessages=1)
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    counts = [found[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")]
    assert (counts, found["VisibilityTimeout"]) == (["1", "1", "1"], "60")


def test_a_message_ends_a_long_poll(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    got: list[int] = []
    began_s = time.monotonic()
    poller = threading.Thread(
        target=lambda: got.append(len(_receive(cloud, url, WaitTimeSeconds=20)))
    )
    poller.start()
    time.sleep(0.5)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    poller.join(60)
    assert got == [1]
    assert time.monotonic() - began_s < 18, "the poll waited to its end"


def test_a_dropped_poller_takes_no_message(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    address = urllib.parse.urlsplit(cloud.endpoint)
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: {address.netloc}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request\r\n"
        f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as poller:
        poller.sendall(head.encode() + body)
        time.sleep(0.3)
    time.sleep(0.3)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert len(_receive(cloud, url, WaitTimeSeconds=2)) == 1


def test_queues_are_listed_found_and_tagged(cloud: Cloud) -> None:
    sqs, (url, arn) = cloud.client("sqs"), cloud.queue()
    name = arn.rsplit(":", 1)[-1]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert url in sqs.list_queues(QueueNamePrefix=name)["QueueUrls"]
    sqs.tag_queue(QueueUrl=url, Tags={"a": "1", "b": "2"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "2"}


def test_setting_attributes(cloud: Cloud, refused: Refused) -> None:
    sqs, (url, arn) = cloud.client("sqs"), cloud.queue()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    name = arn.rsplit(":", 1)[-1]
    same = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "7"})
    assert same["QueueUrl"] == url
    other = {"QueueName": name, "Attributes": {"VisibilityTimeout": "8"}}
    assert refused(lambda: sqs.create_queue(**other)) == "QueueAlreadyExists"


def test_every_message_arrives_once_under_concurrency(cloud: Cloud) -> None:
    sqs, (url, _) = cloud.client("sqs"), cloud.queue()
    count, found, lock = 200, list[str](), threading.Lock()

    def send(start: int) -> None:
        for number in range(start, count, 4):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))

    def receive() -> None:
        while messages := _receive(cloud, url, WaitTimeSeconds=1):
            with lock:
                found.extend(m["Body"] for m in messages)
            entries = [
                {"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)
            ]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    workers = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    workers += [threading.Thread(target=receive) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(found, key=int) == [str(n) for n in range(count)]

"""Standard queues by boto3."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fdl.plan.resources import QueueResource
from fdl.plan.tags import own_tags
from orchgpu.adapters.aws.api import Client, answer_or_none
from orchgpu.adapters.aws.messages import COUNTS

#: SQS returns at most this many at once; a queue with more holds more than test events.
_LOOK_MESSAGES_MAX = 10


class SqsQueues:
    """Queues of one account and region."""

    def __init__(self, sqs: Client) -> None:
        self._sqs = sqs

    def url(self, name: str) -> str | None:
        answer = answer_or_none(self._sqs.get_queue_url, QueueName=name)
        return None if answer is None else str(answer["QueueUrl"])

    def observe(self, name: str) -> tuple[QueueResource, str] | None:
        url = self.url(name)
        if url is None:
            return None
        attributes = self._read(url)
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        queue = QueueResource(
            name=name,
            retention_s=int(attributes.get("MessageRetentionPeriod", 0)),
            visibility_s=int(attributes.get("VisibilityTimeout", 0)),
            dead_letter_arn=str(redrive.get("deadLetterTargetArn", "")),
            receives_max=int(redrive.get("maxReceiveCount", 0)),
            policy=json.loads(attributes.get("Policy") or "{}"),
            tags=self._tags(url),
        )
        return queue, url

    def _tags(self, url: str) -> dict[str, str]:
        return own_tags(self._sqs.list_queue_tags(QueueUrl=url).get("Tags") or {})

    def messages(self, name: str) -> int:
        """The approximate number of messages, hidden ones too, without S3's test events."""
        url = self.url(name)
        if url is None:
            return 0
        attributes = self._read(url)
        count = sum(int(attributes.get(kind, 0)) for kind in COUNTS)
        return count - self._test_events(url) if 0 < count <= _LOOK_MESSAGES_MAX else count

    def _read(self, url: str) -> Mapping[str, str]:
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        return attributes

    def _test_events(self, url: str) -> int:
        """S3 sends one to every queue that it notifies; it may still be there, also in SNS's
        envelope, which escapes quotes."""
        answer = self._sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=_LOOK_MESSAGES_MAX, VisibilityTimeout=0
        )
        bodies = [str(message["Body"]) for message in answer.get("Messages", ())]
        return sum("s3:TestEvent" in body for body in bodies)

    def put(self, queue: QueueResource) -> None:
        url = self.url(queue.name)  # an interrupted deploy may have made it
        if url is None:
            attributes = {k: v for k, v in _attributes(queue).items() if v}
            self._sqs.create_queue(
                QueueName=queue.name, Attributes=attributes, tags=dict(queue.tags)
            )
            return
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes=_attributes(queue))
        self._retag(queue, url)

    def _retag(self, queue: QueueResource, url: str) -> None:
        old = self._tags(url)
        gone = [key for key in old if key not in queue.tags]
        if gone:
            self._sqs.untag_queue(QueueUrl=url, TagKeys=gone)
        if queue.tags and old != queue.tags:
            self._sqs.tag_queue(QueueUrl=url, Tags=dict(queue.tags))

    def delete(self, name: str) -> None:
        url = self.url(name)
        if url is None:
            return
        self._sqs.delete_queue(QueueUrl=url)


def _attributes(queue: QueueResource) -> dict[str, str]:
    """All attributes we own; "" takes one away."""
    redrive = {
        "deadLetterTargetArn": queue.dead_letter_arn,
        "maxReceiveCount": str(queue.receives_max),
    }
    return {
        "MessageRetentionPeriod": str(queue.retention_s),
        "VisibilityTimeout": str(queue.visibility_s),
        "RedrivePolicy": json.dumps(redrive) if queue.dead_letter_arn else "",
        "Policy": json.dumps(queue.policy) if queue.policy else "",
    }

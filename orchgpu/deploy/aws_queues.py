"""Standard queues by boto3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corekit.errors import AppError, ErrorCode
from fdl.resources import QueueResource
from orchgpu.adapters.aws.errors import translated

_TAGS = {"createdby": "orchgpu"}


class Queues:
    """Queues of one account and region."""

    def __init__(self, sqs: Any) -> None:
        self._sqs = sqs

    def url(self, name: str) -> str | None:
        """The url of a queue, or None."""
        try:
            with translated(f"GetQueueUrl {name}"):
                return str(self._sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise

    def observe(self, name: str) -> tuple[QueueResource, str, int] | None:
        """The queue, its url and about how many messages it holds, hidden ones too."""
        url = self.url(name)
        if url is None:
            return None
        with translated(f"GetQueueAttributes {name}"):
            answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
        kinds = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible",
                 "ApproximateNumberOfMessagesDelayed")  # fmt: skip
        queue = QueueResource(
            name=name,
            retention_s=int(attributes.get("MessageRetentionPeriod", 0)),
            visibility_s=int(attributes.get("VisibilityTimeout", 0)),
            dead_letter_arn=str(redrive.get("deadLetterTargetArn", "")),
            receives_max=int(redrive.get("maxReceiveCount", 0)),
            policy=json.loads(attributes.get("Policy") or "{}"),
        )
        return queue, url, sum(int(attributes.get(kind, 0)) for kind in kinds)

    def put(self, queue: QueueResource) -> None:
        with translated(f"CreateQueue {queue.name}"):
            url = self.url(queue.name)  # a deploy that was cut off may have made it
            if url is None:
                attributes = {k: v for k, v in _attributes(queue).items() if v}
                self._sqs.create_queue(QueueName=queue.name, Attributes=attributes, tags=_TAGS)
                return
            self._sqs.set_queue_attributes(QueueUrl=url, Attributes=_attributes(queue))

    def delete(self, name: str) -> None:
        url = self.url(name)
        if url is None:
            return
        with translated(f"DeleteQueue {name}"):
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

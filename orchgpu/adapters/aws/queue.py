"""`JobQueue` over SQS."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import Client, Shape, translated
from orchgpu.adapters.aws.calls import Calls
from orchgpu.adapters.aws.messages import COUNTS, read_message, trace_attributes
from orchgpu.ports import TRACEPARENT, Message, Tolerating

BATCH_MAX = 10  #: entries of one SQS batch call (SQS quota)
RECEIVE_WAIT_S_MAX = 20  #: SQS's longest long poll


class SqsQueue:
    """Uses two shared clients; whole seconds only, as SQS requires."""

    def __init__(self, client: Client, polls: Client) -> None:
        """`polls`: the client of long polls, which hold their connections for 20 s."""
        self._client = client
        self._call, self._poll = Calls(client), Calls(polls)

    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        poll = {
            "QueueUrl": queue_url,
            "MaxNumberOfMessages": max(1, min(count_max, BATCH_MAX)),
            "WaitTimeSeconds": min(math.ceil(wait_s), RECEIVE_WAIT_S_MAX),
            "VisibilityTimeout": max(1, math.ceil(visibility_s)),
            "MessageSystemAttributeNames": ["SentTimestamp"],
            "MessageAttributeNames": [TRACEPARENT],
        }
        with translated("sqs:ReceiveMessage"):
            answer = await self._poll("ReceiveMessage", poll)
        return [read_message(found) for found in answer.content.get("Messages") or ()]

    async def delete(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        if len(receipt_handles) == 1:
            await self._delete_one(queue_url, receipt_handles[0])
            return
        for some in _batches(receipt_handles):
            entries = [{"Id": str(i), "ReceiptHandle": h} for i, h in enumerate(some)]
            call = "DeleteMessageBatch"
            _raise_server_faults(call, await self._batch(call, queue_url, entries))

    async def _delete_one(self, queue_url: str, receipt_handle: str) -> None:
        # a stale handle: AWS answers success, some emulators an error
        with Tolerating(ErrorCode.INVALID, ErrorCode.NOT_FOUND), translated("sqs:DeleteMessage"):
            await self._call(
                "DeleteMessage", {"QueueUrl": queue_url, "ReceiptHandle": receipt_handle}
            )

    async def set_visibility(
        self, queue_url: str, receipt_handles: Sequence[str], visibility_s: float
    ) -> None:
        for some in _batches(receipt_handles):
            entries = [
                {"Id": str(i), "ReceiptHandle": h, "VisibilityTimeout": math.ceil(visibility_s)}
                for i, h in enumerate(some)
            ]
            call = "ChangeMessageVisibilityBatch"
            _raise_server_faults(call, await self._batch(call, queue_url, entries))

    async def send(self, queue_url: str, bodies: Sequence[str], *, traceparent: str = "") -> None:
        more = trace_attributes(traceparent)
        for some in _batches(bodies):
            entries = [{"Id": str(i), "MessageBody": b, **more} for i, b in enumerate(some)]
            answer = await self._batch("SendMessageBatch", queue_url, entries)
            failed = answer.get("Failed", ())
            if failed:
                raise AppError(ErrorCode.UNAVAILABLE, f"sqs:SendMessageBatch: {failed[0]}")

    async def _batch(self, operation: str, queue_url: str, entries: Sequence[Shape]) -> Shape:
        with translated(f"sqs:{operation}"):
            answer = await self._call(operation, {"QueueUrl": queue_url, "Entries": entries})
        content: Shape = answer.content
        return content

    async def backlog(self, queue_url: str) -> int:
        name = COUNTS[0]
        with translated("sqs:GetQueueAttributes"):
            answer = await self._client.get_queue_attributes(
                QueueUrl=queue_url, AttributeNames=[name]
            )
        return int(answer["Attributes"][name])


def _batches(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[i : i + BATCH_MAX] for i in range(0, len(items), BATCH_MAX)]


def _raise_server_faults(call: str, answer: Shape) -> None:
    """A receipt handle that is too old is ignored: the message is deleted or received again."""
    for failure in answer.get("Failed", ()):
        if not failure.get("SenderFault", True):
            raise AppError(ErrorCode.UNAVAILABLE, f"{call}: {failure.get('Message')}")

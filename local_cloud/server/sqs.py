"""SQS over its JSON protocol: `X-Amz-Target: AmazonSQS.<Operation>`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Collection
from typing import TypeAlias

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.sqs.queue import BATCH_MAX, Message, MessageAttributes, Queue
from local_cloud.model.sqs.settings import KNOWN_ATTRIBUTES
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, JsonService

Single: TypeAlias = Callable[[Context, Body], Answer | None]

_PREFIXED = (
    "EmptyBatchRequest",
    "TooManyEntriesInBatchRequest",
    "BatchEntryIdsNotDistinct",
    "MessageNotInflight",
    "QueueDeletedRecently",
)
#: modelled name → the code that SQS's query protocol had, which SDKs still show
_QUERY_CODES = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    **{name: f"AWS.SimpleQueueService.{name}" for name in _PREFIXED},
}


def queue_url(context: Context, name: str) -> str:
    """The URL of a queue; only its last component is used."""
    return f"{context.endpoint}/{context.cloud.account.id}/{name}"


def _queue(context: Context, body: Body) -> Queue:
    return context.cloud.queues.get(str(body["QueueUrl"]).rstrip("/").rsplit("/", 1)[-1])


# --- queues


def _create_queue(context: Context, body: Body) -> Answer:
    queue = context.cloud.queues.create(
        context.now_s(), body["QueueName"], body.get("Attributes"), body.get("tags")
    )
    return {"QueueUrl": queue_url(context, queue.name)}


def _get_queue_url(context: Context, body: Body) -> Answer:
    return {"QueueUrl": queue_url(context, context.cloud.queues.get(body["QueueName"]).name)}


def _list_queues(context: Context, body: Body) -> Answer:
    names = context.cloud.queues.names(body.get("QueueNamePrefix", ""))
    return {"QueueUrls": [queue_url(context, name) for name in names]}


def _delete_queue(context: Context, body: Body) -> None:
    name = _queue(context, body).name
    context.cloud.queues.delete(context.now_s(), name)
    context.pollers.wake_all(name)


def _get_queue_attributes(context: Context, body: Body) -> Answer:
    queue = _queue(context, body)
    counts = queue.counts(context.now_s())
    settings = context.cloud.queues.settings_in_force(context.now_s(), queue)
    attributes = {
        **settings.as_attributes(),
        "QueueArn": queue.arn,
        "ApproximateNumberOfMessages": str(counts.visible),
        "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
        "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
        "CreatedTimestamp": str(int(queue.created_at_s)),
        "LastModifiedTimestamp": str(int(queue.modified_at_s)),
    }
    wanted = body.get("AttributeNames", [])
    if "All" not in wanted:
        for name in wanted:
            if name not in attributes and name not in KNOWN_ATTRIBUTES:
                raise refused("InvalidAttributeName", f"Unknown Attribute {name}.")
        attributes = {name: text for name, text in attributes.items() if name in wanted}
    return {"Attributes": attributes} if attributes else {}


def _set_queue_attributes(context: Context, body: Body) -> None:
    queue = _queue(context, body)
    context.cloud.queues.set_attributes(context.now_s(), queue.name, body["Attributes"])


def _list_queue_tags(context: Context, body: Body) -> Answer:
    tags = _queue(context, body).tags
    return {"Tags": tags} if tags else {}


def _tag_queue(context: Context, body: Body) -> None:
    queue = _queue(context, body)
    queue.tags.update(body["Tags"])
    queue.save()


def _untag_queue(context: Context, body: Body) -> None:
    queue = _queue(context, body)
    for name in body["TagKeys"]:
        queue.tags.pop(name, None)
    queue.save()


# --- messages


def _send_message(context: Context, body: Body) -> Answer:
    queue = _queue(context, body)
    digest = _digests(body)
    message = queue.send(
        context.now_s(),
        body["MessageBody"],
        delay_s=body.get("DelaySeconds"),
        attributes=body.get("MessageAttributes"),
    )
    context.pollers.touched(queue)
    return {"MessageId": message.id, **digest}


def _digests(body: Body) -> dict[str, str]:
    try:
        answer = {"MD5OfMessageBody": _md5(body["MessageBody"].encode())}
        if body.get("MessageAttributes"):
            answer["MD5OfMessageAttributes"] = _md5_of_attributes(body["MessageAttributes"])
    except (UnicodeEncodeError, binascii.Error):
        raise refused("InvalidMessageContents", "No Unicode text, or no base64.") from None
    return answer


def _delete_message(context: Context, body: Body) -> None:
    queue = _queue(context, body)
    queue.delete(context.now_s(), body["ReceiptHandle"])
    context.pollers.touched(queue)


def _change_message_visibility(context: Context, body: Body) -> None:
    queue = _queue(context, body)
    queue.change_visibility(context.now_s(), body["ReceiptHandle"], body["VisibilityTimeout"])
    context.pollers.touched(queue)


async def _receive_message(context: Context, body: Body) -> Answer:
    queue = _queue(context, body)
    wait_s = body.get("WaitTimeSeconds", queue.settings.receive_wait_s)
    if not 0 <= wait_s <= 20:
        raise refused("InvalidParameterValue", "WaitTimeSeconds must be >= 0 and <= 20.")
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    while True:
        messages = queue.receive(
            context.now_s(),
            count_max=body.get("MaxNumberOfMessages", 1),
            visibility_s=body.get("VisibilityTimeout"),
        )
        left_s = deadline_s - loop.time()
        if messages or left_s <= 0:
            break
        await context.pollers.wait(queue, left_s)
        queue = _queue(context, body)  # it may have been deleted meanwhile
    if queue.has_visible(context.now_s()):
        context.pollers.wake(queue)
    return {"Messages": [_received(m, body) for m in messages]} if messages else {}


def _received(message: Message, body: Body) -> dict[str, object]:
    answer: dict[str, object] = {
        "MessageId": message.id,
        "ReceiptHandle": message.handle,
        "MD5OfBody": _md5(message.body.encode()),
        "Body": message.body,
    }
    wanted = [*body.get("AttributeNames", ()), *body.get("MessageSystemAttributeNames", ())]
    if wanted:
        system = message.system_attributes
        answer["Attributes"] = {
            name: text for name, text in system.items() if "All" in wanted or name in wanted
        }
    chosen = _chosen(message.attributes, body.get("MessageAttributeNames", ()))
    if chosen:
        answer["MessageAttributes"] = chosen
        answer["MD5OfMessageAttributes"] = _md5_of_attributes(chosen)
    return answer


def _chosen(attributes: MessageAttributes, wanted: Collection[str]) -> MessageAttributes:
    if "All" in wanted or ".*" in wanted:
        return dict(attributes)
    prefixes = tuple(name[:-2] for name in wanted if name.endswith(".*"))
    return {n: v for n, v in attributes.items() if n in wanted or n.startswith(prefixes or "\0")}


def _batch(single: Single) -> Single:
    """The batch form of an operation: every entry has its own success or failure."""

    def run(context: Context, body: Body) -> Answer:
        entries = body.get("Entries") or []
        ids = [entry["Id"] for entry in entries]
        if not entries:
            raise refused("EmptyBatchRequest", "There should be at least one entry.")
        if len(entries) > BATCH_MAX:
            raise refused("TooManyEntriesInBatchRequest", "At most 10 entries per request.")
        if len(set(ids)) < len(ids):
            raise refused("BatchEntryIdsNotDistinct", "Two or more entries have the same Id.")
        _queue(context, body)
        done: list[Answer] = []
        failed: list[Answer] = []
        for entry in entries:
            try:
                answer = single(context, {**entry, "QueueUrl": body["QueueUrl"]})
            except CloudError as error:
                code = SQS.code(error)
                failed.append(
                    {"Id": entry["Id"], "SenderFault": True, "Code": code, "Message": error.message}
                )
            else:
                done.append({"Id": entry["Id"], **(answer or {})})
        return {"Successful": done, **({"Failed": failed} if failed else {})}

    return run


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _md5_of_attributes(attributes: MessageAttributes) -> str:
    """SQS developer guide, "Calculating the MD5 message digest for message attributes"."""
    digest = hashlib.md5(usedforsecurity=False)

    def add(data: bytes) -> None:
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)

    for name in sorted(attributes):
        value = attributes[name]
        add(name.encode())
        add(value["DataType"].encode())
        if "StringValue" in value:
            digest.update(b"\1")
            add(value["StringValue"].encode())
        else:
            digest.update(b"\2")
            add(base64.b64decode(value.get("BinaryValue", "")))
    return digest.hexdigest()


SQS = JsonService(
    names=("sqs",),
    version="1.0",
    limits=False,  # the queue checks them, with codes of their own
    invalid="InvalidParameterValue",
    missing="MissingParameter",
    older_codes=_QUERY_CODES,
    operations={
        "ChangeMessageVisibility": _change_message_visibility,
        "ChangeMessageVisibilityBatch": _batch(_change_message_visibility),
        "CreateQueue": _create_queue,
        "DeleteMessage": _delete_message,
        "DeleteMessageBatch": _batch(_delete_message),
        "DeleteQueue": _delete_queue,
        "GetQueueAttributes": _get_queue_attributes,
        "GetQueueUrl": _get_queue_url,
        "ListQueueTags": _list_queue_tags,
        "ListQueues": _list_queues,
        "ReceiveMessage": _receive_message,
        "SendMessage": _send_message,
        "SendMessageBatch": _batch(_send_message),
        "SetQueueAttributes": _set_queue_attributes,
        "TagQueue": _tag_queue,
        "UntagQueue": _untag_queue,
    },
)

"""Messages of SQS, for the orchestrator's queue and for commands.

Without aiohttp: its import is a third of the time in which a command starts.
"""

from __future__ import annotations

from orchgpu.adapters.aws.api import Shape
from orchgpu.ports import TRACEPARENT, Message

#: The attributes of a queue that count its messages: visible, in flight, delayed.
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def trace_attributes(traceparent: str) -> Shape:
    """The parameter of a sent message that carries its trace context; empty without one."""
    if not traceparent:
        return {}
    value = {"DataType": "String", "StringValue": traceparent}
    return {"MessageAttributes": {TRACEPARENT: value}}


def read_message(found: Shape) -> Message:
    sent_ms = found.get("Attributes", {}).get("SentTimestamp", "")
    return Message(
        id=found["MessageId"],
        receipt_handle=found["ReceiptHandle"],
        body=found["Body"],
        sent_at_s=int(sent_ms) / 1000 if sent_ms.isdecimal() else None,
        traceparent=found.get("MessageAttributes", {}).get(TRACEPARENT, {}).get("StringValue", ""),
    )

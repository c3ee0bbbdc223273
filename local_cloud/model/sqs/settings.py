"""The attributes of an SQS standard queue: their limits, defaults, and AWS's text form.

Limits and defaults: SQS API reference, CreateQueue and SetQueueAttributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from corekit.values import Value, field, replace
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.json_text import read_json

#: attribute name → (field, least, most)
_NUMBERS = {
    "VisibilityTimeout": ("visibility_s", 0, 43200),
    "DelaySeconds": ("delay_s", 0, 900),
    "ReceiveMessageWaitTimeSeconds": ("receive_wait_s", 0, 20),
    "MessageRetentionPeriod": ("retention_s", 60, 1209600),
    "MaximumMessageSize": ("message_bytes_max", 1024, 1048576),
}
#: stored and returned, without effect here
_STORED = frozenset(
    {"Policy", "RedriveAllowPolicy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"}
    | {"SqsManagedSseEnabled"}
)
#: Attributes that `QueueSettings.changed` accepts.
KNOWN_ATTRIBUTES = frozenset({*_NUMBERS, *_STORED, "RedrivePolicy"})
_FIFO = frozenset({"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope"})


class Redrive(Value):
    """The dead-letter queue, and the receives after which a message is moved to it."""

    dead_letter_arn: str
    receives_max: int  #: 1…1000


class QueueSettings(Value):
    """The attributes of SetQueueAttributes; times in seconds."""

    visibility_s: float = 30
    delay_s: float = 0
    receive_wait_s: float = 0
    retention_s: float = 345600
    message_bytes_max: int = 1048576
    redrive: Redrive | None = None
    kept: Mapping[str, str] = field(default_factory=dict)  #: attributes without effect here

    @property
    def policy(self) -> str:
        """The queue's resource policy as JSON text, empty without one."""
        return self.kept.get("Policy", "")

    def changed(self, attributes: Mapping[str, str]) -> QueueSettings:
        """These settings with AWS's text attributes applied.

        Raises InvalidAttributeValue, InvalidAttributeName, or NotImplemented for FIFO.
        """
        changes: dict[str, object] = {}
        kept = dict(self.kept)
        for name, text in attributes.items():
            if name in _NUMBERS:
                key, least, most = _NUMBERS[name]
                changes[key] = _number(name, text, least, most)
            elif name == "RedrivePolicy":
                changes["redrive"] = _redrive(text)
            elif name in _STORED:
                kept[name] = text
            elif name in _FIFO:
                raise not_implemented("a FIFO queue")
            else:
                raise refused("InvalidAttributeName", f"Unknown Attribute {name}.")
        changes["kept"] = {name: text for name, text in kept.items() if text}
        return replace(self, **changes)  # type: ignore[arg-type]  # keys from the table

    def as_attributes(self) -> dict[str, str]:
        """AWS's text form, as GetQueueAttributes gives it."""
        attributes = {name: str(int(getattr(self, key))) for name, (key, _, _) in _NUMBERS.items()}
        if self.redrive is not None:
            attributes["RedrivePolicy"] = json.dumps(
                {
                    "deadLetterTargetArn": self.redrive.dead_letter_arn,
                    "maxReceiveCount": self.redrive.receives_max,
                },
                separators=(",", ":"),
            )
        return {**attributes, **self.kept}


def _bad(name: str, reason: str) -> CloudError:
    return refused("InvalidAttributeValue", f"Invalid value for the parameter {name}. {reason}")


def _number(name: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except (TypeError, ValueError):
        raise _bad(name, "It must be an integer.") from None
    if not least <= value <= most:
        raise _bad(name, f"It must be between {least} and {most}.")
    return value


def _redrive(text: str) -> Redrive | None:
    if not text:
        return None
    try:
        policy = read_json(text)
        receives = int(policy["maxReceiveCount"])
        arn = policy["deadLetterTargetArn"]
    except (ValueError, KeyError, TypeError):
        raise _bad("RedrivePolicy", "It needs deadLetterTargetArn and maxReceiveCount.") from None
    if not 1 <= receives <= 1000 or not isinstance(arn, str) or not arn.startswith("arn:"):
        raise _bad("RedrivePolicy", "maxReceiveCount is 1 to 1000, deadLetterTargetArn an ARN.")
    return Redrive(dead_letter_arn=arn, receives_max=receives)

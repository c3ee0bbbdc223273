"""Event source mappings of standard queues: what they are, what their functions get and answer.

A mapping receives messages from its queue and invokes its function with them. What the function
finished is deleted; the rest comes again when its visibility ends, which the function may change.
Source: Lambda developer guide, "Using Lambda with Amazon SQS": "Handling errors for an SQS event
source" (`batchItemFailures`: an empty list is success; an answer that is not of this form, or names
another message, fails the whole batch), "Configuring maximum concurrency".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from corekit.decode import decode, encode
from corekit.ids import IdSource
from corekit.values import Value, replace
from local_cloud.model.arns import arn_service, new_uuid
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.functions.function import Outcome
from local_cloud.model.functions.functions import Functions, LambdaFunction
from local_cloud.model.json_text import read_json
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder
from local_cloud.model.sqs.queue import BATCH_MAX, Message, Queue
from local_cloud.model.sqs.queues import Queues

REPORT_FAILURES = "ReportBatchItemFailures"
#: The settings that act here, with AWS's defaults for a queue.
_DEFAULTS: Mapping[str, Any] = {
    "BatchSize": BATCH_MAX,
    "MaximumBatchingWindowInSeconds": 0,
    "FunctionResponseTypes": [],
}
_SETTINGS = frozenset({*_DEFAULTS, "ScalingConfig"})
#: Fields of the calls beside the settings.
_NAMES = frozenset({"EventSourceArn", "FunctionName", "UUID", "Enabled"})


class EventSource(Value):
    """One mapping."""

    uuid: str
    queue_arn: str
    function: str  #: its name
    enabled: bool = True
    given: Mapping[str, Any] = {}  #: settings by AWS's names
    modified_at_s: float = 0.0

    @property
    def batch_max(self) -> int:
        """Messages of one invocation; above 10 a batch would need several receives."""
        return min(int(self.setting("BatchSize")), BATCH_MAX)

    @property
    def concurrency_max(self) -> int | None:
        """Invocations at a time; None: those of the account."""
        most: int | None = self.given.get("ScalingConfig", {}).get("MaximumConcurrency")
        return most

    @property
    def reports_failures(self) -> bool:
        return REPORT_FAILURES in self.setting("FunctionResponseTypes")

    def setting(self, name: str) -> Any:
        return self.given.get(name, _DEFAULTS.get(name))

    def shown(self) -> dict[str, Any]:
        """The settings with AWS's defaults, by its names."""
        return {**_DEFAULTS, **self.given}


@dataclass(slots=True, kw_only=True)
class EventSources:
    """Mappings by their UUID. `on_change` is called after each change of one."""

    functions: Functions
    queues: Queues
    ids: IdSource = field(default_factory=lambda: IdSource("event sources"))
    recorder: Recorder = field(default_factory=NullRecorder)
    on_change: Callable[[str], None] = lambda _uuid: None
    _mappings: dict[str, EventSource] = field(default_factory=dict)

    def create(self, now_s: float, given: Mapping[str, Any]) -> EventSource:
        """Map a queue to a function.

        Raises ResourceNotFoundException, ResourceConflictException for two that are mapped already,
        InvalidParameterValueException: no such queue, or its visibility timeout is too short.
        """
        function = self.functions.get(given["FunctionName"])
        queue = self._queue(given["EventSourceArn"])
        other = next(iter(self.all(queue_arn=queue.arn, function=function.name)), None)
        if other is not None:
            text = f"An event source mapping with SQS arn {queue.arn} and function {function.name}"
            raise refused("ResourceConflictException", f"{text} exists: UUID {other.uuid}")
        made = EventSource(
            uuid=new_uuid(self.ids, "mapping"), queue_arn=queue.arn, function=function.name
        )
        return self._changed(now_s, made, given)

    def update(self, now_s: float, uuid: str, given: Mapping[str, Any]) -> EventSource:
        """Change given settings. Raises as `create`."""
        mapping = self.get(uuid)
        if "FunctionName" in given:
            mapping = replace(mapping, function=self.functions.get(given["FunctionName"]).name)
        return self._changed(now_s, mapping, given)

    def _changed(self, now_s: float, mapping: EventSource, given: Mapping[str, Any]) -> EventSource:
        settings = {name: value for name, value in given.items() if name not in _NAMES}
        unknown = sorted(settings.keys() - _SETTINGS)
        if unknown:
            raise refused("InvalidParameterValueException", f"{unknown[0]} is not of a queue here.")
        changed = replace(
            mapping,
            enabled=given.get("Enabled", mapping.enabled),
            given={**mapping.given, **settings},
            modified_at_s=now_s,
        )
        self._check(changed)
        self._mappings[changed.uuid] = changed
        self.recorder.put(f"mapping/{changed.uuid}", encode(changed))
        self.on_change(changed.uuid)
        return changed

    def _check(self, mapping: EventSource) -> None:
        hidden_s = self._queue(mapping.queue_arn).settings.visibility_s
        timeout_s = self.functions.get(mapping.function).settings.timeout_s
        if hidden_s < timeout_s:
            text = f"Queue visibility timeout: {hidden_s:g} seconds is less than Function timeout:"
            raise refused("InvalidParameterValueException", f"{text} {timeout_s} seconds")
        if mapping.setting("BatchSize") > BATCH_MAX and not mapping.setting(
            "MaximumBatchingWindowInSeconds"
        ):
            text = "Maximum batch window in seconds must be greater than 0 if maximum batch size is"
            raise refused("InvalidParameterValueException", f"{text} greater than {BATCH_MAX}")

    def _queue(self, arn: str) -> Queue:
        queue = self.queues.by_arn(arn) if arn_service(arn) == "sqs" else None
        if queue is None:
            raise refused("InvalidParameterValueException", f"{arn} is not a queue of this account")
        return queue

    def delete(self, uuid: str) -> EventSource:
        """Delete a mapping. Raises ResourceNotFoundException."""
        gone = self.get(uuid)
        del self._mappings[uuid]
        self.recorder.drop(f"mapping/{uuid}")
        self.on_change(uuid)
        return gone

    def get(self, uuid: str) -> EventSource:
        """Raises ResourceNotFoundException."""
        if uuid not in self._mappings:
            text = "The resource you requested does not exist."
            raise CloudError("ResourceNotFoundException", 404, text)
        return self._mappings[uuid]

    def all(self, *, queue_arn: str = "", function: str = "") -> list[EventSource]:
        """Mappings, oldest first; of one queue, of one function."""
        return [
            mapping
            for mapping in self._mappings.values()
            if queue_arn in ("", mapping.queue_arn) and function in ("", mapping.function)
        ]

    def restore(self, value: Recorded) -> None:
        """Take back a recorded mapping."""
        mapping = decode(EventSource, value, "event source mapping")
        self._mappings[mapping.uuid] = mapping

    def parts(self, mapping: EventSource) -> tuple[LambdaFunction, Queue] | None:
        """The function and the queue of a mapping; None when one is gone, or it is disabled."""
        queue = self.queues.by_arn(mapping.queue_arn)
        try:
            function = self.functions.get(mapping.function)
        except CloudError:
            return None
        return (function, queue) if queue is not None and mapping.enabled else None


def event_of(messages: Sequence[Message], queue_arn: str, region: str) -> dict[str, object]:
    """The event that a function gets."""
    return {"Records": [_record(message, queue_arn, region) for message in messages]}


def _record(message: Message, queue_arn: str, region: str) -> dict[str, object]:
    return {
        "messageId": message.id,
        "receiptHandle": message.handle,
        "body": message.body,
        "attributes": message.system_attributes,
        "messageAttributes": {
            name: {
                "stringListValues": [],
                "binaryListValues": [],
                **{key[0].lower() + key[1:]: text for key, text in value.items()},
            }
            for name, value in message.attributes.items()
        },
        "md5OfBody": md5(message.body.encode(), usedforsecurity=False).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": region,
    }


def finished(mapping: EventSource, messages: Sequence[Message], outcome: Outcome) -> list[Message]:
    """The messages that a run has finished, which the mapping deletes."""
    if outcome.error or outcome.throttled:
        return []
    if not mapping.reports_failures:
        return list(messages)
    failed = _failed(outcome.payload)
    if failed is None or not failed <= {message.id for message in messages}:
        return []
    return [message for message in messages if message.id not in failed]


def _failed(payload: str) -> set[str] | None:
    """The ids of an answer; None: it is not of the form that AWS documents."""
    try:
        answer = read_json(payload or "null")
    except ValueError:
        return None
    failures = (answer or {}).get("batchItemFailures") if isinstance(answer, dict | None) else 0
    if failures is None:
        return set()
    if not isinstance(failures, list):
        return None
    ids = [item.get("itemIdentifier") if isinstance(item, dict) else None for item in failures]
    return {name for name in ids if isinstance(name, str) and name} if all(ids) else None

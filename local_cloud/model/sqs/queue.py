"""An SQS standard queue by AWS's documented rules.

A received message is hidden until its visibility deadline; each receipt makes a new handle. Only
the newest handle deletes (an older one succeeds and does nothing). Sources: SQS developer guide,
"visibility timeout" (12 h in total from receipt; a longer extension is an error) and "dead-letter
queues" (moved at the receive that would exceed maxReceiveCount, keeping the time it was sent).
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

from corekit.decode import only_known
from corekit.ids import IdSource
from corekit.values import Value
from local_cloud.model.arns import new_uuid
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part
from local_cloud.model.sqs.settings import QueueSettings
from local_cloud.model.weather import Draws

VISIBILITY_TOTAL_S_MAX = 43200.0  #: 12 h from receipt
IN_FLIGHT_MAX = 120_000  #: more received and not deleted messages are refused with OverLimit
#: Characters that XML 1.0 does not have (SendMessage, "message body").
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: By name, each in AWS's JSON form: `{"DataType": "String", "StringValue": …}`.
MessageAttributes: TypeAlias = Mapping[str, Mapping[str, str]]
BATCH_MAX = 10  #: messages of one receive, send or delete


@dataclass(slots=True, kw_only=True)
class Message:
    """One message and its state; of a receive, a copy of what it was then."""

    id: str
    body: str
    attributes: MessageAttributes
    sent_at_s: float
    visible_at_s: float  #: hidden before this time
    receives: int = 0
    received_at_s: float = 0.0  #: newest receipt
    first_received_at_s: float = 0.0
    handle: str = ""  #: of the newest receipt; empty = never received
    source_arn: str = ""  #: of the queue it came from, in a dead-letter queue

    @property
    def system_attributes(self) -> dict[str, str]:
        """The attributes that SQS adds to a received message, by its names."""
        attributes = {
            "SenderId": "AIDAEMBEDDEDCLOUD",
            "SentTimestamp": str(int(self.sent_at_s * 1000)),
            "ApproximateReceiveCount": str(self.receives),
            "ApproximateFirstReceiveTimestamp": str(int(self.first_received_at_s * 1000)),
        }
        if self.source_arn:
            attributes["DeadLetterQueueSourceArn"] = self.source_arn
        return attributes


_MESSAGE_FIELDS = frozenset(field.name for field in fields(Message))
#: Recorded once with the message; the other fields again with every receipt.
_SENT = ("id", "body", "attributes", "sent_at_s", "source_arn")
_RECEIPT = ("visible_at_s", "receives", "received_at_s", "first_received_at_s", "handle")


class Counts(Value):
    """GetQueueAttributes' ApproximateNumberOf…, which are exact here."""

    visible: int
    in_flight: int  #: received, not deleted, still hidden
    delayed: int  #: sent with a delay and never received


#: Moves a message to the dead-letter queue; False when there is none (the message stays).
DeadLetter = Callable[[float, Message], bool]


@dataclass(slots=True)
class Queue:
    """One standard queue; `arn` names it, `settings` may be replaced at any time."""

    name: str
    arn: str
    created_at_s: float
    ids: IdSource
    settings: QueueSettings = field(default_factory=QueueSettings)
    tags: dict[str, str] = field(default_factory=dict)
    recorder: Recorder = field(default_factory=NullRecorder)
    dead_letter: DeadLetter = lambda _now_s, _message: False
    modified_at_s: float = 0.0
    draws: Draws = field(default_factory=Draws)
    _messages: dict[str, Message] = field(default_factory=dict)
    _ready: deque[str] = field(default_factory=deque)  #: ids; may name deleted or hidden ones
    _hidden: list[tuple[float, str]] = field(default_factory=list)  #: heap; may hold old deadlines

    # --- sending

    def send(
        self,
        now_s: float,
        body: str,
        *,
        delay_s: float | None = None,
        attributes: MessageAttributes | None = None,
    ) -> Message:
        """Accept a message; `delay_s` overrides the queue's own.

        Raises MissingParameter (empty), InvalidMessageContents (characters that XML does not have),
        InvalidParameterValue (too large, bad delay).
        """
        delay = self.settings.delay_s if delay_s is None else delay_s
        if not body:
            raise refused("MissingParameter", "The request must contain the parameter MessageBody.")
        if not 0 <= delay <= 900:
            raise _bad_value(delay, "DelaySeconds", "Must be between 0 and 900.")
        texts = [body, *(str(a.get("StringValue", "")) for a in (attributes or {}).values())]
        if any(_NOT_XML.search(text) for text in texts):
            raise refused("InvalidMessageContents", "XML has no such characters.")
        most = self.settings.message_bytes_max
        if len(body.encode()) > most:
            raise refused("InvalidParameterValue", f"Message must be shorter than {most} bytes.")
        message = Message(
            id=new_uuid(self.ids, "message"),
            body=body,
            attributes=attributes or {},
            sent_at_s=now_s,
            visible_at_s=now_s + delay,
        )
        self._add(now_s, message)
        return message

    def take_over(self, now_s: float, message: Message, source_arn: str) -> None:
        """Accept another queue's message: same id, body and time sent; receipts start again."""
        fixed = {name: getattr(message, name) for name in _SENT}
        self._add(now_s, Message(**{**fixed, "visible_at_s": now_s, "source_arn": source_arn}))

    # --- receiving

    def receive(
        self, now_s: float, *, count_max: int = 1, visibility_s: float | None = None
    ) -> list[Message]:
        """Up to `count_max` (1…10) visible messages, hidden from now on.

        Raises InvalidParameterValue and, with 120,000 messages in flight, OverLimit.
        """
        if not 1 <= count_max <= BATCH_MAX:
            raise _bad_value(count_max, "MaxNumberOfMessages", "Must be between 1 and 10.")
        hide_s = self.settings.visibility_s if visibility_s is None else visibility_s
        _check_visibility(hide_s)
        self._reveal(now_s)
        if len(self._hidden) >= IN_FLIGHT_MAX and self.counts(now_s).in_flight >= IN_FLIGHT_MAX:
            raise refused("OverLimit", f"The queue has {IN_FLIGHT_MAX} messages in flight.")
        received: list[Message] = []
        while self._ready and len(received) < count_max:
            self._shuffle()
            message = self._messages.get(self._ready.popleft())
            # an id may be of a message that was deleted, or hidden again, since it was queued
            if message is None or message.visible_at_s > now_s or self._is_dead(now_s, message):
                continue
            self._hand_out(now_s, message, hide_s)
            received.append(replace(message))
        return received

    def _is_dead(self, now_s: float, message: Message) -> bool:
        """Drop an expired message, or move one with too many receives to the dead-letter queue."""
        redrive = self.settings.redrive
        if message.sent_at_s + self.settings.retention_s <= now_s:
            self._forget(message.id)
            return True
        if redrive is None or message.receives < redrive.receives_max:
            return False
        if not self.dead_letter(now_s, message):
            return False
        self._forget(message.id)
        return True

    def _hand_out(self, now_s: float, message: Message, hide_s: float) -> None:
        message.receives += 1
        message.received_at_s = now_s
        message.first_received_at_s = message.first_received_at_s or now_s
        message.handle = _handle(message.id, message.receives, self.ids)
        repeat_s = self._repeat_s()
        self._hide(message, now_s + (hide_s if repeat_s is None else min(hide_s, repeat_s)))

    def _shuffle(self) -> None:
        """In weather any of the next ten (developer guide, "Standard queues")."""
        if self.draws.weather.unordered and len(self._ready) > 1:
            self._ready.rotate(-self.draws.below("message order", min(len(self._ready), 10)))

    def _repeat_s(self) -> float | None:
        """The time after which a received or deleted message comes again, if it does: a server was
        not available (developer guide, "At-least-once delivery")."""
        repeats = self.draws.happens("message repeated")
        return self.draws.delay_s("message") if repeats else None

    # --- with a receipt handle

    def delete(self, now_s: float, handle: str) -> bool:
        """Delete by the newest handle. An older one changes nothing and is not an error.

        Returns whether a message was deleted; raises ReceiptHandleIsInvalid for any other text.
        """
        message = self._messages.get(_message_id(handle))
        if message is None or message.handle != handle:
            return False
        repeat_s = self._repeat_s()
        if repeat_s is None:
            self._forget(message.id)
        else:
            message.handle = ""  # one server kept its copy
            self._hide(message, now_s + repeat_s)
        return True

    def change_visibility(self, now_s: float, handle: str, visibility_s: float) -> None:
        """Hide the message for `visibility_s` from now; 0 gives it back.

        Raises InvalidParameterValue (handle too old, message gone, beyond 12 h since receipt),
        MessageNotInflight (already visible again) or ReceiptHandleIsInvalid.
        """
        _check_visibility(visibility_s)
        message = self._messages.get(_message_id(handle))
        if message is None or message.handle != handle:
            raise _bad_value(handle, "ReceiptHandle", "Message does not exist.")
        if message.visible_at_s <= now_s:
            raise refused("MessageNotInflight", f"The message {message.id} isn't in flight.")
        if now_s + visibility_s > message.received_at_s + VISIBILITY_TOTAL_S_MAX:
            raise _bad_value(visibility_s, "VisibilityTimeout", "Beyond 12 h since receipt.")
        self._hide(message, now_s + visibility_s)
        self._reveal(now_s)

    # --- the queue as a whole

    def counts(self, now_s: float) -> Counts:
        """Numbers of visible, in-flight and delayed messages."""
        self._expire(now_s)
        hidden = [m for m in self._messages.values() if m.visible_at_s > now_s]
        in_flight = sum(1 for m in hidden if m.handle)
        return Counts(
            visible=len(self._messages) - len(hidden),
            in_flight=in_flight,
            delayed=len(hidden) - in_flight,
        )

    def has_visible(self, now_s: float) -> bool:
        """Whether a receive would find a message, or move one to the dead-letter queue."""
        self._reveal(now_s)
        while self._ready:
            message = self._messages.get(self._ready[0])
            if message is not None and message.visible_at_s <= now_s:
                return True
            self._ready.popleft()
        return False

    def next_visible_at_s(self) -> float | None:
        """Time at which the next hidden message becomes visible, if nothing changes before."""
        while self._hidden:
            at_s, name = self._hidden[0]
            message = self._messages.get(name)
            if message is not None and message.visible_at_s == at_s:
                return at_s
            heapq.heappop(self._hidden)
        return None

    def clear(self) -> None:
        """Delete every message, received ones too."""
        for name in list(self._messages):
            self._forget(name)
        self._ready.clear()
        self._hidden.clear()

    def messages(self) -> list[Message]:
        """Every message, hidden ones too, in the order of arrival."""
        return list(self._messages.values())

    def save(self) -> None:
        """Record settings and tags (after they were replaced)."""
        self.recorder.put(
            f"queue/{part(self.name)}",
            {
                "created_at_s": self.created_at_s,
                "modified_at_s": self.modified_at_s,
                "attributes": self.settings.as_attributes(),
                "tags": self.tags,
            },
        )

    def restore(self, now_s: float, fixed: Recorded, moving: Recorded) -> None:
        """Restore a recorded message; call in the order in which they were sent."""
        recorded = only_known(_MESSAGE_FIELDS, {**fixed, **moving}, "message")
        self._add(now_s, Message(**recorded), record=False)

    # --- inside

    def _add(self, now_s: float, message: Message, *, record: bool = True) -> None:
        self._messages[message.id] = message
        if record:
            self._record("message", message, _SENT)
        if message.visible_at_s > now_s:
            self._hide(message, message.visible_at_s, record=record)
        else:
            self._ready.append(message.id)

    def _hide(self, message: Message, until_s: float, *, record: bool = True) -> None:
        message.visible_at_s = until_s
        heapq.heappush(self._hidden, (until_s, message.id))
        if record:
            self._record("receipt", message, _RECEIPT)

    def _record(self, kind: str, message: Message, names: Sequence[str]) -> None:
        values = {name: getattr(message, name) for name in names}
        self.recorder.put(self._key(kind, message.id), values)

    def _reveal(self, now_s: float) -> None:
        while self._hidden and self._hidden[0][0] <= now_s:
            at_s, name = heapq.heappop(self._hidden)
            message = self._messages.get(name)
            if message is not None and message.visible_at_s == at_s:
                self._ready.append(name)

    def _expire(self, now_s: float) -> None:
        oldest_s = now_s - self.settings.retention_s
        for message in [m for m in self._messages.values() if m.sent_at_s <= oldest_s]:
            self._forget(message.id)

    def _forget(self, name: str) -> None:
        message = self._messages.pop(name)
        self.recorder.drop(self._key("message", name))
        # most are sent without a delay and have no second record until they are received
        if message.handle or message.visible_at_s > message.sent_at_s:
            self.recorder.drop(self._key("receipt", name))

    def _key(self, kind: str, message: str) -> str:
        return f"{kind}/{part(self.name)}/{message}"


def _handle(message: str, receives: int, ids: IdSource) -> str:
    text = f"{message}/{receives}/{ids.stream('handle').getrandbits(64):016x}"
    return base64.b64encode(text.encode()).decode()


def _message_id(handle: str) -> str:
    try:
        name, receives, salt = base64.b64decode(handle, validate=True).decode("ascii").split("/")
    except (binascii.Error, ValueError):
        name = receives = salt = ""
    if not receives.isdigit() or len(salt) != 16:
        shown = handle if len(handle) <= 80 else handle[:80] + "…"
        raise refused("ReceiptHandleIsInvalid", f'The receipt handle "{shown}" is not valid.')
    return name


def _check_visibility(visibility_s: float) -> None:
    if not 0 <= visibility_s <= VISIBILITY_TOTAL_S_MAX:
        raise _bad_value(visibility_s, "VisibilityTimeout", "Must be between 0 and 43200.")


def _bad_value(value: object, name: str, reason: str) -> CloudError:
    text = f"Value {value} for parameter {name} is invalid. Reason: {reason}"
    return refused("InvalidParameterValue", text)

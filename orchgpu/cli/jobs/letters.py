"""The dead letters of one function: looked at without being taken, sent back one by one.

A letter is the event that started a job, with why and when the job was buried. Sent back, it gives
the job a new budget of attempts; its result may replace the failure it was buried with, and nothing
else (`orchgpu.core.machine`), so that sending one back twice does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from orchgpu.core.function import Function
from orchgpu.core.routing import InputEvent, classify

#: A letter that was looked at is hidden so long if nobody puts it back; then it is there again.
LOOKED_AT_S = 60
#: The long poll that says a queue is empty.
EMPTY_AFTER_S = 1
#: SQS's limit of messages in one call.
BATCH_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message of a dead-letter queue."""

    id: str
    handle: str
    body: str
    job: str | None  #: None: SQS itself buried it, or it never was a job
    reason: str | None
    detail: str
    dead_at_s: float | None  #: wall clock
    input: str | None  #: bucket/key; None: no event, sending it back would change nothing

    def as_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job,
            "reason": self.reason,
            "detail": self.detail,
            "dead_at_s": self.dead_at_s,
            "input": self.input,
        }


def read_letter(message: Mapping[str, Any], function: Function) -> Letter:
    """Total: any message is a letter, if perhaps an unreadable one."""
    body = str(message["Body"])
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    found = value.get("orchgpu") if isinstance(value, Mapping) else None
    note: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    what = classify(body, function)
    event = what if isinstance(what, InputEvent) else None
    dead_at_s = note.get("dead_at")
    return Letter(
        id=str(message["MessageId"]),
        handle=str(message["ReceiptHandle"]),
        body=body,
        job=_text(note.get("job_id")),
        reason=_text(note.get("reason")),
        detail=_text(note.get("detail")) or "",
        dead_at_s=float(dead_at_s) if isinstance(dead_at_s, (int, float)) else None,
        input=None if event is None else f"{event.bucket}/{event.key}",
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(slots=True)
class DeadLetters:
    """What was looked at and not sent back, to be put back. Raises AppError only."""

    sqs: Any  #: a boto3 client
    function: Function
    _seen: dict[str, Letter] = field(default_factory=dict)

    def read(self, limit: int) -> list[Letter]:
        """At most so many letters, each once."""
        while len(self._seen) < limit and self._receive(min(BATCH_MAX, limit - len(self._seen))):
            continue
        return list(self._seen.values())

    def send_back(self, letter: Letter) -> None:
        """To the job queue, then out of the dead letters: a crash between the two does no harm."""
        self._call("send_message", QueueUrl=self.function.queue_url, MessageBody=letter.body)
        url = self.function.dead_letter_url
        self._call("delete_message", QueueUrl=url, ReceiptHandle=letter.handle)
        del self._seen[letter.id]

    def put_back(self) -> None:
        """Let everybody see at once what was only looked at."""
        letters = list(self._seen.values())
        for start in range(0, len(letters), BATCH_MAX):
            entries = [
                {"Id": str(number), "ReceiptHandle": letter.handle, "VisibilityTimeout": 0}
                for number, letter in enumerate(letters[start : start + BATCH_MAX])
            ]
            url = self.function.dead_letter_url
            self._call("change_message_visibility_batch", QueueUrl=url, Entries=entries)

    def _receive(self, count_max: int) -> bool:
        answer = self._call(
            "receive_message",
            QueueUrl=self.function.dead_letter_url,
            MaxNumberOfMessages=count_max,
            VisibilityTimeout=LOOKED_AT_S,
            WaitTimeSeconds=EMPTY_AFTER_S,
        )
        new = [read_letter(message, self.function) for message in answer.get("Messages", ())]
        known = len(self._seen)
        self._seen |= {letter.id: letter for letter in new}
        return len(self._seen) > known

    def _call(self, name: str, **arguments: Any) -> Any:
        from orchgpu.adapters.aws.errors import translated

        with translated(f"sqs:{name} {arguments['QueueUrl']}"):
            return getattr(self.sqs, name)(**arguments)


@contextmanager
def dead_letters(sqs: Any, function: Function) -> Iterator[DeadLetters]:
    """The letters of a function; however the block ends, those not sent back are put back."""
    letters = DeadLetters(sqs, function)
    try:
        yield letters
    finally:
        letters.put_back()


def newest_of(letters: Sequence[Letter], job: str, ended_at_s: float) -> Letter | None:
    """The letter that may replace the job's failure of that time; None when there is none."""
    able = [
        letter
        for letter in letters
        if letter.job == job and (letter.dead_at_s or 0.0) >= ended_at_s - 1e-6
    ]
    return able[-1] if able else None

"""The dead letters of one function: read without removing them, and sent back one by one.

A letter is the event that started a job, with the reason and time of its failure. Sent back, it
gives the job a new budget of attempts; the new result may replace that failure and nothing else
(`orchgpu.core.machine`), so that it does no harm to send a letter back twice. A failed job runs
again by its letter, else by one made from its record.

A function without jobs has Lambda's own records of the events that it could not run. Sent back,
such an event starts the function once more: twice, if this command is cut off before the letter is
deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from contract.result import Result
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.cloud_services import CloudServices
from orchgpu.core.completion import failure_of, places_of
from orchgpu.core.dead_letters import dead_letter_body
from orchgpu.core.function import Function
from orchgpu.core.job import input_from_payload
from orchgpu.core.routing import InputEvent, classify
from orchgpu.jobs.cloud import DirectFunction, JobCloud
from orchgpu.jobs.known import Known
from orchgpu.ports import Message

#: A letter that was read stays hidden this long when this process dies before unhiding it.
HIDDEN_S = 60
#: Letters that one command reads; the next command reads those behind them.
LETTERS_MAX = 1000
#: The long poll after which a queue counts as empty.
EMPTY_AFTER_S = 1
#: SQS's limit of messages in one call.
BATCH_MAX = 10


class Letter(Value):
    """One message of a dead-letter queue."""

    id: str
    handle: str
    body: str
    job: str | None  #: None: dead-lettered by SQS itself, or never a job
    reason: str | None
    detail: str
    dead_at_s: float | None  #: wall clock
    input: str | None  #: bucket/key; None: not an event, so it is useless to send it back
    traceparent: str = ""  #: of the job that failed

    def as_json(self) -> dict[str, object]:
        return {
            "job_id": self.job,
            "reason": self.reason,
            "detail": self.detail,
            "dead_at_s": self.dead_at_s,
            "input": self.input,
        }


def read_letter(message: Message, function: Function) -> Letter:
    """The letter in a message, even in an unreadable one."""
    try:
        value = json.loads(message.body)
    except (ValueError, RecursionError):
        value = None
    found = value.get("orchgpu") if isinstance(value, Mapping) else None
    note: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    routed = classify(message.body, function)
    event = routed if isinstance(routed, InputEvent) else None
    dead_at_s = note.get("dead_at")
    return Letter(
        id=message.id,
        handle=message.receipt_handle,
        body=message.body,
        job=_text(note.get("job_id")),
        reason=_text(note.get("reason")),
        detail=_text(note.get("detail")) or "",
        dead_at_s=float(dead_at_s) if isinstance(dead_at_s, (int, float)) else None,
        input=None if event is None else f"{event.bucket}/{event.key}",
        traceparent=message.traceparent,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def read_failure(message: Message) -> Letter:
    """The letter in Lambda's record of an event that it could not run; total."""
    try:
        value = json.loads(message.body)
    except (ValueError, RecursionError):
        value = None
    found: Mapping[str, object] = value if isinstance(value, Mapping) else {}
    reason, detail = failure_of(found) if found else (None, "")
    payload = found.get("requestPayload")
    places = [f"{bucket}/{key}" for bucket, key in places_of(payload)]
    return Letter(
        id=message.id,
        handle=message.receipt_handle,
        body=json.dumps(payload),
        job=None,
        reason=reason,
        detail=detail,
        dead_at_s=_time(found.get("timestamp")),
        input=", ".join(places) or None,
    )


def _time(value: object) -> float | None:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None


class _OfJobs:
    """The dead letters of a function with jobs."""

    def __init__(self, services: CloudServices, function: Function) -> None:
        self._services = services
        self._function = function
        self.url = function.dead_letter_url

    def read(self, message: Message) -> Letter:
        return read_letter(message, self._function)

    def send_back(self, letter: Letter) -> None:
        self._services.send(self._function.queue_url, letter.body, letter.traceparent)


class _OfEvents:
    """The dead letters of a function without jobs."""

    def __init__(self, services: CloudServices, function: DirectFunction) -> None:
        """Raises NOT_FOUND for a function that has no such queue."""
        if not function.dead_letters:
            message = f"{function.name} was deployed without dead letters; deploy it again"
            raise AppError(ErrorCode.NOT_FOUND, message)
        self._services = services
        self._name = function.name
        self.url = services.queue_url(function.dead_letters)

    def read(self, message: Message) -> Letter:
        return read_failure(message)

    def send_back(self, letter: Letter) -> None:
        self._services.start(self._name, letter.body)


@dataclass(slots=True)
class DeadLetters:
    """The letters that were read and not sent back; `unhide` releases them. Raises AppError."""

    services: CloudServices
    box: _OfJobs | _OfEvents
    _read: dict[str, Letter] = field(default_factory=dict)

    def read(self, limit: int) -> list[Letter]:
        """Read at most this many letters, each once."""
        while len(self._read) < limit and self._receive(min(BATCH_MAX, limit - len(self._read))):
            continue
        return list(self._read.values())

    def send_back(self, letter: Letter) -> None:
        """Send it back, then delete the dead letter: a crash in between loses nothing."""
        self.box.send_back(letter)
        self.services.delete(self.box.url, letter.handle)
        del self._read[letter.id]

    def unhide(self) -> None:
        """Make the letters that were only read visible to others at once."""
        handles = [letter.handle for letter in self._read.values()]
        for start in range(0, len(handles), BATCH_MAX):
            self.services.unhide(self.box.url, handles[start : start + BATCH_MAX])

    def _receive(self, count_max: int) -> bool:
        received = self.services.receive(
            self.box.url, count_max=count_max, hidden_s=HIDDEN_S, wait_s=EMPTY_AFTER_S
        )
        before = len(self._read)
        self._read |= {one.id: self.box.read(one) for one in received}
        return len(self._read) > before


@contextmanager
def dead_letters(
    services: CloudServices, function: Function | DirectFunction
) -> Iterator[DeadLetters]:
    """The letters of a function; however the block ends, those not sent back are visible again."""
    box: _OfJobs | _OfEvents
    if isinstance(function, Function):
        box = _OfJobs(services, function)
    else:
        box = _OfEvents(services, function)
    letters = DeadLetters(services, box)
    try:
        yield letters
    finally:
        letters.unhide()


def newest_of(letters: Sequence[Letter], job: str, ended_at_s: float) -> Letter | None:
    """The letter whose redrive may replace the job's failure at that time; None without one."""
    able = [
        letter
        for letter in letters
        if letter.job == job and (letter.dead_at_s or 0.0) >= ended_at_s - 1e-6
    ]
    return able[-1] if able else None


def retry(cloud: JobCloud, known: Known) -> Function:
    """Send the failed job to its queue again; returns its function. Raises as `failed_function`."""
    function, result = failed_function(known)
    with dead_letters(cloud.services, function) as letters:
        letter = newest_of(letters.read(LETTERS_MAX), known.job, result.ended_at_s)
        if letter is not None:
            letters.send_back(letter)
        else:
            cloud.services.send(function.queue_url, letter_body(known, result))
    return function


def failed_function(known: Known) -> tuple[Function, Result]:
    """The function and result of a failed job.

    Raises CONFLICT while the job is not over, INVALID for an outcome that cannot be retried.
    """
    if not known.over:
        raise AppError(ErrorCode.CONFLICT, f"{known.job} is not over: it is {known.state}")
    if known.state not in ("FAILED", "REJECTED"):
        raise invalid(f"{known.job} is {known.state}, not a failed job; upload its input again")
    if known.function is None or known.result is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    return known.function, known.result


def letter_body(known: Known, result: Result) -> str:
    """The letter, made from the job's record: the original was sent back or expired."""
    source = input_from_payload(known.record.block) if known.record else None
    if source is None:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"neither a dead letter nor a record of {known.job} exists any more; upload its input"
            " again",
        )
    function = known.function
    if function is not None and not function.takes_from(source.bucket, source.key):
        where = f"s3://{source.bucket}/{source.key}"
        text = f"the record of {known.job} names {where}, which is not an input of {function.name}"
        raise AppError(ErrorCode.DENIED, f"{text}: it is not run again")
    event = json.dumps(source.as_s3_event())
    return dead_letter_body(event, known.job, result.reason, result.detail, result.ended_at_s)

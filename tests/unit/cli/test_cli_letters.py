"""Dead letters as `orchgpu dlq` reads them, and the jobs that `orchgpu retry` accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import Step
from orchgpu.core.dead_letters import dead_letter_body
from orchgpu.core.routing import InputEvent, classify
from orchgpu.jobs.known import Known, Scheduled
from orchgpu.jobs.letters import (
    Letter,
    failed_function,
    letter_body,
    newest_of,
    read_failure,
    read_letter,
)
from orchgpu.ports import Message
from tests.history_records import FUNCTION, job_record, job_result

INPUT = InputEvent(
    bucket="in",
    key="a b.fa",
    version_id="v",
    etag="e",
    size=1,
    event_name="ObjectCreated:Put",
    event_time="2026-01-01T00:00:00Z",
)
BODY = dead_letter_body(json.dumps(INPUT.as_s3_event()), "j1", "EXIT_NONZERO", "exited 3", 500.0)


def letter(body: str) -> Letter:
    return read_letter(Message(id="m", receipt_handle="h", body=body), FUNCTION)


def test_a_letter_has_its_job_and_reason() -> None:
    read = letter(BODY)
    assert (read.job, read.reason, read.dead_at_s) == ("j1", "EXIT_NONZERO", 500.0)
    assert read.input == "in/a b.fa"
    assert json.loads(json.dumps(read.as_json()))["detail"] == "exited 3"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "x",
        "[]",
        "null",
        '{"orchgpu": 3}',
        '{"orchgpu": {"job_id": 4, "dead_at": "x"}}',
        dead_letter_body("no event", None, "BAD_EVENT", "not JSON", 1.0),
    ],
)
def test_a_letter_without_an_event_is_shown_and_never_sent_back(body: str) -> None:
    assert letter(body).input is None


def test_only_a_letter_of_the_newest_failure_is_worth_sending() -> None:
    read = letter(BODY)
    assert newest_of([read], "j1", 500.0) is read
    assert newest_of([read], "j1", 600.0) is None
    assert newest_of([read], "j2", 0.0) is None


def known(state: str, *, step: Step = Step.ENDED, block: dict[str, Any] | None = None) -> Known:
    record = job_record(step=step, outcome=state if step is Step.ENDED else None, block=block or {})
    result = job_result(state=state, reason="KILLED", detail="signal 9", ended_at_s=700.0)
    return Known(
        job="j1", function=FUNCTION, scheduled=Scheduled(record=record), result=result, reports={}
    )


@pytest.mark.parametrize("state", ["FAILED", "REJECTED"])
def test_a_failed_job_is_retried(state: str) -> None:
    assert failed_function(known(state))[0] is FUNCTION


@pytest.mark.parametrize(
    ("state", "step", "code"),
    [
        ("SUCCEEDED", Step.ENDED, ErrorCode.INVALID),
        ("CANCELLED", Step.ENDED, ErrorCode.INVALID),
        ("FAILED", Step.RUNNING, ErrorCode.CONFLICT),
    ],
)
def test_only_failed_jobs_are_retried(state: str, step: Step, code: ErrorCode) -> None:
    with pytest.raises(AppError) as refused:
        failed_function(known(state, step=step))
    assert refused.value.code is code


def test_a_lost_letter_is_written_again_from_the_record() -> None:
    job = known("FAILED", block={"input": encode(INPUT)})
    _, result = failed_function(job)
    body = letter_body(job, result)
    event = classify(body, FUNCTION)
    assert isinstance(event, InputEvent)
    assert (event.key, event.version_id, event.dead_at_s) == ("a b.fa", "v", 700.0)
    with pytest.raises(AppError, match="upload its input again"):
        letter_body(known("FAILED"), result)


@pytest.mark.parametrize("key", ["theirs/a.fa", "mine", "mineandmore/a.fa"])
def test_a_record_that_names_an_input_elsewhere_is_not_run_again(key: str) -> None:
    """A record is what its key wrote, and two tenants' inputs may be in one bucket."""
    job = known("FAILED", block={"input": {**encode(INPUT), "key": key}})
    job = replace(job, function=replace(FUNCTION, input_prefix="mine"))
    assert job.result is not None
    with pytest.raises(AppError, match="not an input of f"):
        letter_body(job, job.result)


def lambdas_record(payload: object, **changes: Any) -> Letter:
    """The letter in Lambda's record of an event that it could not run."""
    record = {
        "timestamp": "2026-01-01T00:00:00.000Z",
        "requestContext": {"requestId": "r", "condition": "RetriesExhausted"},
        "requestPayload": payload,
        "responsePayload": {"errorType": "AttemptFailed", "errorMessage": "TIMEOUT: too slow"},
        **changes,
    }
    return read_failure(Message(id="m", receipt_handle="h", body=json.dumps(record)))


def test_a_letter_of_a_function_without_jobs_is_lambdas_record() -> None:
    event = {"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "a+b.txt"}}}]}
    letter = lambdas_record(event)
    assert (letter.job, letter.reason, letter.input) == (None, "TIMEOUT", "b/a b.txt")
    assert (letter.detail, letter.dead_at_s) == ("TIMEOUT: too slow", 1767225600.0)
    assert json.loads(letter.body) == event, "the event as Lambda had it"


def test_an_event_that_was_throttled_is_a_letter_too() -> None:
    context = {"condition": "EventAgeExceeded", "approximateInvokeCount": 0}
    letter = lambdas_record({}, requestContext=context, responsePayload=None)
    assert (letter.reason, letter.input) == ("THROTTLED", None)


@pytest.mark.parametrize("body", ["", "[]", "{", '"x"', '{"timestamp": []}'])
def test_any_other_message_is_a_letter_without_an_event(body: str) -> None:
    assert read_failure(Message(id="m", receipt_handle="h", body=body)).input is None

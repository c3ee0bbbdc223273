"""The messages of a completion queue: an object was written, or Lambda gave up on an event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote_plus

from contract.keys import parse_attempt_key, parse_result_key, parse_staging_key
from contract.states import Reason
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.function import Function

DETAIL_CHARS_MAX = 500


def read_completion(
    body: str, function: Function, now: on.EventTimes
) -> list[on.Event | do.RecordStarted | do.RecordFunctionFailure]:
    """The meaning of a message for jobs of a function: events, and reports to be recorded by the
    replica that reads it. An unknown message means nothing. Raises nothing."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, Mapping):
        return []
    if "requestPayload" in value:
        return [*_failures(value, function)]
    return [notice for place in places_of(value) for notice in _written(*place, function, now)]


def _written(
    bucket: str, key: str, function: Function, now: on.EventTimes
) -> list[on.Event | do.RecordStarted]:
    if (job := parse_result_key(key)) is not None:
        return [on.ResultNoticed(**now, job=job)]
    if (of_attempt := parse_attempt_key(key)) is not None:
        job, n, kind = of_attempt
        if kind == "claim":
            return [do.RecordStarted(job=job, attempt=n, bucket=function.intermediate_bucket)]
        return [on.ReportNoticed(**now, job=job, attempt=n)]
    return [on.ObjectNoticed(**now, bucket=bucket, key=key)] if bucket else []


def _failures(value: Mapping[str, object], function: Function) -> list[do.RecordFunctionFailure]:
    """Of Lambda's on-failure record of an asynchronous invocation (AWS: "Invocation record")."""
    reason, detail = failure_of(value)
    request = _mapping(value.get("requestContext")).get("requestId")
    staged = [parse_staging_key(key) for _, key in places_of(value["requestPayload"])]
    return [
        do.RecordFunctionFailure(
            job=key.job,
            function=function,
            attempt=key.n,
            reason=reason,
            detail=detail,
            request=request if isinstance(request, str) else "",
            with_device=key.fence > 0,
        )
        for key in staged
        if key is not None
    ]


#: Conditions of an invocation record under which no code ran.
_NOT_RUN = {
    "EventAgeExceeded": (Reason.EVENT_EXPIRED, "Lambda dropped the event: it was too old"),
    "ZeroReservedConcurrency": (Reason.THROTTLED, "the function's reserved concurrency is 0"),
}


def failure_of(value: Mapping[str, object]) -> tuple[Reason, str]:
    """The reason in an invocation record, and its text for people.

    Sources: Lambda developer guide, "Retaining records of asynchronous invocations" (conditions),
    "Understanding the Lambda execution environment lifecycle" (a start has 10 s; a runtime that is
    killed for its memory has the error type Runtime.OutOfMemory).
    """
    context = _mapping(value.get("requestContext"))
    payload = _mapping(value.get("responsePayload"))
    kind, message = str(payload.get("errorType", "")), str(payload.get("errorMessage", ""))
    detail = f"{kind}: {message}".strip(": ")[:DETAIL_CHARS_MAX]
    condition = context.get("condition")
    if isinstance(condition, str) and condition in _NOT_RUN:
        reason, what = _NOT_RUN[condition]
        if reason is Reason.EVENT_EXPIRED and context.get("approximateInvokeCount") == 0:
            return Reason.THROTTLED, "Lambda dropped the event: there was no room to run it in time"
        return reason, what
    if kind == "AttemptFailed" and (word := message.partition(":")[0]) in Reason.__members__:
        return Reason(word), message[:DETAIL_CHARS_MAX]  # of our runner, without a job
    if "INIT timed out" in message or kind == "Runtime.InitTimeout":
        return Reason.START_TIMED_OUT, detail
    if kind == "Runtime.OutOfMemory":  # "signal: killed" alone may be any signal
        return Reason.OUT_OF_MEMORY, detail
    if kind == "Sandbox.Timedout" or "Task timed out" in message:
        return Reason.FUNCTION_TIMEOUT, detail
    if kind == "Runtime.ExitError" or "Runtime exited" in message:
        return Reason.FUNCTION_CRASHED, detail
    return Reason.FUNCTION_ERROR, detail or "Lambda reports a failure without a reason"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def places_of(value: object) -> list[tuple[str, str]]:
    records = value.get("Records") if isinstance(value, Mapping) else None
    if not isinstance(records, list):
        return []
    found = []
    for record in records:
        try:
            s3 = record["s3"]
            key, bucket = s3["object"]["key"], s3.get("bucket", {}).get("name", "")
        except (TypeError, KeyError, AttributeError):
            continue
        if isinstance(bucket, str) and isinstance(key, str):
            found.append((bucket, unquote_plus(key)))
    return found

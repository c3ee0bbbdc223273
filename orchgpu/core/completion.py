"""The messages of a completion queue: an object was written, or Lambda gave up on an event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote_plus

from contract.keys import parse_result_key, parse_staging_key
from contract.states import Reason
from corekit.values import Value

DETAIL_CHARS_MAX = 500


class ResultWasWritten(Value):
    job: str


class InvocationFailed(Value):
    """Lambda's on-failure record of an asynchronous invocation (AWS: "Invocation record")."""

    job: str
    attempt: int
    reason: Reason
    detail: str


class ObjectWasWritten(Value):
    """An object other than a result: it may be the one that ends a foreign function's job."""

    bucket: str
    key: str


Notice = ResultWasWritten | ObjectWasWritten | InvocationFailed


def read_completion(body: str) -> list[Notice]:
    """Read every notice in a message; an unknown message contains none. Raises nothing."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, Mapping):
        return []
    if "requestPayload" in value:
        return _failures(value)
    return [notice for place in _objects(value) for notice in _written(*place)]


def _written(bucket: str, key: str) -> list[Notice]:
    job = parse_result_key(key)
    if job is not None:
        return [ResultWasWritten(job=job)]
    return [ObjectWasWritten(bucket=bucket, key=key)] if bucket else []


def _failures(value: Mapping[str, object]) -> list[Notice]:
    reason, detail = _why(value)
    staged = [parse_staging_key(key) for _, key in _objects(value["requestPayload"])]
    return [
        InvocationFailed(job=key.job, attempt=key.n, reason=reason, detail=detail)
        for key in staged
        if key is not None
    ]


def _why(value: Mapping[str, object]) -> tuple[Reason, str]:
    context = value.get("requestContext")
    condition = context.get("condition") if isinstance(context, Mapping) else None
    if condition == "EventAgeExceeded":
        return Reason.NOT_STARTED, "Lambda dropped the event: it was too old"
    payload = value.get("responsePayload")
    kind, message = "", ""
    if isinstance(payload, Mapping):
        kind = str(payload.get("errorType", ""))
        message = str(payload.get("errorMessage", ""))
    detail = f"{kind}: {message}".strip(": ")[:DETAIL_CHARS_MAX]
    if kind == "Sandbox.Timedout" or "Task timed out" in message:
        return Reason.FUNCTION_TIMEOUT, detail
    if kind == "Runtime.ExitError" or "exited" in message:
        return Reason.FUNCTION_CRASHED, detail
    return Reason.FUNCTION_ERROR, detail or "Lambda reports a failure without a reason"


def _objects(value: object) -> list[tuple[str, str]]:
    """Bucket ("" where it is missing) and key of every record."""
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

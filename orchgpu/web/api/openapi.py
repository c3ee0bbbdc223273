"""The OpenAPI 3.1 description of the API, generated from its values."""

from __future__ import annotations

from typing import Any

from contract.http_jobs import WAIT_S_MAX
from gpu_scheduler.protocol.openapi import ERROR, Schema, components_of
from orchgpu.web.api.cloud_events import STRUCTURED
from orchgpu.web.api.model import VALUES
from orchgpu.web.model.pages import LIMIT, LIMIT_MAX

_STATUS = {
    "400": "the request is invalid (code invalid)",
    "401": "no key, or an unknown one (denied)",
    "403": "the key, or the page, may not do this (denied)",
    "404": "not found (not_found)",
    "409": "it was used, or ended, otherwise (conflict)",
    "413": "the body is too large (invalid)",
    "422": "too large, or no device could ever do it (impossible)",
    "429": "a limit is reached; Retry-After has the pause (exhausted)",
    "500": "internal error, or the code of a call failed (internal)",
    "503": "try again in a moment (unavailable)",
    "504": "no answer in time; it may have happened (timeout)",
}
_DESCRIPTION = """Functions for programs. A request stores one input, which starts one job; the job
is committed exactly once, and attempted once or more. All times are in seconds.

With keys, `Authorization: Bearer <name>.<secret>`, a key of the scheduler."""


def openapi(version: str) -> Schema:
    """The document of the whole API."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "orchgpu", "version": version, "description": _DESCRIPTION},
        "paths": {
            "/v1/functions/{function}/jobs": {"parameters": [_FUNCTION], "post": _submit()},
            "/v1/functions/{function}/calls": {"parameters": [_FUNCTION], "post": _call()},
            "/v1/jobs": {"get": _list()},
            "/v1/jobs/{job}": {"parameters": [_JOB], "get": _one(), "delete": _cancel()},
            "/v1/jobs/{job}/events": {"parameters": [_JOB], "get": _events()},
            "/v1/jobs/{job}/outputs": {"parameters": [_JOB], "get": _outputs()},
            "/v1/jobs/{job}/outputs/{output}": {"parameters": [_JOB, _OUTPUT], "get": _content()},
        },
        "components": {
            "schemas": {"Error": ERROR, **components_of(VALUES)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _parameter(place: str, name: str, schema: Schema, text: str) -> Schema:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "schema": schema, "description": text}


_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
_FUNCTION = _parameter("path", "function", _TEXT, "name of a deployed function")
_JOB = _parameter("path", "job", {"type": "string", "pattern": "^j[0-9a-f]{25}$"}, "id of a job")
_OUTPUT = _parameter("path", "output", {"type": "string", "minLength": 1}, "name of an output")
_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}
_WAIT = _parameter("query", "wait", _SECONDS, "seconds to wait for the end")


_SET: Schema = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}=", "maxLength": 400}
_ATTRIBUTE: Schema = {"type": "string", "minLength": 1, "maxLength": 500}
_EVENT: Schema = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        **dict.fromkeys(("id", "source", "type"), _ATTRIBUTE),
        "datacontenttype": {"type": "string"},
        "data": {"description": "the input"},
        "data_base64": {"type": "string", "format": "byte"},
        "dataref": {"type": "string", "pattern": "^s3://"},
    },
}


def _submit() -> Schema:
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}},
    }
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {
        "application/octet-stream": binary,
        "multipart/form-data": {"schema": form},
        "application/json": {"schema": _reference("InputReference")},
        STRUCTURED: {"schema": _EVENT},
    }
    key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
    text = "the same for a request and its repetitions, which get the same job"
    name = "name of the input; the function reads its ending"
    described = _operation("submit_job", "Store an input, which starts a job.", "Job")
    described["responses"]["202"] = {
        **described["responses"]["200"],
        "description": "the input is stored; the job is not over",
        "headers": {"Location": {"schema": {"type": "string"}, "description": "the job"}},
    }
    return {
        **described,
        "parameters": [
            _WAIT,
            _parameter("query", "name", {**_TEXT, "pattern": r"^[^/\\]+$"}, name),
            _parameter("query", "set", {"type": "array", "items": _SET}, "parameters of the job"),
            _parameter("header", "Idempotency-Key", key, text),
        ],
        "requestBody": {"required": True, "content": content},
    }


def _call() -> Schema:
    binary = {"schema": {"type": "string", "format": "binary"}}
    name = "name of the input; the function reads its ending"
    wait = "seconds to wait for the endpoint and for a turn, before the call is made"
    described = _operation("call_function", "Call an endpoint; its answer is the body.", "Job")
    content = {"application/octet-stream": binary, "*/*": binary}
    described["responses"]["200"] = {"description": "the answer, as it comes", "content": content}
    return {
        **described,
        "parameters": [
            _parameter("query", "wait", {**_SECONDS, "default": WAIT_S_MAX}, wait),
            _parameter("query", "name", {**_TEXT, "pattern": r"^[^/\\]+$"}, name),
        ],
        "requestBody": {"required": True, "content": {"application/octet-stream": binary}},
    }


def _list() -> Schema:
    limit = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}
    query = {
        "function": (_TEXT, "of this function"),
        "state": (_TEXT, "a state, `live` or `over`"),
        "q": (_TEXT, "in the id, the input or the function"),
        "since": ({"type": "number"}, "received then or later, in seconds since 1970"),
        "limit": (limit, "jobs of one page"),
        "after": (_TEXT, "`next` of the page before"),
    }
    found = [_parameter("query", name, *given) for name, given in query.items()]
    summary = "Jobs that the scheduler knows, newest first: live, or over for less than an hour."
    return {**_operation("list_jobs", summary, "JobPage"), "parameters": found}


def _one() -> Schema:
    return {**_operation("get_job", "One job.", "Job"), "parameters": [_WAIT]}


def _cancel() -> Schema:
    reason = _parameter("query", "reason", _TEXT, "for people")
    described = _operation("cancel_job", "Cancel a job that is not over; safe to repeat.", "Job")
    return {**described, "parameters": [reason]}


def _outputs() -> Schema:
    return _operation("list_outputs", "The outputs of a job; none before its end.", "JobFiles")


def _events() -> Schema:
    stream: Schema = {"text/event-stream": {}}
    last = _parameter("header", "Last-Event-ID", {"type": "string"}, "continue after this event")
    summary = "States (`state`: Job) and lines (`line`: LogLine) as they come, until `end`."
    described = _operation("job_events", summary, "Job")
    described["responses"] |= {
        "200": {"description": "server-sent events", "content": stream},
        "204": {"description": "the stream had ended; do not come back"},
    }
    return {**described, "parameters": [last]}


def _content() -> Schema:
    schema = {"schema": {"type": "string", "format": "binary"}}
    binary = {"application/octet-stream": schema, "*/*": schema}  # generators know the first
    asked = _parameter("header", "Range", {"type": "string"}, "one range of bytes")
    described = _operation("get_output", "The content of one output.", "Job")
    described["responses"] |= {
        "200": {"description": "all of it", "content": binary},
        "206": {"description": "the range", "content": binary},
        "416": {**_refusal("the output is shorter (invalid)")},
    }
    return {**described, "parameters": [asked]}


def _operation(id_: str, summary: str, answer: str) -> dict[str, Any]:
    done = {"description": "done", "content": _json(_reference(answer))}
    refusals = {status: _refusal(why) for status, why in _STATUS.items()}
    return {
        "operationId": id_,
        "tags": ["jobs"],
        "summary": summary,
        "responses": {"200": done, **refusals},
    }


def _refusal(why: str) -> Schema:
    return {"description": why, "content": _json(_reference("Error"))}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}

"""The OpenAPI 3.1 description of the HTTP API, generated from the classes of ops and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from corekit.errors import ErrorCode
from corekit.values import Value
from gpu_scheduler.model import Lease
from gpu_scheduler.names import NAME_CHARS_MAX, NAME_PATTERN
from gpu_scheduler.protocol import ops, watch

Schema = dict[str, Any]

#: Ops that change nothing: `GET` works too, with their fields in the query.
READING_OPS = (
    "inventory",
    "leases",
    "queue",
    "workloads",
    "demand",
    "record",
    "records",
    "orphans",
    "explain",
    "parameters",
)
#: Ops that belong to a connection.
NOT_OVER_HTTP = ("beat", "watch")

_STATUS = {
    "400": "the request is invalid (code invalid)",
    "401": "no key, or an unknown one (denied)",
    "403": "the key lacks the permission (denied)",
    "404": "not found (not_found)",
    "409": "another caller changed it first (conflict)",
    "413": "the body is too large (invalid)",
    "422": "permanently infeasible: no known device fits (impossible)",
    "429": "a limit is reached (exhausted)",
    "503": "try again in a moment (unavailable)",
}
_DESCRIPTION = """Allocation of devices. Every op may be repeated; all times are in seconds.

A session (`X-Session`) owns its reservations; a waiting `reserve` or `attempt` is answered with 202
and must be repeated. With keys, `Authorization: Bearer <name>.<secret>`."""


def openapi(version: str) -> Schema:
    """The document of the whole HTTP API."""
    served = {op: cls for op, cls in ops.OPS.items() if op not in NOT_OVER_HTTP}
    answers = map(ops.answer_of, served.values())
    schemas = components_of(dict.fromkeys([Lease, *watch.EVENTS, *served.values(), *answers]))
    paths: dict[str, Schema] = {}
    for op in served:
        paths[f"/v1/{op}"] = {"post": _operation(op, schemas)}
    for op in READING_OPS:
        paths[f"/v1/{op}"]["get"] = _reading(op, schemas)
    paths["/v1/leases/{lease}"] = _one_lease()
    paths["/v1/watch"] = {"get": _watching(schemas)}
    for name, summary in _OPEN.items():
        paths[name] = {"get": _plain(summary)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ssgmd", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, **schemas},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def components_of(classes: Iterable[type[Value]]) -> dict[str, Schema]:
    """The JSON Schema of each class, and of the classes in them, by name."""
    return msgspec.json.schema_components(classes, ref_template=_REFERENCE + "{name}")[1]


_REFERENCE = "#/components/schemas/"


_OPEN: Mapping[str, str] = {
    "/healthz": "200 while the process answers",
    "/readyz": "200 once recovery is complete",
    "/metrics": "Prometheus text, version 0.0.4",
}

#: The response object of every refusal.
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "properties": {
                "code": {"enum": [code.value for code in ErrorCode]},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
        }
    },
}


def _operation(op: str, schemas: Mapping[str, Schema]) -> Schema:
    name = ops.OPS[op].__name__
    return {
        "operationId": op,
        **_described(op),
        "parameters": [_SESSION],
        "requestBody": {
            "required": bool(schemas[name]["required"]),
            "content": _json(_reference(name)),
        },
    }


def _reading(op: str, schemas: Mapping[str, Schema]) -> Schema:
    """`GET /v1/<op>`: the fields that are plain words or numbers are the query."""
    schema = schemas[ops.OPS[op].__name__]
    plain = {name: _without_null(field) for name, field in schema["properties"].items()}
    fields = [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": field}
        for name, field in plain.items()
        if field.get("type") in ("string", "integer")
    ]
    described = {"operationId": f"get_{op}", **_described(op)}
    return {**described, "parameters": [_SESSION, *fields]}


def _without_null(field: Schema) -> Schema:
    """The schema of a field in a query, which has no null: an unset field is left out."""
    default = {"default": field["default"]} if field.get("default") is not None else {}
    own = next((one for one in field.get("anyOf", ()) if one != {"type": "null"}), field)
    return {**{key: value for key, value in own.items() if key != "default"}, **default}


_NAME: Schema = {
    "type": "string",
    "pattern": NAME_PATTERN,
    "minLength": 1,
    "maxLength": NAME_CHARS_MAX,
}
_SESSION: Schema = {
    "name": "X-Session",
    "in": "header",
    "required": False,
    "description": "the session that owns the request or lease; the default is `http`",
    "schema": {
        "type": "string",
        "pattern": "^[!-~]+$",
        "maxLength": NAME_CHARS_MAX,
    },
}


def _described(op: str) -> Schema:
    answer = _reference(ops.answer_of(ops.OPS[op]).__name__)
    responses = {"200": {"description": "done", "content": _json(answer)}, **_refusals()}
    if op in ("attempt", "reserve"):
        waits = "the request waits; repeat it within client_gone_s to keep its place"
        responses["202"] = {"description": waits, "content": _json(answer)}
    docstring = (ops.OPS[op].__doc__ or "").strip().splitlines()[0]
    return {"summary": docstring, "responses": responses}


def _refusals() -> Schema:
    content = _json(_reference("Error"))
    return {status: {"description": why, "content": content} for status, why in _STATUS.items()}


def _one_lease() -> Schema:
    lease = {"name": "lease", "in": "path", "required": True, "schema": _NAME}
    found = {"description": "the lease is live", "content": _json(_reference("Lease"))}
    return {
        "parameters": [lease, _SESSION],
        "get": {
            "operationId": "get_lease",
            "summary": "One live lease; 404 when it is over.",
            "responses": {"200": found, **_refusals()},
        },
        "delete": {"operationId": "delete_lease", **_described("release")},
    }


def _watching(schemas: Mapping[str, Schema]) -> Schema:
    frame = {
        "type": "object",
        "required": ["event", "seq", "at_s"],
        "properties": {
            "event": {"enum": list(watch.EVENTS.values())},
            "seq": {"type": "integer"},
            "at_s": {"type": "number"},
            "position": {"type": "string"},
        },
    }
    for event in watch.EVENTS:  # own fields; a line has the fields of one event in addition
        schemas[event.__name__].pop("additionalProperties")
    known = [_reference(event.__name__) for event in watch.EVENTS]
    line = {"allOf": [frame, {"anyOf": known}]}
    content = {"application/x-ndjson": {"schema": line}, "text/event-stream": {"schema": line}}
    stream = {"description": "one event per line, without end", "content": content}
    summary = "Changes as they happen: leases, records, queue, hosts, devices, parameters."
    responses = {"200": stream, **_refusals()}
    where = [
        _position("after", "query", "the position of an event: the stream continues after it"),
        _position("Last-Event-ID", "header", "as `after`; an EventSource sends it"),
    ]
    return {
        "operationId": "watch",
        "summary": summary,
        "parameters": where,
        "responses": responses,
    }


def _position(name: str, place: str, description: str) -> Schema:
    field = {"name": name, "in": place, "required": False, "schema": {"type": "string"}}
    return {**field, "description": description}


def _plain(summary: str) -> Schema:
    return {"summary": summary, "responses": {"200": {"description": "yes"}, **_refusals()}}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> Schema:
    return {"$ref": _REFERENCE + name}

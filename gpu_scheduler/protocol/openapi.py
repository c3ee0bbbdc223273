"""The HTTP door described for tools: OpenAPI 3.1, made from the classes that decode and answer."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from corekit.errors import ErrorCode
from gpu_scheduler.model import Lease
from gpu_scheduler.names import NAME_CHARS_MAX, NAME_PATTERN
from gpu_scheduler.protocol import answers, ops, watch
from gpu_scheduler.protocol.bounds import BOUNDS

Schema = dict[str, Any]

#: What each op answers; `{}` for the rest.
_ANSWERS: Mapping[str, type[Any]] = {
    "attempt": answers.AttemptOutcome,
    "reserve": answers.AttemptOutcome,
    "adopt": answers.Adopted,
    "orphans": answers.RecordsAnswer,
    "records": answers.RecordsAnswer,
    "record": answers.RecordAnswer,
    "hand_back": answers.RecordAnswer,
    "staged": answers.RecordAnswer,
    "fail_attempt": answers.RecordAnswer,
    "finish": answers.RecordAnswer,
    "reopen": answers.RecordAnswer,
    "explain": answers.ExplainAnswer,
    "inventory": answers.InventoryAnswer,
    "leases": answers.LeasesAnswer,
    "queue": answers.QueueAnswer,
    "parameters": answers.ParametersAnswer,
    "set": answers.ParametersAnswer,
    "resize": answers.LeaseAnswer,
    "transfer": answers.LeaseAnswer,
}

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
    type(None): {"type": "null"},
}


#: Ops that change nothing: `GET` does too, with their fields in the query.
READING_OPS = (
    "inventory",
    "leases",
    "queue",
    "record",
    "records",
    "orphans",
    "explain",
    "parameters",
)
#: Ops that belong to a connection.
NOT_OVER_HTTP = ("beat", "watch")

_STATUS = {
    "400": "the request is wrong (code invalid)",
    "401": "no key, or an unknown one (denied)",
    "403": "the key does not suffice (denied)",
    "404": "not found (not_found)",
    "409": "somebody else changed it first (conflict)",
    "413": "the body is too large (invalid)",
    "422": "no known device could ever do it (impossible)",
    "429": "a limit is reached (exhausted)",
    "503": "try again in a moment (unavailable)",
}
_DESCRIPTION = """Who gets which device. Every op may be repeated; all times are in seconds.

A session (`X-Session`) owns what it reserved; a waiting `reserve` or `attempt` is answered 202 and
asked again. With keys, `Authorization: Bearer <name>.<secret>`."""


def openapi(version: str) -> Schema:
    """The document of the whole HTTP door."""
    schemas: dict[str, Schema] = {"Error": ERROR}
    paths: dict[str, Schema] = {}
    for op in ops.OPS:
        if op not in NOT_OVER_HTTP:
            paths[f"/v1/{op}"] = {"post": _operation(op, schemas)}
    for op in READING_OPS:
        paths[f"/v1/{op}"]["get"] = _reading(op, schemas)
    paths["/v1/leases/{lease}"] = _one_lease(schemas)
    paths["/v1/watch"] = {"get": _watching(schemas)}
    for name, summary in _OPEN.items():
        paths[name] = {"get": _plain(summary)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ssgmd", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


_OPEN: Mapping[str, str] = {
    "/healthz": "200 while the process answers",
    "/readyz": "200 once recovery is complete",
    "/metrics": "Prometheus text, version 0.0.4",
}

#: The object of every refusal.
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


def _operation(op: str, schemas: dict[str, Schema]) -> Schema:
    """`POST /v1/<op>`: its fields are the body; a body without need may be left out."""
    schema = schema_of(ops.OPS[op], schemas)
    needed = bool(schemas[ops.OPS[op].__name__]["required"])
    return {
        "operationId": op,
        **_described(op, schemas),
        "parameters": [_SESSION],
        "requestBody": {"required": needed, "content": _json(schema)},
    }


def _reading(op: str, schemas: dict[str, Schema]) -> Schema:
    """`GET /v1/<op>`: those of its fields that are plain words or numbers."""
    cls = ops.OPS[op]
    hints = typing.get_type_hints(cls)
    fields = [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "schema": _bounded(_scalar(hints[field.name]), cls, field.name),
        }
        for field in msgspec.structs.fields(cls)
        if _is_scalar(hints[field.name])
    ]
    described = {"operationId": f"get_{op}", **_described(op, schemas)}
    return {**described, "parameters": [_SESSION, *fields]}


def _is_scalar(hint: Any) -> bool:
    kinds = [getattr(one, "__supertype__", one) for one in typing.get_args(hint) or (hint,)]
    return all(kind in (str, int, type(None)) for kind in kinds)


def _scalar(hint: Any) -> Schema:
    """In a query there is no null: what may be left out is left out."""
    kinds = [one for one in typing.get_args(hint) or (hint,) if one is not type(None)]
    return schema_of(kinds[0], {})


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
    "description": "whom the request belongs to; `http` without it",
    "schema": {
        "type": "string",
        "pattern": "^[!-~]+$",
        "maxLength": NAME_CHARS_MAX,
    },
}


def _described(op: str, schemas: dict[str, Schema]) -> Schema:
    answer = schema_of(_ANSWERS.get(op, answers.Done), schemas)
    responses = {"200": {"description": "done", "content": _json(answer)}, **_refusals()}
    if op in ("attempt", "reserve"):
        waits = "it waits; ask again within client_gone_s to keep its place"
        responses["202"] = {"description": waits, "content": _json(answer)}
    docstring = (ops.OPS[op].__doc__ or "").strip().splitlines()[0]
    return {"summary": docstring, "responses": responses}


def _refusals() -> Schema:
    content = _json({"$ref": "#/components/schemas/Error"})
    return {status: {"description": why, "content": content} for status, why in _STATUS.items()}


def _one_lease(schemas: dict[str, Schema]) -> Schema:
    lease = {"name": "lease", "in": "path", "required": True, "schema": _NAME}
    found = {"description": "it lives", "content": _json(schema_of(Lease, schemas))}
    return {
        "parameters": [lease, _SESSION],
        "get": {
            "operationId": "get_lease",
            "summary": "One live lease; 404 when it is over.",
            "responses": {"200": found, **_refusals()},
        },
        "delete": {"operationId": "delete_lease", **_described("release", schemas)},
    }


def _watching(schemas: dict[str, Schema]) -> Schema:
    """One line of the stream; JSON lines, or server-sent events when those are accepted."""
    frame = {
        "type": "object",
        "required": ["event", "seq", "at_s"],
        "properties": {
            "event": {"enum": list(watch.EVENTS.values())},
            "seq": {"type": "integer"},
            "at_s": {"type": "number"},
        },
    }
    for event in watch.EVENTS:  # their own fields; a line has those of one of them besides
        schema_of(event, schemas)
        schemas[event.__name__].pop("additionalProperties")
    known = [{"$ref": f"#/components/schemas/{event.__name__}"} for event in watch.EVENTS]
    line = {"allOf": [frame, {"anyOf": known}]}
    content = {"application/x-ndjson": {"schema": line}, "text/event-stream": {"schema": line}}
    stream = {"description": "one event a line, without end", "content": content}
    summary = "What changes, as it happens: leases, queue, hosts, devices, parameters."
    responses = {"200": stream, **_refusals()}
    return {"operationId": "watch", "summary": summary, "responses": responses}


def _plain(summary: str) -> Schema:
    return {"summary": summary, "responses": {"200": {"description": "yes"}, **_refusals()}}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def schema_of(hint: Any, schemas: dict[str, Schema]) -> Schema:
    """The JSON Schema of a type as it travels; its classes are added to `schemas`."""
    hint = getattr(hint, "__supertype__", hint)
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(one, schemas) for one in inner]}
    if origin is tuple:
        return {"type": "array", "items": schema_of(inner[0], schemas)}
    if origin is not None:
        return {"type": "object", "additionalProperties": schema_of(inner[1], schemas)}
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    return _reference(hint, schemas)


def _reference(cls: Any, schemas: dict[str, Schema]) -> Schema:
    if cls.__name__ not in schemas:
        schemas[cls.__name__] = {}  # named before it is filled: a class may refer to itself
        hints = typing.get_type_hints(cls)
        fields = msgspec.structs.fields(cls)
        schemas[cls.__name__] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                field.name: _bounded(schema_of(hints[field.name], schemas), cls, field.name)
                for field in fields
            },
            "required": [field.name for field in fields if field.required],
        }
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _bounded(schema: Schema, cls: type[Any], field: str) -> Schema:
    """With the limits of that field; null has none."""
    bounds = BOUNDS.get(cls, {}).get(field, {})
    if "anyOf" in schema and bounds:
        one, *rest = schema["anyOf"]
        return {"anyOf": [{**one, **bounds}, *rest]}
    return {**schema, **bounds}

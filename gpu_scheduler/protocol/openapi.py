"""The HTTP door described for tools: OpenAPI 3.1, made from the classes that decode and answer."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from corekit.errors import ErrorCode
from gpu_scheduler.protocol import answers, requester

Schema = dict[str, Any]

#: What each op answers; `{}` for the rest.
_ANSWERS: Mapping[str, type[Any]] = {
    "attempt": answers.AttemptOutcome, "reserve": answers.AttemptOutcome,
    "adopt": answers.Adopted, "orphans": answers.RecordsAnswer, "records": answers.RecordsAnswer,
    "record": answers.RecordAnswer, "hand_back": answers.RecordAnswer,
    "staged": answers.RecordAnswer, "fail_attempt": answers.RecordAnswer,
    "finish": answers.RecordAnswer, "reopen": answers.RecordAnswer,
    "explain": answers.ExplainAnswer, "inventory": answers.InventoryAnswer,
    "leases": answers.LeasesAnswer, "queue": answers.QueueAnswer,
    "parameters": answers.ParametersAnswer, "set": answers.ParametersAnswer,
    "resize": answers.LeaseAnswer, "transfer": answers.LeaseAnswer,
}  # fmt: skip

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"},
    bool: {"type": "boolean"}, Any: {}, type(None): {"type": "null"},
}  # fmt: skip


def openapi(ops: tuple[str, ...], version: str) -> Schema:
    """The document for `POST /v1/<op>` of the given ops."""
    schemas: dict[str, Schema] = {"Error": _ERROR}
    paths = {f"/v1/{op}": {"post": _operation(op, schemas)} for op in ops}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ssgmd", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


_ERROR: Schema = {
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
    cls = requester.OPS[op]
    answer = _ANSWERS.get(op, answers.Done)
    good = {"description": "done", "content": _json(_schema(answer, schemas))}
    wrong = {"description": "why not", "content": _json({"$ref": "#/components/schemas/Error"})}
    return {
        "operationId": op,
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
        "requestBody": {"content": _json(_schema(cls, schemas))},
        "responses": {"200": good, "default": wrong},
    }


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _schema(hint: Any, schemas: dict[str, Schema]) -> Schema:
    hint = getattr(hint, "__supertype__", hint)
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, schemas) for one in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0], schemas)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _schema(inner[1], schemas)}
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    return _reference(hint, schemas)


def _reference(cls: Any, schemas: dict[str, Schema]) -> Schema:
    if cls.__name__ not in schemas:
        schemas[cls.__name__] = {}  # named before it is filled: a class may refer to itself
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        schemas[cls.__name__] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {field.name: _schema(hints[field.name], schemas) for field in fields},
            "required": [field.name for field in fields if _required(field)],
        }
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

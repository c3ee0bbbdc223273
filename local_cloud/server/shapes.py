"""Validation of a JSON body against the types of AWS's model.

A shape is `str`, `int`, `bool`, `[shape]` for a list, `{"*": shape}` for a map, and `{name: shape}`
for a structure, whose unknown fields are kept. A null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from local_cloud.model.json_text import read_json

Shape: TypeAlias = type | list["Shape"] | dict[str, "Shape"] | None
#: A validated body: the fields that are read have the types of the model.
Body: TypeAlias = Mapping[str, Any]


class WrongShape(Exception):
    """A field has another type than in the model; the message names it."""


def read_body(data: bytes, shape: dict[str, Shape]) -> Body:
    """The body of a request; no bytes are an empty one. Raises ValueError, WrongShape."""
    body = fitted(read_json(data or b"{}"), shape)
    assert isinstance(body, dict), "the shape is one of a structure"
    return body


def fitted(value: object, shape: Shape, path: str = "") -> object:
    """The value without its nulls. Raises WrongShape naming the field of another type."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise WrongShape(f"{path} is not a list")
        return [fitted(item, shape[0], f"{path}[{at}]") for at, item in enumerate(value)]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise WrongShape(f"{path or 'the body'} is not an object")
        return {
            name: fitted(item, shape.get(name, shape.get("*")), f"{path}.{name}".lstrip("."))
            for name, item in value.items()
            if item is not None
        }
    if shape is not None and type(value) is not shape:
        raise WrongShape(f"{path} is not a {_WORDS[shape]}")
    return value


_WORDS = {str: "string", int: "integer", bool: "boolean"}

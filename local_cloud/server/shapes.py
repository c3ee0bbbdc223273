"""Checking a JSON body against the types of AWS's model before anybody reads it.

A shape is `str`, `int`, `bool`, `[shape]` for a list, `{"*": shape}` for a map, and `{name: shape}`
for a structure, whose unknown fields are left alone. A null is as good as absent.
"""

from __future__ import annotations

from typing import Any

Shape = Any


class WrongShape(Exception):
    """A field has another type than in the model; the message names it."""


def fitted(value: Any, shape: Shape, path: str = "") -> Any:
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


_WORDS = {str: "string", int: "whole number", bool: "boolean"}

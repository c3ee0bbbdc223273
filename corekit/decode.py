"""Strict decoding of untrusted JSON into values and dataclasses, and encoding back.

`decode(Cls, value)` and `decode_json(Cls, data)` accept exactly the fields of the class: an unknown
key is an error with a did-you-mean, a missing key an error, a wrong type an error; every message
names the path (`hosts[2].devices[0].memory_mib`). `decode_known` and `decode_json_known` read what
a newer version may have written: they skip unknown keys and return their paths. Numbers must be
finite and bools are never numbers. `encode` and `encode_json` are the inverse. Supported field
types: str, int, float, bool, enums, NewTypes of those, `X | None`, `tuple[X, ...]`,
`Mapping[str, X]`, nested values and dataclasses, and `Any` for opaque JSON (kept as it is, nested
`DEPTH_MAX` levels at most).

Two readers. The fast one is msgspec's, in C, for the text of a `corekit.values.Value`. The other,
`corekit.walk`, reads everything else, and again what the fast one refuses, to report the reason.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from corekit.errors import AppError, invalid
from corekit.walk import (
    DEPTH_MAX,
    UNIONS,
    bare,
    field_names,
    has_fields,
    of_optional,
    parse_json,
    passing_over,
    walker,
)

T = TypeVar("T")
Buffer = bytes | msgspec.Raw

#: Every refusal of the fast reader; AppError comes from a class's own checks.
_REFUSALS = (msgspec.MsgspecError, AppError, RecursionError, UnicodeError)


def decode(cls: type[T], value: object, path: str = "") -> T:
    """Build a `cls` from plain JSON-like data. Raises AppError(INVALID) naming the path."""
    kind: Any = cls
    walked: T = walker(kind)(value, path or cls.__name__)
    return walked


def decode_json(cls: type[T], data: Buffer, path: str = "") -> T:
    """Build a `cls` from JSON text. Raises AppError(INVALID) naming the path."""
    kind: Any = cls
    found: T | None = fast_reader(kind)(data)
    if found is not None:
        return found
    try:
        value = parse_json(bytes(data))
    except ValueError as error:
        raise invalid(f"{path or cls.__name__}: not JSON: {error}") from None
    return decode(cls, value, path)


def decode_known(cls: type[T], value: object, path: str = "") -> tuple[T, tuple[str, ...]]:
    """As `decode`, for data of another version: keys that `cls` does not have are passed over.

    Their paths come with the value, so that the caller can report the ignored keys. Everything else
    that `decode` refuses is refused: a missing key, a wrong type, a word that is not in an enum.
    """
    with passing_over() as passed:
        return decode(cls, value, path), tuple(passed)


def decode_json_known(cls: type[T], data: Buffer, path: str = "") -> tuple[T, tuple[str, ...]]:
    """`decode_known` of JSON text."""
    kind: Any = cls
    found: T | None = fast_reader(kind)(data)
    if found is not None:
        return found, ()
    with passing_over() as passed:
        return decode_json(cls, data, path), tuple(passed)


def encode(value: object) -> Any:
    """Plain JSON-like data from a value; None fields and empty defaults are kept."""
    return _FROM_JSON(_TO_JSON(value))  # `to_builtins` would leave tuples


def encode_json(value: object) -> bytes:
    """JSON text from a value, without spaces."""
    return _TO_JSON(value)


_TO_JSON = msgspec.json.Encoder().encode
_FROM_JSON = msgspec.json.Decoder().decode


# ---------------------------------------------------------------------- the fast reader

Fast = Callable[[Buffer], Any]


@functools.cache
def fast_reader(cls: Any) -> Fast:
    """From JSON text to a value of the class; None where the slow reader is needed."""
    if not _is_strict(cls):
        return lambda _: None
    read, is_shallow = msgspec.json.Decoder(cls).decode, _depth_check(cls)

    def run(data: Buffer) -> Any:
        try:
            found = read(data)
        except _REFUSALS:
            return None
        return found if is_shallow is None or is_shallow(found) else None

    return run


@functools.cache
def _is_strict(given: Any) -> bool:
    """True when msgspec itself refuses unknown keys everywhere in the type."""
    hint: Any = bare(given)
    if not has_fields(hint):
        return all(map(_is_strict, typing.get_args(hint)))
    config = getattr(hint, "__struct_config__", None)
    hints = typing.get_type_hints(hint)
    strict = config is not None and config.forbid_unknown_fields
    return strict and all(_is_strict(hints[name]) for name in field_names(hint))


# ---------------------------------------------------------------------- opaque parts

Check = Callable[[Any], bool]


@functools.cache
def _depth_check(given: Any) -> Check | None:
    """A check that no `Any` part of a value is nested too deep; None without such a part."""
    hint: Any = bare(given)
    if hint is Any:
        return lambda value: _is_shallow(value, 0)
    if has_fields(hint):
        return _fields_check(hint)
    if (inner := of_optional(hint)) is not None:
        return _some(_depth_check(inner), lambda one: lambda v: v is None or one(v))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:  # of scalars
        return None
    if origin is tuple:
        return _some(_depth_check(arguments[0]), lambda one: lambda v: all(map(one, v)))
    if origin is not None and issubclass(origin, Mapping):
        return _some(_depth_check(arguments[1]), lambda one: lambda v: all(map(one, v.values())))
    return None


def _some(inner: Check | None, outer: Callable[[Check], Check]) -> Check | None:
    return None if inner is None else outer(inner)


def _fields_check(cls: Any) -> Check | None:
    hints = typing.get_type_hints(cls)
    found = ((name, _depth_check(hints[name])) for name in field_names(cls))
    checks = tuple((name, check) for name, check in found if check is not None)
    if not checks:
        return None
    return lambda value: all(check(getattr(value, name)) for name, check in checks)


def _is_shallow(value: Any, depth: int) -> bool:
    if depth > DEPTH_MAX:
        return False
    if type(value) is dict:
        return all(_is_shallow(item, depth + 1) for item in value.values())
    return type(value) is not list or all(_is_shallow(item, depth + 1) for item in value)

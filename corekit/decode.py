"""Strict decoding of untrusted JSON into frozen dataclasses, and encoding back.

`decode(Cls, value)` and `decode_json(Cls, data)` accept exactly the fields of the class: an unknown
key is an error with a did-you-mean, a missing key an error, a wrong type an error; every message
names the path (`hosts[2].devices[0].memory_mib`). `decode_known` and `decode_json_known` are for
what a newer version may have written: they pass unknown keys over and name them. Numbers must be
finite and bools are never numbers. `encode` and `encode_json` are the inverse. Supported field
types: str, int, float, bool, enums, NewTypes of those, `X | None`, `tuple[X, ...]`,
`Mapping[str, X]`, nested dataclasses, and `Any` for opaque JSON (kept as it is, nested `DEPTH_MAX`
levels at most).

Two readers. The fast one is msgspec's, in C. Text of a class made by `corekit.values` takes one
pass; anything else two: into a *shape* (a struct of the same fields that refuses unknown keys and
numbers that are not finite, which msgspec does not do for dataclasses) and into the class itself.
It says yes or no. What it refuses, `corekit.walk` reads again, slowly, to say why. So the good case
costs microseconds and the bad one keeps its message.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec

from corekit.errors import AppError, invalid
from corekit.walk import (
    DEPTH_MAX,
    bare,
    is_required,
    of_optional,
    parse_json,
    passing_over,
    walker,
)

T = TypeVar("T")
Buffer = bytes | msgspec.Raw

#: Everything by which the fast reader says no; AppError comes from a class's own checks.
_REFUSALS = (msgspec.MsgspecError, AppError, RecursionError, UnicodeError)
#: NaN and the infinities lie outside of it.
_FINITE = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


def decode(cls: type[T], value: Any, path: str = "") -> T:
    """Build a `cls` from plain JSON-like data. Raises AppError(INVALID) naming the path."""
    kind: Any = cls
    if type(value) is dict:
        try:
            msgspec.convert(value, _shape(kind))
            found = msgspec.convert(value, cls)
        except _REFUSALS:
            pass
        else:
            is_plain = _opaque_check(kind)
            if is_plain is None or is_plain(found):
                return found
    walked: T = walker(kind)(value, path or cls.__name__)
    return walked


def decode_json(cls: type[T], data: Buffer, path: str = "") -> T:
    """Build a `cls` from JSON text. Raises AppError(INVALID) naming the path."""
    kind: Any = cls
    found: T | None = reader(kind).read(data)
    if found is not None:
        return found
    try:
        value = parse_json(bytes(data))
    except ValueError as error:
        raise invalid(f"{path or cls.__name__}: not JSON: {error}") from None
    return decode(cls, value, path)


def decode_known(cls: type[T], value: Any, path: str = "") -> tuple[T, tuple[str, ...]]:
    """As `decode`, for what another version wrote: keys that `cls` does not have are passed over.

    Their paths come with the value, so that the caller can tell what is ignored. Everything else
    that `decode` refuses is refused: a missing key, a wrong type, a word that is not in an enum.
    """
    with passing_over() as passed:
        return decode(cls, value, path), tuple(passed)


def decode_json_known(cls: type[T], data: Buffer, path: str = "") -> tuple[T, tuple[str, ...]]:
    """`decode_known` of JSON text."""
    kind: Any = cls
    found: T | None = reader(kind).read(data)
    if found is not None:
        return found, ()
    with passing_over() as passed:
        return decode_json(cls, data, path), tuple(passed)


def encode(value: Any) -> Any:
    """Plain JSON-like data from a value; None fields and empty defaults are kept."""
    return _FROM_JSON(_TO_JSON(value))  # `to_builtins` would leave tuples


def encode_json(value: Any) -> bytes:
    """JSON text from a value, without spaces."""
    return _TO_JSON(value)


_TO_JSON = msgspec.json.Encoder().encode
_FROM_JSON = msgspec.json.Decoder().decode


class Reader(Generic[T]):
    """The fast reader of one class. Make it with `reader`."""

    __slots__ = ("_is_plain", "_to_shape", "_to_value")

    def __init__(self, cls: Any, beside: tuple[str, ...]) -> None:
        strict = not beside and _is_strict(cls)
        self._to_shape = None if strict else msgspec.json.Decoder(_shape(cls, beside)).decode
        self._to_value = msgspec.json.Decoder(cls).decode
        self._is_plain = _opaque_check(cls)

    def read(self, data: Buffer) -> T | None:
        """The value; None when it is refused and `decode` will say why."""
        try:
            if self._to_shape is not None:
                self._to_shape(data)
            found = self._to_value(data)
        except _REFUSALS:
            return None
        return found if self._is_plain is None or self._is_plain(found) else None


@functools.cache
def reader(cls: Any, beside: tuple[str, ...] = ()) -> Reader[Any]:
    """The reader of `cls`; the keys `beside` may stand among its fields and are passed over."""
    return Reader(cls, beside)


# ---------------------------------------------------------------------- shapes


@functools.cache
def _is_strict(given: Any) -> bool:
    """Whether msgspec itself refuses unknown keys everywhere in it; numbers of JSON are finite."""
    hint: Any = bare(given)
    if not dataclasses.is_dataclass(hint):
        return all(map(_is_strict, typing.get_args(hint)))
    config = getattr(hint, "__struct_config__", None)
    hints = typing.get_type_hints(hint)
    inner = (_is_strict(hints[field.name]) for field in dataclasses.fields(hint))
    return config is not None and config.forbid_unknown_fields and all(inner)


@functools.cache
def _shape(cls: Any, beside: tuple[str, ...] = ()) -> Any:
    """A struct that accepts what `cls` may be made of, before the class's own checks."""
    hints = typing.get_type_hints(cls)
    fields: list[Any] = [(name, Any, None) for name in beside]
    for field in dataclasses.fields(cls):
        if field.init:
            kind = _shape_of(hints[field.name])
            fields.append((field.name, kind) if is_required(field) else (field.name, kind, None))
    return msgspec.defstruct(cls.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _shape_of(given: Any) -> Any:
    hint: Any = bare(given)
    origin = typing.get_origin(hint)
    if hint is float:
        return _FINITE
    if (inner := of_optional(hint)) is not None:
        return _shape_of(inner) | None if inner is not Any else Any
    if origin is tuple:
        return list[_shape_of(typing.get_args(hint)[0])]  # type: ignore[misc]  # made at run time
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, _shape_of(typing.get_args(hint)[1])]  # type: ignore[misc]
    return _shape(cast("Any", hint)) if dataclasses.is_dataclass(hint) else hint


# ---------------------------------------------------------------------- opaque parts

Check = Callable[[Any], bool]


@functools.cache
def _opaque_check(given: Any) -> Check | None:
    """Whether the `Any` parts of a value may be kept as they are; None: it has no such part."""
    hint: Any = bare(given)
    if hint is Any:
        return lambda value: _is_plain(value, 0)
    if dataclasses.is_dataclass(hint):
        return _fields_check(cast("Any", hint))
    if (inner := of_optional(hint)) is not None:
        return _some(_opaque_check(inner), lambda one: lambda v: v is None or one(v))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _some(_opaque_check(arguments[0]), lambda one: lambda v: all(map(one, v)))
    if origin is not None and issubclass(origin, Mapping):
        return _some(_opaque_check(arguments[1]), lambda one: lambda v: all(map(one, v.values())))
    return None


def _some(inner: Check | None, outer: Callable[[Check], Check]) -> Check | None:
    return None if inner is None else outer(inner)


def _fields_check(cls: Any) -> Check | None:
    hints = typing.get_type_hints(cls)
    found = ((field.name, _opaque_check(hints[field.name])) for field in dataclasses.fields(cls))
    checks = tuple((name, check) for name, check in found if check is not None)
    if not checks:
        return None
    return lambda value: all(check(getattr(value, name)) for name, check in checks)


def _is_plain(value: Any, depth: int) -> bool:
    """Made of JSON's own types, finite, not too deep: what the walk would leave as it is."""
    if depth > DEPTH_MAX:
        return False
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_plain(v, depth + 1) for key, v in value.items())
    if kind is list:
        return all(_is_plain(v, depth + 1) for v in value)
    return kind in _SCALARS or (kind is float and math.isfinite(value))


_SCALARS = frozenset({str, int, bool, type(None)})

"""Strict decoding of untrusted mappings into frozen dataclasses.

`decode(Cls, value)` accepts exactly the fields of the class: an unknown key is an error with a
did-you-mean, a missing key an error, a wrong type an error; every message names the path
(`hosts[2].devices[0].memory_mib`). Numbers must be finite and bools are never numbers.
`encode` is the inverse. Supported field types: str, int, float, bool, enums, NewTypes of those,
`X | None`, `tuple[X, ...]`, `Mapping[str, X]`, nested dataclasses, and `Any` for opaque JSON.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from corekit.errors import AppError, invalid

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]

#: Deeper input is refused before it is walked; our own messages nest less than ten levels.
DEPTH_MAX = 32


def decode(cls: type[T], value: Any, path: str = "") -> T:
    """Build a `cls` from plain JSON-like data. Raises AppError(INVALID) naming the path."""
    return cast("T", _dataclass_decoder(cast("Any", cls))(value, path or cls.__name__))


def encode(value: Any) -> Any:
    """Plain JSON-like data from a value; None fields and empty defaults are kept."""
    cls = type(value)
    return (_ENCODERS.get(cls) or _encoder(cls))(value)


#: By type, made at its first value: a daemon encodes the same few types all day.
_ENCODERS: dict[type[Any], Callable[[Any], Any]] = {}


def _encoder(cls: type[Any]) -> Callable[[Any], Any]:
    run = _ENCODERS[cls] = _make_encoder(cls)
    return run


def _make_encoder(cls: type[Any]) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(cls):
        return _dataclass_encoder(cls)
    if issubclass(cls, enum.Enum):
        return lambda value: value.value
    if issubclass(cls, Mapping):
        return lambda value: {key: encode(item) for key, item in value.items()}
    if issubclass(cls, (tuple, list)):
        return lambda value: [encode(item) for item in value]
    return lambda value: value


def _dataclass_encoder(cls: type[Any]) -> Callable[[Any], Any]:
    """All fields by one C call; only those that may hold more than a scalar are walked."""
    hints = typing.get_type_hints(cls)
    names = tuple(field.name for field in dataclasses.fields(cls))
    walked = tuple(name for name in names if not _is_scalar(hints[name]))
    if len(names) < 2:  # attrgetter of one name gives no tuple
        return lambda value: {name: encode(getattr(value, name)) for name in names}
    values = operator.attrgetter(*names)

    def run(value: Any) -> Any:
        encoded = dict(zip(names, values(value), strict=True))
        for name in walked:
            encoded[name] = encode(encoded[name])
        return encoded

    return run


def _is_scalar(hint: Any) -> bool:
    hint = getattr(hint, "__supertype__", hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(_is_scalar(one) for one in typing.get_args(hint))
    return hint in (str, int, float, bool, type(None))


@functools.cache
def _dataclass_decoder(cls: Any) -> Decoder:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    required = tuple(name for name, field in fields.items() if _required(field))
    decoders: dict[str, Decoder] = {}

    def run(value: Any, path: str) -> Any:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise invalid(f"{path}: expected an object, got {_shown(value)}")
        if not decoders:  # built on first use, so that a class may refer to itself
            decoders.update({name: _decoder(hints[name]) for name in fields})
        arguments = {}
        for key, item in value.items():
            if key not in decoders:
                raise invalid(f"{path}: unknown key {_shown(key)}{_did_you_mean(key, decoders)}")
            arguments[key] = decoders[key](item, f"{path}.{key}")
        for name in required:
            if name not in arguments:
                raise invalid(f"{path}: missing key {name!r}")
        try:
            return cls(**arguments)
        except AppError as error:
            raise invalid(f"{path}: {error.message}") from error

    return run


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _decoder(hint: Any) -> Decoder:
    hint = getattr(hint, "__supertype__", hint)  # a NewType decodes as what it wraps
    origin = typing.get_origin(hint)
    if hint is Any:
        return lambda value, path: _opaque(value, path, 0)
    if origin in (typing.Union, types.UnionType):
        return _optional(hint)
    if origin is tuple:
        return _tuple_of(_decoder(typing.get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_of(_decoder(typing.get_args(hint)[1]))
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(cast("Any", hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    return _scalar(hint)


def _optional(hint: Any) -> Decoder:
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    assert len(inner) == 1, f"only X | None unions can be decoded, not {hint}"
    one = _decoder(inner[0])
    return lambda value, path: None if value is None else one(value, path)


def _tuple_of(item: Decoder) -> Decoder:
    def run(value: Any, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise invalid(f"{path}: expected a list, got {_shown(value)}")
        return tuple(item(v, f"{path}[{i}]") for i, v in enumerate(value))

    return run


def _mapping_of(item: Decoder) -> Decoder:
    def run(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            raise invalid(f"{path}: expected an object, got {_shown(value)}")
        return {k: item(v, f"{path}.{k}") for k, v in value.items()}

    return run


def _enum(cls: type[enum.Enum]) -> Decoder:
    names = [str(member.value) for member in cls]

    def run(value: Any, path: str) -> Any:
        try:
            return cls(value)
        except ValueError:
            hint = _did_you_mean(value, names)
            raise invalid(
                f"{path}: {_shown(value)} is not one of {', '.join(names)}{hint}"
            ) from None

    return run


def _scalar(hint: type[Any]) -> Decoder:
    def run(value: Any, path: str) -> Any:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise invalid(f"{path}: expected {_TYPE_WORDS.get(hint, hint)}, got {_shown(value)}")
        return value

    return run


_TYPE_WORDS: dict[Any, str] = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false",
}  # fmt: skip


def _opaque(value: Any, path: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise invalid(f"{path}: nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return {str(k): _opaque(v, f"{path}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_opaque(v, path, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(f"{path}: a number must be finite")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _did_you_mean(word: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""

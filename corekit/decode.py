"""Strict decoding of untrusted JSON into values, and encoding back.

`decode(Cls, value)` and `decode_json(Cls, data)` accept exactly the fields of a `Value`: an unknown
key is an error with a did-you-mean, a missing key an error, a wrong type an error; every message
names the path (`hosts[2].devices[0].memory_mib`). `decode_known` and `decode_json_known` read what
a newer version may have written: they skip unknown keys and return their paths. Numbers must be
finite and bools are never numbers. `encode` and `encode_json` are the inverse.

The reader is msgspec, in C. What it refuses is looked at again here, part by part, only to say what
is wrong and where.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import math
import threading
import types
import typing
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import msgspec

from corekit.errors import AppError, invalid
from corekit.suggest import did_you_mean
from corekit.values import check_of

T = TypeVar("T")
Buffer = bytes | msgspec.Raw

#: Levels of an opaque part of a message. Ours nest less than ten levels themselves, and nothing is
#: read that nests twice as deep as this: it could not be written at every depth of calls.
DEPTH_MAX = 32

#: Every refusal of msgspec; AppError comes from a class's own checks.
_REFUSALS = (msgspec.MsgspecError, AppError, RecursionError, UnicodeError)


def decode(cls: type[T], value: object, path: str = "") -> T:
    """Build a `cls` from plain JSON-like data. Raises AppError(INVALID) naming the path."""
    kind: Any = cls
    _reader(kind)
    if _is_json(value, 2 * DEPTH_MAX):
        with contextlib.suppress(*_REFUSALS):
            return msgspec.convert(value, cls)
    path = path or cls.__name__
    if is_deeper(value, 2 * DEPTH_MAX):
        raise invalid(f"{path}: nested deeper than {2 * DEPTH_MAX} levels")
    _refuse_not_finite(value, path)
    passed = _passed_over.get()
    if passed is not None:
        value = _without_unknown(cls, value, path, passed)
    try:
        return msgspec.convert(value, cls)
    except _REFUSALS as error:
        raise _refusal(cls, value, path, error) from None


def decode_json(cls: type[T], data: Buffer, path: str = "") -> T:
    """Build a `cls` from JSON text. Raises AppError(INVALID) naming the path."""
    found = read_json(cls, data)
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
    with passing_over() as passed:
        return decode_json(cls, data, path), tuple(passed)


def read_json(cls: type[T], data: Buffer) -> T | None:
    """A `cls` from JSON text; None for text that `decode` of its plain data explains."""
    kind: Any = cls
    try:
        read: T = _reader(kind)(data)
    except _REFUSALS:
        return None
    return read


#: msgspec 0.22 ends the process when two threads use a class for the first time: one of them sees
#: the other's unfinished description of it.
_FIRST_USE = threading.RLock()


@functools.cache
def _reader(cls: Any) -> Callable[[Buffer], Any]:
    with _FIRST_USE:
        return msgspec.json.Decoder(cls).decode


def encode(value: object) -> Any:
    """Plain JSON-like data from a value; None fields and empty defaults are kept."""
    return _FROM_JSON(_TO_JSON(value))  # `to_builtins` would leave tuples


def encode_json(value: object) -> bytes:
    """JSON text from a value, without spaces."""
    return _TO_JSON(value)


_TO_JSON = msgspec.json.Encoder().encode
_FROM_JSON = msgspec.json.Decoder().decode


# ---------------------------------------------------------------------- plain data


class LoneSurrogate(ValueError):
    """Half a character, which could not be written anywhere. The rest of the text is JSON."""

    def __init__(self, value: Any) -> None:
        super().__init__("a string has half of a surrogate pair (such as \\ud800 alone)")
        self.value = value  #: as it was parsed; not to be written or sent


def parse_json(data: bytes) -> Any:
    """Plain data from JSON text. Raises ValueError for anything but one finite UTF-8 value."""
    try:
        value = _PLAIN.decode(data.decode())
        if b"\\ud" in data or b"\\uD" in data:
            _TO_UNICODE.encode(value).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeEncodeError:
        raise LoneSurrogate(value) from None
    return value


def _not_finite(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


_PLAIN = json.JSONDecoder(parse_constant=_not_finite)
_TO_UNICODE = json.JSONEncoder(ensure_ascii=False)


def _is_json(value: object, levels: int) -> bool:
    """Whether data is what a JSON parser gives: finite, and not deeper. Few are anything else."""
    kind = type(value)
    if kind is dict:
        items: Iterable[object] = typing.cast("dict[str, object]", value).values()
    elif kind is list:
        items = typing.cast("list[object]", value)
    else:
        return kind in _JSON_SCALARS or (
            kind is float and math.isfinite(typing.cast("float", value))
        )
    return levels > 0 and all(_is_json(item, levels - 1) for item in items)


_JSON_SCALARS = frozenset({str, int, bool, type(None)})


def is_deeper(value: object, levels: int) -> bool:
    """True when plain data is nested deeper than this."""
    if not isinstance(value, (Mapping, list, tuple)):
        return False
    items = value.values() if isinstance(value, Mapping) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in items)


def _refuse_not_finite(value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(f"{path}: expected a number, got {value}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_not_finite(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _refuse_not_finite(item, f"{path}[{i}]")


# ---------------------------------------------------------------------- unknown keys

#: The list that collects keys unknown to a class; None: unknown keys are refused.
_passed_over: ContextVar[list[str] | None] = ContextVar("passed_over", default=None)


@contextlib.contextmanager
def passing_over() -> Iterator[list[str]]:
    """In the block unknown keys are not an error: their paths are collected in the list."""
    passed: list[str] = []
    token = _passed_over.set(passed)
    try:
        yield passed
    finally:
        _passed_over.reset(token)


def only_known(known: Container[str], value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The known keys of a mapping; in a block of `passing_over` the others are collected there.

    Outside such a block they stay in the mapping, for the caller to refuse.
    """
    passed = _passed_over.get()
    if passed is None:
        return dict(value)
    passed += [f"{path}.{key}" for key in value if key not in known]
    return {key: item for key, item in value.items() if key in known}


def _without_unknown(hint: Any, value: Any, path: str, passed: list[str]) -> Any:
    parts = _parts(hint, value)
    if parts is None:
        return value
    kept = {
        part.key: _without_unknown(part.hint, part.value, path + part.place, passed)
        for part in parts
    }
    if not isinstance(value, Mapping):
        return list(kept.values())
    passed += [f"{path}.{key}" for key in value if key not in kept]
    return kept


# ---------------------------------------------------------------------- refusals


class _Part(NamedTuple):
    key: Any
    place: str  #: after the path of the whole
    hint: Any
    value: Any


def _refusal(hint: Any, value: Any, path: str, error: BaseException) -> AppError:
    """The refusal of a value in our words: of its first part that is refused, or of itself."""
    for part in _parts(hint, value) or ():
        try:
            msgspec.convert(part.value, part.hint)
        except _REFUSALS as of_part:
            return _refusal(part.hint, part.value, path + part.place, of_part)
    if isinstance(error, AppError):
        return invalid(f"{path}: {error.message}")
    if ", got " not in str(error) and (problem := _limit_problem(hint, value)) is not None:
        parent, _, name = path.rpartition(".")
        return invalid(f"{parent}: {name} {problem}")
    return invalid(f"{path}: {_mismatch(_bare(hint), value)}")


def _limit_problem(hint: Any, value: Any) -> str | None:
    check = check_of(hint)
    return None if check is None else check(value)


def _mismatch(kind: Any, value: Any) -> str:
    """The problem with a value that is not of this type."""
    fields = _fields(kind)
    if fields is not None and isinstance(value, Mapping):
        for key in value:
            if key not in fields:
                return f"unknown key {_shown(key)}{did_you_mean(str(key), fields)}"
        missing = next(f.name for f in msgspec.structs.fields(kind) if f.name not in value)
        return f"missing key {missing!r}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        names = [str(member.value) for member in kind]
        hint = did_you_mean(str(value), names)
        return f"{_shown(value)} is not one of {', '.join(names)}{hint}"
    return f"expected {_words(kind)}, got {_shown(value)}"


def _words(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in _UNIONS:
        numbers = {int, float}.issuperset(map(_bare, typing.get_args(kind)))
        return "a number" if numbers else "a string, a number or null"
    if origin is tuple:
        return "a list"
    return _WORDS.get(kind, "an object")


_WORDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------- types

_UNIONS = (typing.Union, types.UnionType)


def _bare(hint: Any) -> Any:
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = hint.__origin__
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif typing.get_origin(hint) in _UNIONS:
            inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
            if len(inner) > 1:
                return hint
            hint = inner[0]
        else:
            return hint


@functools.cache
def _fields(kind: Any) -> Mapping[str, Any] | None:
    if not isinstance(kind, msgspec.StructMeta):
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _parts(hint: Any, value: Any) -> list[_Part] | None:
    """The parts of a value; None when it has none, or is not of the type."""
    kind = _bare(hint)
    fields, origin = _fields(kind), typing.get_origin(kind)
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = typing.get_args(kind)[0]
        return [_Part(i, f"[{i}]", inner, item) for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return None
    if fields is not None:
        return [_Part(k, f".{k}", fields[k], item) for k, item in value.items() if k in fields]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = typing.get_args(kind)[1]
        return [_Part(k, f".{k}", inner, item) for k, item in value.items()]
    return None

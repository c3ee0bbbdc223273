"""The slow reader: walks plain data by the type hints and reports each problem with its place.

`corekit.decode` uses it where its fast reader refuses or does not apply; both accept the same input
and give equal values (tests/unit/corekit/test_decode.py holds them to it).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from corekit.errors import AppError, invalid
from corekit.suggest import did_you_mean
from corekit.values import Value, checked

#: A value and its path in; the decoded value out. Raises AppError(INVALID) naming the path.
Walker = Callable[[Any, str], Any]

#: Deeper opaque data is refused before it is walked; our own messages nest less than ten levels.
DEPTH_MAX = 32

#: Both spellings of a union.
UNIONS = (typing.Union, types.UnionType)


class LoneSurrogate(ValueError):
    """Half a character, which could not be written anywhere. The rest of the text is JSON."""

    def __init__(self, value: Any) -> None:
        super().__init__("a string has half of a surrogate pair (such as \\ud800 alone)")
        self.value = value  #: as it was parsed; not to be written or sent


def parse_json(data: bytes) -> Any:
    """Plain data from JSON text. Raises ValueError for anything but one finite UTF-8 value."""
    try:
        value = _FROM_JSON.decode(data.decode())
        if b"\\ud" in data or b"\\uD" in data:
            _TO_UNICODE.encode(value).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeEncodeError:
        raise LoneSurrogate(value) from None
    return value


def _not_finite(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


_FROM_JSON = json.JSONDecoder(parse_constant=_not_finite)
_TO_UNICODE = json.JSONEncoder(ensure_ascii=False)


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


@functools.cache
def walker(cls: Any) -> Walker:
    """The walker of one `Value` or dataclass, which must not contain itself."""
    hints = typing.get_type_hints(cls)
    required = required_fields(cls)
    walkers = {name: _walker(hints[name]) for name in field_names(cls)}

    def run(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise invalid(f"{path}: expected an object, got {_shown(value)}")
        arguments = {}
        for key, item in value.items():
            if key not in walkers:
                passed = _passed_over.get()
                if passed is None:
                    guess = did_you_mean(str(key), walkers)
                    raise invalid(f"{path}: unknown key {_shown(key)}{guess}")
                passed.append(f"{path}.{key}")
                continue
            arguments[key] = walkers[key](item, f"{path}.{key}")
        for name in required:
            if name not in arguments:
                raise invalid(f"{path}: missing key {name!r}")
        try:
            made = cls(**arguments)
            if isinstance(made, Value):
                checked(made)
            return made
        except AppError as error:
            raise invalid(f"{path}: {error.message}") from error

    return run


def has_fields(hint: Any) -> bool:
    """True for a class of named fields: a `Value`, another struct, or a dataclass."""
    return isinstance(hint, msgspec.StructMeta) or dataclasses.is_dataclass(hint)


def field_names(cls: Any) -> tuple[str, ...]:
    """The fields that a value of the class is made of."""
    if isinstance(cls, msgspec.StructMeta):
        return cls.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def required_fields(cls: Any) -> tuple[str, ...]:
    """The fields that have no default."""
    if issubclass(cls, msgspec.Struct):
        return tuple(field.name for field in msgspec.structs.fields(cls) if field.required)
    none = dataclasses.MISSING
    found = (field for field in dataclasses.fields(cls) if field.init)
    return tuple(f.name for f in found if f.default is none and f.default_factory is none)


def bare(hint: Any) -> Any:
    """The type that a NewType wraps; any other hint is unchanged."""
    return getattr(hint, "__supertype__", hint)


def of_optional(hint: Any) -> Any:
    """X of `X | None`; None for any other hint."""
    if typing.get_origin(hint) not in UNIONS:
        return None
    inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
    return inner[0] if len(inner) == 1 else None


def _walker(hint: Any) -> Walker:
    hint = bare(hint)
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return lambda value, path: _opaque(value, path, 0)
    if (inner := of_optional(hint)) is not None:
        one = _walker(inner)
        return lambda value, path: None if value is None else one(value, path)
    if origin in UNIONS:
        return _scalars(frozenset(typing.get_args(hint)))
    if origin is tuple:
        return _tuple_of(_walker(typing.get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_of(_walker(typing.get_args(hint)[1]))
    if has_fields(hint):
        return walker(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    return _scalar(hint)


def _tuple_of(item: Walker) -> Walker:
    def run(value: Any, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise invalid(f"{path}: expected a list, got {_shown(value)}")
        return tuple(item(v, f"{path}[{i}]") for i, v in enumerate(value))

    return run


def _mapping_of(item: Walker) -> Walker:
    def run(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
            raise invalid(f"{path}: expected an object, got {_shown(value)}")
        return {k: item(v, f"{path}.{k}") for k, v in value.items()}

    return run


def _enum(cls: type[enum.Enum]) -> Walker:
    names = [str(member.value) for member in cls]

    def run(value: Any, path: str) -> Any:
        try:
            return cls(value)
        except ValueError:
            hint = did_you_mean(str(value), names)
            raise invalid(
                f"{path}: {_shown(value)} is not one of {', '.join(names)}{hint}"
            ) from None

    return run


def _scalars(kinds: frozenset[Any]) -> Walker:
    """The walker of a union of several scalar types."""
    wanted = "a number" if kinds == {int, float} else "a string, a number or null"

    def run(value: Any, path: str) -> Any:
        if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
            raise invalid(f"{path}: expected {wanted}, got {_shown(value)}")
        return value

    return run


def _scalar(hint: type[Any]) -> Walker:
    def run(value: Any, path: str) -> Any:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            value = _as_float(value)
        fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise invalid(f"{path}: expected {_TYPE_WORDS.get(hint, hint)}, got {_shown(value)}")
        return value

    return run


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


_TYPE_WORDS: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}


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
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 60 else text[:57] + "..."

"""Frozen values that are cheap to make: `dataclass`, `field` and `replace` for hot paths.

The three words of `dataclasses`, spelled the same. A frozen dataclass sets its fields one by one
through `object.__setattr__`: 3 µs for nine fields, and a scheduler makes thirty values per event.
Here `@dataclass(frozen=True, slots=True, kw_only=True)` gives a `msgspec.Struct` instead, made in C
in a tenth of that and encoded and decoded as fast. Everything that works on dataclasses still does
(`dataclasses.fields`, `replace`, `asdict`, `is_dataclass`, `__post_init__`, `match`, equality,
hashing), since the class carries what those look for. Every other class stays a dataclass.

Use it for values that are made per event or per message; elsewhere the standard one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import msgspec

__all__ = ["dataclass", "field", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """`dataclasses.dataclass`, and a struct for what is frozen and takes fields by name."""
        frozen_by_name = options.get("frozen") and options.get("kw_only")
        return _as_struct if frozen_by_name else dataclasses.dataclass(**options)

    def replace(value: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace`, in C for a struct."""
        if type(type(value)) is _Values:
            return _replaced(value, **changes)
        return dataclasses.replace(value, **changes)


_replaced = msgspec.structs.replace


class _Values(msgspec.StructMeta):
    """Makes structs of what is written as frozen dataclasses."""

    __dataclass_fields__: dict[str, dataclasses.Field[Any]]

    def __new__(cls, name: str, bases: tuple[type, ...], words: dict[str, Any]) -> _Values:
        own = _fields(name, words)
        structs = {key: _struct_field(words[key]) for key in own if key in words}
        made = super().__new__(
            cls,
            name,
            bases,
            {**words, **structs},
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
        )
        fields: dict[str, dataclasses.Field[Any]] = {}
        for base in reversed(made.__mro__[1:]):
            fields |= getattr(base, "__dataclass_fields__", {})
        made.__dataclass_fields__ = fields | own
        return made


def _as_struct(cls: type[Any]) -> type[Any]:
    if isinstance(cls, _Values):
        return cls  # a subclass of a struct was born as one
    words = {
        key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")
    }
    bases = (msgspec.Struct, *(base for base in cls.__bases__ if base is not object))
    return _Values(cls.__name__, bases, words)


def _fields(name: str, words: Mapping[str, Any]) -> dict[str, dataclasses.Field[Any]]:
    """What `dataclasses` would say of the fields that are written in a class."""
    hints = words.get("__annotations__", {})
    given = {key: words[key] for key in hints if key in words}
    told = {"__annotations__": dict(hints), "__module__": words["__module__"], **given}
    plain: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)
    return {field.name: field for field in dataclasses.fields(plain(type(name, (), told)))}


def _struct_field(default: Any) -> Any:
    if not isinstance(default, dataclasses.Field):
        return default
    if default.default_factory is not dataclasses.MISSING:
        return msgspec.field(default_factory=default.default_factory)
    return default.default

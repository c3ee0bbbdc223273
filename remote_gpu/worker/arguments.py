"""The signature of an operation, declared once for checks, callers and the manual.

Every error names the argument and its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from remote_gpu.wire.errors import invalid
from remote_gpu.wire.frames import Meta

#: The arguments of a call: JSON by name, checked by `Signature.read` or by the operation.
Arguments: TypeAlias = Mapping[str, Any]
#: Argument of every operation: the implementation to run, by its first word.
IMPLEMENTATION = "implementation"
_TEXT_CHARS_MAX = 1000
#: In place of a default: the caller must pass the argument.
REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """The fields of all arguments. A class adds the rule, in words, and whether a value fits it."""

    name: str
    meaning: str  #: for people, with the unit if there is one
    default: object = REQUIRED  #: the value of an absent argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer(_Declared):
    least: int
    most: int

    @property
    def rule(self) -> str:
        return f"an integer of {self.least}…{self.most}"

    def fits(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(_Declared):
    """A finite number."""

    least: float
    most: float

    @property
    def rule(self) -> str:
        return f"a number of {self.least:g}…{self.most:g}"

    def fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.least <= value <= self.most  # False for NaN; exact for large integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(_Declared):
    """A string, free or one of a few."""

    choices: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"a string of at most {_TEXT_CHARS_MAX} characters"

    def fits(self, value: object) -> bool:
        if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX:
            return False
        return not self.choices or value in self.choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(_Declared):
    default: object = False
    rule = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure(_Declared):
    """JSON that the operation itself checks."""

    rule: str

    def fits(self, value: object) -> bool:
        del value
        return True


Argument: TypeAlias = Integer | Number | Text | Flag | Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or result buffer."""

    name: str
    dtype: str = "bytes"  #: `float32`; `bytes` for files
    shape: str = ""  #: `m×k` in the operation's arguments; "" for files
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The whole signature. `extra`: undeclared arguments are accepted."""

    arguments: tuple[Argument, ...] = ()
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    values: str = ""  #: the JSON values of a result, in words
    extra: bool = False

    def read(self, args: Arguments) -> Meta:
        """The arguments with their defaults. Raises OpFailed(EINVAL) for one that is unknown,
        missing or not valid."""
        found, given = {}, 1 if IMPLEMENTATION in args else 0
        for argument in self.arguments:
            name = argument.name
            if name in args:
                value, given = args[name], given + 1
                right = argument.fits(value)
            else:
                value = argument.default
                right = value is not REQUIRED
            if not right:
                raise invalid(f"{name!r} must be {argument.rule}")
            found[name] = value
        if given != len(args) and not self.extra:
            self._refuse_unknown(args)
        return found

    def _refuse_unknown(self, args: Arguments) -> None:
        known = [argument.name for argument in self.arguments]
        for name in args:
            if name not in known and name != IMPLEMENTATION:
                taken = ", ".join(known) or "no arguments"
                raise invalid(f"unknown argument {name!r}; the operation takes {taken}")

    def to_meta(self) -> Meta:
        """For `operations.describe`."""
        return {
            "arguments": [_described(argument) for argument in self.arguments],
            "inputs": list(map(asdict, self.inputs)),
            "outputs": list(map(asdict, self.outputs)),
            "values": self.values,
        }


def _described(argument: Argument) -> Meta:
    meta = {"name": argument.name, "rule": argument.rule, "meaning": argument.meaning}
    return meta if argument.default is REQUIRED else meta | {"default": argument.default}

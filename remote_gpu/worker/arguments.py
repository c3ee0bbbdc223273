"""The signature of an operation, declared once for checks, callers and the manual.

Every error names the argument and its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import Meta

#: The arguments of a call: JSON by name, checked by `Signature.read` or by the operation.
Arguments: TypeAlias = Mapping[str, Any]
#: Argument of every operation: the implementation to run, by its first word.
IMPLEMENTATION = "implementation"
_TEXT_CHARS_MAX = 1000
#: In place of a default: the caller must pass the argument.
REQUIRED = object()


class Argument(Protocol):
    """One argument of an operation."""

    @property
    def name(self) -> str: ...

    @property
    def meaning(self) -> str:
        """For people, with the unit if there is one."""
        ...

    @property
    def default(self) -> object:
        """The value of an absent argument; REQUIRED if there is none."""
        ...

    @property
    def rule(self) -> str:
        """The valid values: `an integer of 1…10`."""
        ...

    def fits(self, value: object) -> bool:
        """Whether a value satisfies the rule."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """An integer."""

    name: str
    meaning: str
    least: int
    most: int
    default: object = REQUIRED

    @property
    def rule(self) -> str:
        return f"an integer of {self.least}…{self.most}"

    def fits(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A finite number."""

    name: str
    meaning: str
    least: float
    most: float
    default: object = REQUIRED

    @property
    def rule(self) -> str:
        return f"a number of {self.least:g}…{self.most:g}"

    def fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.least <= value <= self.most  # False for NaN; exact for large integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string, free or one of a few."""

    name: str
    meaning: str
    default: object = REQUIRED
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
class Flag:
    """True or false."""

    name: str
    meaning: str
    default: object = False
    rule = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """JSON that the operation itself checks."""

    name: str
    meaning: str
    rule: str
    default: object = REQUIRED

    def fits(self, value: object) -> bool:
        del value
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or result buffer."""

    name: str
    dtype: str  #: `float32`; `bytes` for files
    shape: str  #: `m×k` in the operation's arguments; "" for files
    meaning: str = ""

    def to_meta(self) -> dict[str, str]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": self.shape,
            "meaning": self.meaning,
        }


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
                raise OpFailed(OpCode.EINVAL, f"{name!r} must be {argument.rule}")
            found[name] = value
        if given != len(args) and not self.extra:
            self._refuse_unknown(args)
        return found

    def _refuse_unknown(self, args: Arguments) -> None:
        known = [argument.name for argument in self.arguments]
        for name in args:
            if name not in known and name != IMPLEMENTATION:
                taken = ", ".join(known) or "no arguments"
                raise OpFailed(
                    OpCode.EINVAL, f"unknown argument {name!r}; the operation takes {taken}"
                )

    def to_meta(self) -> Meta:
        """For `operations.describe`."""
        return {
            "arguments": [_described(argument) for argument in self.arguments],
            "inputs": [port.to_meta() for port in self.inputs],
            "outputs": [port.to_meta() for port in self.outputs],
            "values": self.values,
        }


def _described(argument: Argument) -> Meta:
    meta = {"name": argument.name, "rule": argument.rule, "meaning": argument.meaning}
    return meta if argument.default is REQUIRED else meta | {"default": argument.default}

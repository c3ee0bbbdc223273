"""The readers of single values: text, numbers, words of a closed set, sizes, times, versions."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from corekit.errors import AppError, invalid
from corekit.suggest import did_you_mean
from corekit.units import (
    MemorySize,
    format_duration,
    parse_duration_s,
    parse_memory_mib,
    parse_percent,
)
from fdl.schema.schema import KindReader, Reading, Schema
from fdl.text.nodes import Node, Scalar, kind_of
from gpu_scheduler.constraints import is_version, parse_constraint

#: No service here accepts a longer name, path or description.
TEXT_CHARACTERS_MAX = 4096
_WHOLE = re.compile(r"[-+]?[0-9]{1,40}")
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9]+)")
#: Categories of invisible characters: control, format, separators of lines, not assigned.
_HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cn", "Co")
#: Invisible characters that several scripts need: the joiner and the non-joiner.
_JOINERS = "\u200c\u200d"
#: YAML 1.1's words, which SCAR's own loader accepts too.
_FLAGS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}


def _scalar(node: Node, path: str, reading: Reading, wanted: str) -> Scalar:
    if not isinstance(node, Scalar) or node.is_null:
        raise reading.error(node, path, f"expected {wanted}, got {kind_of(node)}")
    return node


def _number(node: Node, path: str, reading: Reading, wanted: str) -> str:
    """The text of a number, which all of YAML's versions read as the same one.

    YAML 1.1, SCAR's own loader among its readers, takes a leading zero for octal.
    """
    scalar = _scalar(node, path, reading, wanted)
    match = _LEADING_ZERO.fullmatch(scalar.text)
    if not scalar.plain or match is None:
        return scalar.text
    sign, digits = match.groups()
    octal = int(digits, 8) if len(digits) < 20 and not set(digits) & set("89") else None
    message = f"{kind_of(node)} has a leading zero"
    if octal is None or octal == int(digits[:20]):
        raise reading.error(node, path, f"{message}: write {sign}{digits[:20]}")
    message += f", and YAML 1.1 reads it as octal: write {sign}{digits} or {sign}{octal}"
    raise reading.error(node, path, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string; a plain number or word is taken as it was written."""

    pattern: str = r"(?s).*"
    what: str = "a string"  #: the meaning of the pattern, for people
    short: str = ""  #: the same in a word or two
    empty: bool = False  #: whether "" (and nothing at all) is allowed
    lines: bool = False  #: whether it may have several lines
    free: bool = False  #: any character but NUL
    listed: str = ""  #: definition of the JSON Schema that lists known values; others are valid too

    def read(self, node: Node, path: str, reading: Reading) -> str:
        if self.empty and isinstance(node, Scalar) and node.is_null:
            return ""
        if not isinstance(node, Scalar) and node.flow:
            message = f"got {kind_of(node)}; a text that begins with [ or {{ needs quotes"
            raise reading.error(node, path, f"expected {self.what}, {message}")
        text = _scalar(node, path, reading, self.what).text
        if len(text) > TEXT_CHARACTERS_MAX:
            raise reading.error(node, path, f"longer than {TEXT_CHARACTERS_MAX} characters")
        if (not text and not self.empty) or not re.fullmatch(self.pattern, text, re.ASCII):
            raise reading.error(node, path, f"{kind_of(node)} is not {self.what}")
        if (hidden := self._hidden(text)) is not None:
            what = f"the invisible character U+{ord(hidden):04X}; leave it out"
            raise reading.error(node, path, f"{kind_of(node)} has {what}")
        return text

    def _hidden(self, text: str) -> str | None:
        """The first invisible character, which could make a text look like another one."""
        if self.free:
            return "\0" if "\0" in text else None
        allowed = "\n\t" + _JOINERS if self.lines else _JOINERS
        return next(
            (c for c in text if unicodedata.category(c) in _HIDDEN and c not in allowed), None
        )

    def describe(self) -> str:
        return self.short or self.what

    def schema(self) -> Schema:
        types = ["string", "number", "boolean", *(["null"] if self.empty else [])]
        if self.pattern.startswith("(?s)"):
            return {"type": types}
        known = {"$ref": f"#/$defs/{self.listed}"} if self.listed else {}
        return {"type": types, "pattern": f"^(?:{self.pattern})$", **known}  # of strings only


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """An integer within bounds."""

    low: int
    high: int
    unit: str = ""
    only: tuple[int, ...] = ()  #: no other value within the bounds; empty = all

    def read(self, node: Node, path: str, reading: Reading) -> int:
        text = _number(node, path, reading, "an integer")
        if isinstance(node, Scalar) and not node.plain:
            raise reading.error(node, path, "expected an integer; remove the quotes")
        if not _WHOLE.fullmatch(text):
            raise reading.error(node, path, f"expected an integer, got {kind_of(node)}")
        value = int(text)
        if not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            raise reading.error(node, path, f"{value} must lie in {self.low}…{self.high}{unit}")
        if self.only and value not in self.only:
            near = min(self.only, key=lambda known: abs(known - value))
            allowed = ", ".join(map(str, self.only))
            message = f"{value} is not one of {allowed}; the nearest is {near}"
            raise reading.error(node, path, message)
        return value

    def describe(self) -> str:
        return f"{self.low}…{self.high}{' ' + self.unit if self.unit else ''}"

    def schema(self) -> Schema:
        if self.only:
            return {"enum": list(self.only)}
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number within bounds."""

    low: float = 0.0
    high: float = 1e9
    unit: str = ""

    def read(self, node: Node, path: str, reading: Reading) -> float:
        text = _number(node, path, reading, "a number")
        if isinstance(node, Scalar) and not node.plain:
            raise reading.error(node, path, "expected a number; remove the quotes")
        try:
            value = float(_ascii(text))
        except (AppError, ValueError):
            raise reading.error(node, path, f"expected a number, got {kind_of(node)}") from None
        if not self.low <= value <= self.high:  # NaN is not within either
            unit = f" {self.unit}" if self.unit else ""
            message = f"{text} must lie in {self.low:g}…{self.high:g}{unit}"
            raise reading.error(node, path, message)
        return value

    def describe(self) -> str:
        return f"{self.low:g}…{self.high:g}{' ' + self.unit if self.unit else ''}"

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false (or YAML 1.1's yes, no, on, off)."""

    def read(self, node: Node, path: str, reading: Reading) -> bool:
        scalar = _scalar(node, path, reading, "true or false")
        if not scalar.plain or scalar.text.lower() not in _FLAGS:
            raise reading.error(node, path, f"expected true or false, got {kind_of(node)}")
        return _FLAGS[scalar.text.lower()]

    def describe(self) -> str:
        return "true, false"

    def schema(self) -> Schema:
        words = "|".join("".join(f"[{c}{c.upper()}]" for c in word) for word in _FLAGS)
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^({words})$"}]}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    options: tuple[str, ...]

    def read(self, node: Node, path: str, reading: Reading) -> str:
        text = _scalar(node, path, reading, "one of " + ", ".join(self.options)).text
        if text not in self.options:
            hint = did_you_mean(text, [str(word) for word in self.options])
            message = f"{kind_of(node)} is not one of {', '.join(self.options)}{hint}"
            raise reading.error(node, path, message)
        return self.options[self.options.index(text)]  # a member, where they are those of an enum

    def describe(self) -> str:
        return ", ".join(f"`{word}`" for word in self.options)

    def schema(self) -> Schema:
        return {"enum": [str(word) for word in self.options]}


def _ascii(text: str) -> str:
    """Raises INVALID for digits of other scripts, which Python's numbers would take."""
    if not text.isascii():
        raise invalid(f"{text!r} is not a number")
    return text


_PERCENT_PATTERN = r"^\s*\d{1,3}(\.\d)?\s*%?\s*$"
#: A number, or a number with a unit.
_QUANTITY_SCHEMA: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[A-Za-z]*\s*$"},
    ]
}


@dataclass(frozen=True, slots=True)
class Memory(KindReader):
    """MiB as a number, or `4GiB`."""

    shown = "MiB, or `4GiB`"
    accepted = _QUANTITY_SCHEMA

    def read(self, node: Node, path: str, reading: Reading) -> int:
        text = _number(node, path, reading, "a memory size")
        try:
            value = parse_memory_mib(_ascii(text))
        except (AppError, OverflowError):
            message = f"{kind_of(node)} is not a memory size; write MiB, or a unit as in 4GiB"
            raise reading.error(node, path, message) from None
        if value >= 2**31:
            raise reading.error(node, path, f"{value} MiB is more than any device has")
        return value


@dataclass(frozen=True, slots=True)
class DeviceMemory(KindReader):
    """Memory of a device: as `Memory`, or in percent of the device."""

    shown = "MiB, `4GiB`, `30 units` or `12.5%`"
    accepted = {"anyOf": [_QUANTITY_SCHEMA, {"type": "string", "pattern": _PERCENT_PATTERN}]}

    def read(self, node: Node, path: str, reading: Reading) -> MemorySize:
        text = _number(node, path, reading, "a memory size")
        if not text.rstrip().endswith("%"):
            return MemorySize(mib=Memory().read(node, path, reading))
        return MemorySize(pct=Percent().read(node, path, reading))


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(KindReader):
    """Seconds as a number, or `10m`, `250ms`."""

    shown = "seconds, or `10m`"
    accepted = _QUANTITY_SCHEMA

    low_s: float = 0.0
    high_s: float = 30 * 86400.0

    def read(self, node: Node, path: str, reading: Reading) -> float:
        text = _number(node, path, reading, "a duration")
        try:
            value = parse_duration_s(_ascii(text))
        except (AppError, OverflowError):
            message = f"{kind_of(node)} is not a duration; write seconds, or a unit as in 10m"
            raise reading.error(node, path, message) from None
        if not self.low_s <= value <= self.high_s:
            low, high = format_duration(self.low_s), format_duration(self.high_s)
            raise reading.error(node, path, f"{kind_of(node)} must lie in {low}…{high}")
        return value


@dataclass(frozen=True, slots=True)
class AdvanceWait(KindReader):
    """A duration, `off` (0), or `auto` (None)."""

    shown = "`off`, `auto`, seconds, or `10m`"
    #: YAML 1.1 reads `off` as false.
    accepted = {"anyOf": [{"enum": ["off", "auto", False]}, _QUANTITY_SCHEMA]}

    high_s: float

    def read(self, node: Node, path: str, reading: Reading) -> float | None:
        text = node.text if isinstance(node, Scalar) else ""
        if text == "false":
            return 0.0
        if text.isalpha():
            if text not in ("off", "auto"):
                message = f"{kind_of(node)} is not off, auto, or a duration such as 30 or 2m"
                raise reading.error(node, path, message)
            return None if text == "auto" else 0.0
        return Duration(high_s=self.high_s).read(node, path, reading)


@dataclass(frozen=True, slots=True)
class Percent:
    """0…100 with at most one decimal, with or without `%`."""

    low: int = 0

    def read(self, node: Node, path: str, reading: Reading) -> int | float:
        text = _number(node, path, reading, "a percentage")
        try:
            value = parse_percent(_ascii(text))
        except AppError:
            value = -1
        if not self.low <= value <= 100:
            decimals = ", with at most one decimal" if "." in text else ""
            what = f"a percentage in {self.low}…100{decimals}"
            raise reading.error(node, path, f"{kind_of(node)} is not {what}")
        return value

    def describe(self) -> str:
        return f"{self.low}…100 %, as `12.5`"

    def schema(self) -> Schema:
        number = {"type": "number", "minimum": self.low, "maximum": 100}
        return {"anyOf": [number, {"type": "string", "pattern": _PERCENT_PATTERN}]}


@dataclass(frozen=True, slots=True)
class Version(KindReader):
    """Numbers with dots between; a plain `12.10` stays what it is."""

    shown = "a version, as `12.4`"
    accepted = {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": r"^\d+(\.\d+)*$"},
        ]
    }

    def read(self, node: Node, path: str, reading: Reading) -> str:
        text = _scalar(node, path, reading, "a version").text
        if not is_version(text):
            message = f"{kind_of(node)} is not a version: numbers with dots between, as 550.54"
            raise reading.error(node, path, message)
        return text


@dataclass(frozen=True, slots=True)
class Versions(KindReader):
    """Accepted versions: one exactly, or bounds as for Python packages (`>=1.10,<1.13`)."""

    shown = '`1.12.1` exactly, or bounds, as `">=1.10,<1.13"`'
    accepted = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}]}

    def read(self, node: Node, path: str, reading: Reading) -> str:
        text = _scalar(node, path, reading, "versions").text.strip()
        specifier = text if text[:1] in "<>=!~" else f"=={text}"
        constraint = parse_constraint(f"name{specifier}")
        if constraint is None:
            message = f"{kind_of(node)} is not a version or bounds, as 1.12 or '>=1.10,<1.13'"
            raise reading.error(node, path, message)
        return constraint.specifier

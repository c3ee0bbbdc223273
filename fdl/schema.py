"""How a located node becomes a typed value: one small reader per kind of value.

A reader has `read(node, path, reading)`, which raises INVALID pointing at the node, and `schema()`,
the JSON Schema of what it accepts, for the user's editor. The tables in `keys` are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from corekit.errors import AppError, invalid
from corekit.units import parse_duration_s, parse_memory_mib
from fdl.nodes import (
    Entry,
    Location,
    Mapping,
    Node,
    Scalar,
    Sequence,
    Source,
    did_you_mean,
    kind_of,
)

#: Longer text is no name, path or description that any service here accepts.
TEXT_CHARACTERS_MAX = 4096
_WHOLE = re.compile(r"[-+]?\d{1,18}")
#: YAML 1.1's words, which SCAR's own loader takes too.
_FLAGS = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip


#: So many faults are told at once: more would hide the first, and cost a hostile file nothing.
FAULTS_MAX = 20


class Faulty(Exception):
    """A list or block has faults, all noted in the `Reading`; it has no value."""


@dataclass(slots=True)
class Reading:
    """What one pass over a document needs: the text for errors, and where every key was."""

    source: Source
    locations: dict[str, Location] = field(default_factory=dict)
    faults: list[AppError] = field(default_factory=list)  #: in the order of the file

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Note a fault within and go on after it, so that one look tells of all."""
        try:
            yield
        except AppError as error:
            self.faults.append(error)
            if len(self.faults) >= FAULTS_MAX:
                raise Faulty from None
        except Faulty:
            if len(self.faults) >= FAULTS_MAX:
                raise

    def end(self, faults_before: int) -> None:
        """Raise Faulty when something was noted since there were `faults_before`."""
        if len(self.faults) > faults_before:
            raise Faulty

    def together(self) -> AppError:
        """All that was noted as one INVALID; its place is the first one's."""
        if len(self.faults) == 1:
            return self.faults[0]
        text = "\n".join(fault.message for fault in self.faults)
        details = [fault.details for fault in self.faults]
        return invalid(text, **details[0], faults=details)

    def error(self, node: Node, path: str, message: str) -> AppError:
        """INVALID at the node, naming the key."""
        return self.source.error(node.at, f"{path}: {message}" if path else message)


class Reader(Protocol):
    """One kind of value."""

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        """The value, or AppError(INVALID) at the node, or Faulty."""
        ...

    def schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of what `read` accepts."""
        ...


def _scalar(node: Node, path: str, reading: Reading, wanted: str) -> Scalar:
    if not isinstance(node, Scalar) or node.is_null:
        raise reading.error(node, path, f"expected {wanted}, got {kind_of(node)}")
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string; a plain number or word is taken as it was written."""

    pattern: str = r"(?s).*"
    what: str = "a string"  #: what the pattern means, for people
    empty: bool = False  #: whether "" (and nothing at all) is allowed

    def read(self, node: Node, path: str, reading: Reading) -> str:
        if self.empty and isinstance(node, Scalar) and node.is_null:
            return ""
        text = _scalar(node, path, reading, self.what).text
        if len(text) > TEXT_CHARACTERS_MAX:
            raise reading.error(node, path, f"longer than {TEXT_CHARACTERS_MAX} characters")
        if (not text and not self.empty) or "\0" in text or not re.fullmatch(self.pattern, text):
            raise reading.error(node, path, f"{kind_of(node)} is not {self.what}")
        return text

    def schema(self) -> dict[str, Any]:
        shown = {} if self.pattern.startswith("(?s)") else {"pattern": f"^(?:{self.pattern})$"}
        return {"type": "string", **shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number within bounds."""

    low: int
    high: int
    unit: str = ""

    def read(self, node: Node, path: str, reading: Reading) -> int:
        scalar = _scalar(node, path, reading, "a whole number")
        if not scalar.plain:
            raise reading.error(node, path, "expected a whole number; remove the quotes")
        if not _WHOLE.fullmatch(scalar.text):
            raise reading.error(node, path, f"expected a whole number, got {kind_of(node)}")
        value = int(scalar.text)
        if not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            raise reading.error(node, path, f"{value} must lie in {self.low}…{self.high}{unit}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false (or YAML 1.1's yes, no, on, off)."""

    def read(self, node: Node, path: str, reading: Reading) -> bool:
        scalar = _scalar(node, path, reading, "true or false")
        if not scalar.plain or scalar.text.lower() not in _FLAGS:
            raise reading.error(node, path, f"expected true or false, got {kind_of(node)}")
        return _FLAGS[scalar.text.lower()]

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    words: tuple[str, ...]

    def read(self, node: Node, path: str, reading: Reading) -> str:
        text = _scalar(node, path, reading, "one of " + ", ".join(self.words)).text
        if text not in self.words:
            hint = did_you_mean(text, self.words)
            message = f"{kind_of(node)} is not one of {', '.join(self.words)}{hint}"
            raise reading.error(node, path, message)
        return text

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB as a number, or `4GiB`."""

    def read(self, node: Node, path: str, reading: Reading) -> int:
        text = _scalar(node, path, reading, "a memory size").text
        try:
            value = parse_memory_mib(text)
        except (AppError, OverflowError):
            message = f"{kind_of(node)} is not a memory size; write MiB, or a unit as in 4GiB"
            raise reading.error(node, path, message) from None
        if value >= 2**31:
            raise reading.error(node, path, f"{value} MiB is more than any device has")
        return value

    def schema(self) -> dict[str, Any]:
        quantity = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[A-Za-z]*$"}
        return {"anyOf": [{"type": "integer", "minimum": 0}, quantity]}


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds as a number, or `10m`, `250ms`."""

    def read(self, node: Node, path: str, reading: Reading) -> float:
        text = _scalar(node, path, reading, "a duration").text
        try:
            value = parse_duration_s(text)
        except (AppError, OverflowError):
            message = f"{kind_of(node)} is not a duration; write seconds, or a unit as in 10m"
            raise reading.error(node, path, message) from None
        if value > 30 * 86400:
            raise reading.error(node, path, "longer than 30 days")
        return value

    def schema(self) -> dict[str, Any]:
        quantity = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[A-Za-z]*$"}
        return {"anyOf": [{"type": "number", "minimum": 0}, quantity]}


@dataclass(frozen=True, slots=True)
class Percent:
    """0…100, with or without `%`."""

    def read(self, node: Node, path: str, reading: Reading) -> int:
        text = _scalar(node, path, reading, "a percentage").text.strip().removesuffix("%").strip()
        if not re.fullmatch(r"\d{1,3}", text) or int(text) > 100:
            raise reading.error(node, path, f"{kind_of(node)} is not a percentage in 0…100")
        return int(text)

    def schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 0, "maximum": 100}
        return {"anyOf": [number, {"type": "string", "pattern": r"^\d{1,3}\s*%$"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list; `one` lets a single item stand for a list of it."""

    item: Reader
    one: bool = False
    items_max: int = 100  #: no list of the schema means anything beyond this

    def read(self, node: Node, path: str, reading: Reading) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null:
            return ()
        if not isinstance(node, Sequence):
            if self.one:
                return (self.item.read(node, path, reading),)
            raise reading.error(node, path, f"expected a list, got {kind_of(node)}")
        if len(node.items) > self.items_max:
            raise reading.error(node, path, f"more than {self.items_max} items")
        values = []
        faults = len(reading.faults)
        for index, child in enumerate(node.items):
            inner = f"{path}[{index}]"
            reading.locations[inner] = child.at
            with reading.going_on():
                values.append(self.item.read(child, inner, reading))
        reading.end(faults)
        return tuple(values)

    def schema(self) -> dict[str, Any]:
        many = {"type": "array", "items": self.item.schema(), "maxItems": self.items_max}
        return {"anyOf": [many, self.item.schema()]} if self.one else many


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """Free keys of one kind, one kind of value."""

    item: Reader
    key_pattern: str = r"(?s).+"
    key_what: str = "a key"

    def read(self, node: Node, path: str, reading: Reading) -> MappingABC[str, Any]:
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Mapping):
            raise reading.error(node, path, f"expected a mapping, got {kind_of(node)}")
        values = {}
        faults = len(reading.faults)
        for entry in node.entries:
            with reading.going_on():
                values[entry.key] = self._value(entry, path, reading)
        reading.end(faults)
        return values

    def _value(self, entry: Entry, path: str, reading: Reading) -> Any:
        if not re.fullmatch(self.key_pattern, entry.key):
            message = f"{path}: {entry.key[:60]!r} is not {self.key_what}"
            raise reading.source.error(entry.at, message)
        inner = f"{path}.{entry.key}"
        reading.locations[inner] = entry.at
        return self.item.read(entry.value, inner, reading)

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema()}


@dataclass(frozen=True, slots=True)
class Plain:
    """Anything, as plain data: blocks that are accepted and not acted on."""

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        match node:
            case Scalar():
                return None if node.is_null else node.text
            case Sequence():
                return [self.read(child, path, reading) for child in node.items]
            case Mapping():
                return {e.key: self.read(e.value, path, reading) for e in node.entries}

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One known key of a block."""

    reader: Reader
    to: str | None = None  #: the attribute it fills; None = the key's own name
    required: bool = False
    bare: bool = False  #: `key:` with nothing after it is the block with all its defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A mapping with known keys into one frozen dataclass; `x-…` keys are the user's own."""

    into: Any  #: the dataclass; its defaults are the defaults of the keys
    keys: MappingABC[str, Key]
    short: str | None = None  #: a key that a lone scalar stands for

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        if self.short is not None and isinstance(node, Scalar) and not node.is_null:
            key = self.keys[self.short]
            values = {key.to or self.short: key.reader.read(node, path, reading)}
        elif isinstance(node, Mapping):
            values = self._values(node, path, reading)
        elif isinstance(node, Scalar) and node.is_null:
            values = {}
        else:
            raise reading.error(node, path, f"expected a mapping, got {kind_of(node)}")
        for name, key in self.keys.items():
            if key.required and (key.to or name) not in values:
                raise reading.error(node, path, f"missing key {name!r}")
        try:
            return self.into(**values)
        except AppError as error:
            raise reading.error(node, path, error.message) from None

    def _values(self, node: Mapping, path: str, reading: Reading) -> dict[str, Any]:
        values: dict[str, Any] = {}
        faults = len(reading.faults)
        for entry in node.entries:
            if not entry.key.startswith("x-"):
                with reading.going_on():
                    self._value(entry, path, reading, values)
        reading.end(faults)
        return values

    def _value(self, entry: Entry, path: str, reading: Reading, values: dict[str, Any]) -> None:
        inner = f"{path}.{entry.key}" if path else entry.key
        key = self.keys.get(entry.key)
        if key is None:
            where = f"{path}: " if path else ""
            hint = did_you_mean(entry.key, self.keys)
            message = f"{where}unknown key {entry.key[:60]!r}{hint}"
            raise reading.source.error(entry.at, message)
        reading.locations[inner] = entry.at
        empty = isinstance(entry.value, Scalar) and entry.value.is_null
        if empty and not key.required and not key.bare:
            return  # `key:` with nothing after it is the key's default, as in SCAR
        values[key.to or entry.key] = key.reader.read(entry.value, inner, reading)

    def schema(self) -> dict[str, Any]:
        required = [name for name, key in self.keys.items() if key.required]
        block: dict[str, Any] = {
            "type": "object",
            "properties": {name: key.reader.schema() for name, key in self.keys.items()},
            "patternProperties": {"^x-": {}},
            "additionalProperties": False,
        }
        if required:
            block["required"] = required
        if self.short is None:
            return block
        return {"anyOf": [block, self.keys[self.short].reader.schema()]}


@dataclass(frozen=True, slots=True)
class Only:
    """A block with one key, standing for that key's value (`environment: {Variables: …}`)."""

    key: str
    reader: Reader

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        block = Block(into=dict, keys={self.key: Key(reader=self.reader)})
        return block.read(node, path, reading).get(self.key, {})

    def schema(self) -> dict[str, Any]:
        return Block(into=dict, keys={self.key: Key(reader=self.reader)}).schema()

"""Readers that turn a located node into a typed value: lists, maps, blocks of known keys.

A reader has `read(node, path, reading)`, which raises INVALID pointing at the node, and `schema()`,
the JSON Schema of what it accepts, for the user's editor. The tables in `keys` are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingABC
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar

from corekit.errors import AppError, invalid
from corekit.suggest import did_you_mean
from fdl.text.nodes import (
    Entry,
    Location,
    Mapping,
    Node,
    Scalar,
    Sequence,
    Source,
    as_written,
    kind_of,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: A JSON Schema.
Schema: TypeAlias = dict[str, object]
#: The value of a block that fills no dataclass: its keys.
Values: TypeAlias = dict[str, object]

#: The word for a block that is left out on purpose.
NONE = "none"
#: Faults in one error message, at most: a hostile file could have any number.
FAULTS_MAX = 20


class Faulty(Exception):
    """A list or block without a value: its faults are noted in the `Reading`."""


@dataclass(slots=True)
class Reading:
    """The state of one pass over a document: its text for errors, its faults, its locations."""

    source: Source
    locations: dict[str, Location] = field(default_factory=dict)
    #: Keys without effect, each with the reason.
    ignored: list[tuple[str, str]] = field(default_factory=list)
    faults: list[AppError] = field(default_factory=list)  #: in the order of the file
    #: Block and unknown key → the block it belongs in, as the end of a sentence, or "".
    placement_hint: Callable[[str, str], str] = lambda _, __: ""
    #: Path of a key as it is read → its path in the file, where a rewrite moved it.
    origins: dict[str, str] = field(default_factory=dict)

    def written(self, path: str) -> str:
        """The path of a key as the file has it."""
        return as_written(path, self.origins)

    @contextmanager
    def collecting_errors(self) -> Iterator[None]:
        """Note a fault of the block and continue, so that one pass reports all."""
        try:
            yield
        except AppError as error:
            self.faults.append(error)
            if len(self.faults) >= FAULTS_MAX:
                raise Faulty from None
        except Faulty:
            if len(self.faults) >= FAULTS_MAX:
                raise

    def value(self, reader: Reader[T], node: Node, path: str) -> T | None:
        """The value that a reader makes of a node; None and a noted fault where it refuses."""
        found: list[T] = []
        with self.collecting_errors():
            found.append(reader.read(node, path, self))
        return found[0] if found else None

    def accepts(self, reader: Reader[object], node: Node, path: str) -> bool:
        """Whether a reader takes a node; its faults are noted."""
        faults = len(self.faults)
        self.value(reader, node, path)
        return len(self.faults) == faults

    def fault(self, node: Node, path: str, message: str) -> None:
        """Note a fault and continue."""
        with self.collecting_errors():
            raise self.error(node, path, message)

    def end(self, faults_before: int) -> None:
        """Raise Faulty if faults were noted since there were `faults_before`."""
        if len(self.faults) > faults_before:
            raise Faulty

    def combined_error(self) -> AppError:
        """All faults as one INVALID, with the location of the first.

        A fault that is found twice, as in a bucket of inputs that is read for outputs too, counts
        once.
        """
        faults = list({fault.message: fault for fault in self.faults}.values())
        if len(faults) == 1:
            return faults[0]
        text = "\n".join(fault.message for fault in faults)
        details = [fault.details for fault in faults]
        return invalid(text, **details[0], faults=details)

    def error(self, node: Node, path: str, message: str) -> AppError:
        """INVALID at the node, naming the key as the file has it."""
        return self.error_at(node.at, path, message)

    def error_at(self, at: Location, path: str, message: str) -> AppError:
        """The same at a location."""
        return self.source.error(at, f"{self.written(path)}: {message}" if path else message)


class Reader(Protocol[T_co]):
    """One kind of value."""

    def read(self, node: Node, path: str, reading: Reading) -> T_co:
        """The value, or AppError(INVALID) at the node, or Faulty."""
        ...

    def describe(self) -> str:
        """The accepted values, for people: a few words."""
        ...

    def schema(self) -> Schema:
        """JSON Schema (2020-12) of what `read` accepts."""
        ...


class KindReader:
    """A reader whose words for people and JSON Schema are the same for each of its kind."""

    shown: ClassVar[str]
    accepted: ClassVar[Schema]

    def describe(self) -> str:
        return self.shown

    def schema(self) -> Schema:
        return self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf(Generic[T_co]):
    """A list; `one` lets a single item stand for a list of it."""

    item: Reader[T_co]
    one: bool = False
    items_max: int = 100
    items_min: int = 0

    def read(self, node: Node, path: str, reading: Reading) -> tuple[T_co, ...]:
        if isinstance(node, Scalar) and node.is_null and not self.items_min:
            return ()
        if not isinstance(node, Sequence):
            if self.one:
                return (self.item.read(node, path, reading),)
            raise reading.error(node, path, f"expected a list, got {kind_of(node)}")
        if len(node.items) > self.items_max:
            raise reading.error(node, path, f"more than {self.items_max} items")
        if len(node.items) < self.items_min:
            raise reading.error(
                node, path, f"needs {self.items_min} item at least; or leave it out"
            )
        values = []
        faults = len(reading.faults)
        for index, child in enumerate(node.items):
            inner = f"{path}[{index}]"
            reading.locations[inner] = child.at
            with reading.collecting_errors():
                values.append(self.item.read(child, inner, reading))
        reading.end(faults)
        return tuple(values)

    def describe(self) -> str:
        return (
            f"{self.item.describe()}; one or a list"
            if self.one
            else f"a list: {self.item.describe()}"
        )

    def schema(self) -> Schema:
        many: Schema = {"type": "array", "items": self.item.schema(), "maxItems": self.items_max}
        if self.items_min:
            many["minItems"] = self.items_min
        return {"anyOf": [many, self.item.schema()]} if self.one else many


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf(Generic[T_co]):
    """Free keys of one kind, one kind of value."""

    item: Reader[T_co]
    key_pattern: str = r"(?s).+"
    key_what: str = "a key"

    def read(self, node: Node, path: str, reading: Reading) -> MappingABC[str, T_co]:
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Mapping):
            raise reading.error(node, path, f"expected a mapping, got {kind_of(node)}")
        values = {}
        faults = len(reading.faults)
        for entry in node.entries:
            with reading.collecting_errors():
                values[entry.key] = self._value(entry, path, reading)
        reading.end(faults)
        return values

    def _value(self, entry: Entry, path: str, reading: Reading) -> T_co:
        if not re.fullmatch(self.key_pattern, entry.key):
            message = f"{path}: {entry.key[:60]!r} is not {self.key_what}"
            raise reading.source.error(entry.at, message)
        inner = f"{path}.{entry.key}"
        reading.locations[inner] = entry.at
        return self.item.read(entry.value, inner, reading)

    def describe(self) -> str:
        return f"a mapping: {self.item.describe()}"

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": self.item.schema()}


@dataclass(frozen=True, slots=True)
class Plain(KindReader):
    """Any value, as plain data: of blocks that are accepted without effect."""

    shown = "anything"
    accepted = {}

    def read(self, node: Node, path: str, reading: Reading) -> object:
        match node:
            case Scalar():
                return None if node.is_null else node.text
            case Sequence():
                return [self.read(child, path, reading) for child in node.items]
            case Mapping():
                return {e.key: self.read(e.value, path, reading) for e in node.entries}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One known key of a block."""

    reader: Reader[object]
    to: str | None = None  #: the attribute it fills; None = the key's own name
    required: bool = False
    bare: bool = False  #: `key:` with nothing after it is the block with all its defaults
    blank: bool = False  #: `key: ""` counts as empty, as SCAR writes it
    about: str = ""  #: its meaning, one sentence
    default: str | None = None  #: for people, where the dataclass cannot say it
    becomes: str = ""  #: the keys that `fdl.migrate` rewrites it into
    dropped: str = ""  #: the reason for which `fdl.migrate` leaves it out
    refused: str = ""  #: the reason for which it is an error, and what to write instead
    ignored: bool = False  #: SCAR's, without effect here; lint reports it

    def schema(self) -> Schema:
        """The reader's schema, with the description that an editor shows."""
        shown: Schema = {"description": self.about} if self.about else {}
        if self.becomes or self.dropped:
            shown["deprecated"] = True
        accepted = self.reader.schema()
        if self.bare or not self.required:  # `key:` with nothing after it
            accepted = {"anyOf": [accepted, {"type": "null"}]}
        if self.blank:
            accepted = {"anyOf": [accepted, {"const": ""}]}
        return {**accepted, **shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Generic[T_co]):
    """A mapping with known keys into one frozen dataclass; `x-…` keys are the user's own."""

    into: Callable[..., T_co]  #: the dataclass; its defaults are the defaults of the keys
    defaults: type | None = None  #: the class that has them, where `into` is a function
    keys: MappingABC[str, Key]
    short: str | None = None  #: a key that a lone scalar stands for
    none: Callable[[], T_co] | None = None  #: what the word `none` stands for, if it may be written
    #: The name under `$defs` of the schema of a block that stands in several places.
    definition: str = ""

    def read(self, node: Node, path: str, reading: Reading) -> T_co:
        if self.none is not None and isinstance(node, Scalar) and not node.is_null:
            if node.text != NONE:
                message = f"expected a mapping or the word `{NONE}`, got {kind_of(node)}"
                raise reading.error(node, path, message)
            return self.none()
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

    def _values(self, node: Mapping, path: str, reading: Reading) -> dict[str, object]:
        values: dict[str, object] = {}
        faults = len(reading.faults)
        for entry in node.entries:
            if not entry.key.startswith("x-"):
                with reading.collecting_errors():
                    self._value(entry, path, reading, values)
        reading.end(faults)
        return values

    def _value(self, entry: Entry, path: str, reading: Reading, values: dict[str, object]) -> None:
        inner = f"{path}.{entry.key}" if path else entry.key
        key = self.keys.get(entry.key)
        if key is None:
            hint = reading.placement_hint(path, entry.key) or did_you_mean(entry.key, self.keys)
            raise reading.error_at(entry.at, path, f"unknown key {entry.key[:60]!r}{hint}")
        reading.locations[inner] = entry.at
        if key.refused:
            raise reading.error_at(entry.at, inner, key.refused)
        empty = isinstance(entry.value, Scalar) and (
            entry.value.is_null or (key.blank and not entry.value.text)
        )
        if empty and not key.required and not key.bare:
            return  # `key:` with nothing after it is the key's default, as in SCAR
        if (key.to or entry.key) in values:  # another spelling of it
            raise reading.error_at(entry.at, inner, "is written twice; keep one spelling")
        if key.ignored:
            reading.ignored.append((inner, key.about))
        values[key.to or entry.key] = key.reader.read(entry.value, inner, reading)

    def describe(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.keys)
        block = f"a block: {names}" if len(self.keys) <= 4 else "a block"
        return block if self.none is None else f"{block}, or `{NONE}`"

    def schema(self) -> Schema:
        if self.definition:
            return {"$ref": f"#/$defs/{self.definition}"}
        return self.own_schema()

    def own_schema(self) -> Schema:
        """The schema itself, also of a block that has a definition."""
        required = [name for name, key in self.keys.items() if key.required]
        block: Schema = {
            "type": "object",
            "properties": {
                name: key.schema() for name, key in self.keys.items() if not key.refused
            },
            "patternProperties": {"^x-": {}},
            "additionalProperties": False,
        }
        if required:
            block["required"] = required
        if self.none is not None:
            return {"anyOf": [block, {"const": NONE}]}
        if self.short is None:
            return block
        return {"anyOf": [block, self.keys[self.short].reader.schema()]}


@dataclass(frozen=True, slots=True)
class Only(Generic[T_co]):
    """A block with one key, standing for that key's value (`environment: {Variables: …}`)."""

    key: str
    reader: Reader[T_co]
    also: str = ""  #: another spelling of the key
    refused: tuple[str, str] | None = None  #: another key that is an error, and the reason
    alternative: str = ""  #: another block that a misplaced key may be meant for

    def _block(self) -> Block[dict[str, T_co]]:
        names = [name for name in (self.key, self.also) if name]
        keys = {name: Key(reader=self.reader, to=self.key) for name in names}
        if self.refused is not None:
            name, instead = self.refused
            keys[name] = Key(reader=self.reader, refused=instead)
        return Block(into=dict, keys=keys)

    def read(self, node: Node, path: str, reading: Reading) -> T_co | MappingABC[str, T_co]:
        block = self._block()
        for entry in node.entries if isinstance(node, Mapping) else ():
            known = entry.key in block.keys or entry.key.startswith("x-")
            if not known and not did_you_mean(entry.key, [self.key]):
                last = reading.written(path).rpartition(".")[2]
                shown = f"`{last}: {{{self.key}: {{{entry.key[:60]}: …}}}}`"
                message = f"unknown key {entry.key[:60]!r}; write {shown}{self.alternative}"
                raise reading.error_at(entry.at, path, message)
        return block.read(node, path, reading).get(self.key, {})

    def describe(self) -> str:
        return f"`{self.key}:` {self.reader.describe()}"

    def schema(self) -> Schema:
        return self._block().schema()

"""How a located node becomes a typed value: lists, maps and blocks of known keys.

A reader has `read(node, path, reading)`, which raises INVALID pointing at the node, and `schema()`,
the JSON Schema of what it accepts, for the user's editor. The tables in `keys` are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as MappingABC
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

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

#: So many faults are told at once: more would hide the first, and cost a hostile file nothing.
FAULTS_MAX = 20


class Faulty(Exception):
    """A list or block has faults, all noted in the `Reading`; it has no value."""


@dataclass(slots=True)
class Reading:
    """What one pass over a document needs: the text for errors, and where every key was."""

    source: Source
    locations: dict[str, Location] = field(default_factory=dict)
    #: Keys without effect, with what is so instead.
    idle: list[tuple[str, str]] = field(default_factory=list)
    faults: list[AppError] = field(default_factory=list)  #: in the order of the file
    #: Block and key → where a key that is unknown there belongs, as the end of a sentence, or "".
    elsewhere: Callable[[str, str], str] = lambda _, __: ""
    #: Path of a key as it is read → its path in the file, where a rewrite moved it.
    origins: dict[str, str] = field(default_factory=dict)

    def written(self, path: str) -> str:
        """The path of a key as the file has it."""
        return as_written(path, self.origins)

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

    def value(self, reader: Reader, node: Node, path: str) -> Any:
        """What a reader makes of a node; None and a noted fault where it refuses."""
        found: list[Any] = []
        with self.going_on():
            found.append(reader.read(node, path, self))
        return found[0] if found else None

    def passes(self, reader: Reader, node: Node, path: str) -> bool:
        """Whether a reader takes a node; its faults are noted."""
        faults = len(self.faults)
        self.value(reader, node, path)
        return len(self.faults) == faults

    def fault(self, node: Node, path: str, message: str) -> None:
        """Note a fault and go on."""
        with self.going_on():
            raise self.error(node, path, message)

    def end(self, faults_before: int) -> None:
        """Raise Faulty when something was noted since there were `faults_before`."""
        if len(self.faults) > faults_before:
            raise Faulty

    def together(self) -> AppError:
        """All that was noted as one INVALID; its place is the first one's.

        What is read in two ways, as a bucket of inputs that takes the outputs too, is told once.
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
        """The same at a place."""
        return self.source.error(at, f"{self.written(path)}: {message}" if path else message)


class Reader(Protocol):
    """One kind of value."""

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        """The value, or AppError(INVALID) at the node, or Faulty."""
        ...

    def words(self) -> str:
        """What `read` accepts, for people: a few words."""
        ...

    def schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of what `read` accepts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list; `one` lets a single item stand for a list of it."""

    item: Reader
    one: bool = False
    items_max: int = 100  #: no list of the schema means anything beyond this
    items_min: int = 0

    def read(self, node: Node, path: str, reading: Reading) -> tuple[Any, ...]:
        if isinstance(node, Scalar) and node.is_null:
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
            with reading.going_on():
                values.append(self.item.read(child, inner, reading))
        reading.end(faults)
        return tuple(values)

    def words(self) -> str:
        return f"{self.item.words()}; one or a list" if self.one else f"a list: {self.item.words()}"

    def schema(self) -> dict[str, Any]:
        many: dict[str, Any] = {
            "type": "array",
            "items": self.item.schema(),
            "maxItems": self.items_max,
        }
        if self.items_min:
            many["minItems"] = self.items_min
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

    def words(self) -> str:
        return f"a mapping: {self.item.words()}"

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

    def words(self) -> str:
        return "anything"

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One known key of a block."""

    reader: Reader
    to: str | None = None  #: the attribute it fills; None = the key's own name
    required: bool = False
    bare: bool = False  #: `key:` with nothing after it is the block with all its defaults
    blank: bool = False  #: `key: ""` is no value, as SCAR writes it
    about: str = ""  #: what it means, one sentence
    default: str | None = None  #: for people, where the dataclass cannot say it
    becomes: str = ""  #: what it is rewritten into before it is read (`fdl.migrate.migrate`)
    refused: str = ""  #: why it is known and not done, and what to do instead
    idle: bool = False  #: SCAR's, and changing nothing here; lint says so

    def schema(self) -> dict[str, Any]:
        """Its reader's, with what an editor shows beside it."""
        shown: dict[str, Any] = {"description": self.about} if self.about else {}
        if self.becomes:
            shown["deprecated"] = True
        accepted = self.reader.schema()
        if self.bare or not self.required:  # `key:` with nothing after it
            accepted = {"anyOf": [accepted, {"type": "null"}]}
        if self.blank:
            accepted = {"anyOf": [accepted, {"const": ""}]}
        return {**accepted, **shown}


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
            hint = reading.elsewhere(path, entry.key) or did_you_mean(entry.key, self.keys)
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
        if key.idle:
            reading.idle.append((inner, key.about))
        values[key.to or entry.key] = key.reader.read(entry.value, inner, reading)

    def words(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.keys)
        return f"a block: {names}" if len(self.keys) <= 4 else "a block"

    def schema(self) -> dict[str, Any]:
        required = [name for name, key in self.keys.items() if key.required]
        block: dict[str, Any] = {
            "type": "object",
            "properties": {
                name: key.schema() for name, key in self.keys.items() if not key.refused
            },
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
    also: str = ""  #: another spelling of the key
    refused: tuple[str, str] | None = None  #: a key beside it, and what is so instead
    beside: str = ""  #: what else a key that stands too high may mean

    def _block(self) -> Block:
        names = [name for name in (self.key, self.also) if name]
        keys = {name: Key(reader=self.reader, to=self.key) for name in names}
        if self.refused is not None:
            name, instead = self.refused
            keys[name] = Key(reader=self.reader, refused=instead)
        return Block(into=dict, keys=keys)

    def read(self, node: Node, path: str, reading: Reading) -> Any:
        block = self._block()
        for entry in node.entries if isinstance(node, Mapping) else ():
            known = entry.key in block.keys or entry.key.startswith("x-")
            if not known and not did_you_mean(entry.key, [self.key]):
                last = reading.written(path).rpartition(".")[2]
                shown = f"`{last}: {{{self.key}: {{{entry.key[:60]}: …}}}}`"
                message = f"unknown key {entry.key[:60]!r}; write {shown}{self.beside}"
                raise reading.error_at(entry.at, path, message)
        return block.read(node, path, reading).get(self.key, {})

    def words(self) -> str:
        return f"`{self.key}:` {self.reader.words()}"

    def schema(self) -> dict[str, Any]:
        return self._block().schema()

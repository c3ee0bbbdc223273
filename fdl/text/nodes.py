"""A YAML document as plain located nodes, and the error that points into its text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import TypeAlias

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace

#: A longer source line is cut around the caret: an error must stay readable.
EXCERPT_COLUMNS_MAX = 100
#: A line with this, and what is below it, may hold a value in clear: at a wrong place or with a
#: wrong key too.
_SECRET = re.compile("secret", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in the source, both counted from 1."""

    line: int
    column: int


class Scalar(Value):
    """A leaf as it was written; its type is decided by the key that expects it."""

    text: str
    plain: bool  #: False when it was quoted or a block: then it is a string and nothing else
    at: Location

    @property
    def is_null(self) -> bool:
        """True for nothing, `~` and `null`."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


class Entry(Value):
    """One `key: value` of a mapping; keys are unique within it."""

    key: str
    at: Location
    value: Node


class Mapping(Value):
    """Entries in the order they were written."""

    entries: tuple[Entry, ...]
    at: Location
    flow: bool = False  #: written as `{a: 1}`

    def entry(self, key: str) -> Entry | None:
        """The entry of a key, if there is one."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def child(self, key: str) -> Node | None:
        """The value of a key, if there is one."""
        entry = self.entry(key)
        return None if entry is None else entry.value

    def without(self, *keys: str) -> Mapping:
        """The same without these keys."""
        dropped = frozenset(keys)
        kept = tuple(entry for entry in self.entries if entry.key not in dropped)
        return replace(self, entries=kept)

    def with_entry(self, key: str, value: Node, *, instead_of: str | None = None) -> Mapping:
        """The same with this value at `key`; a new key replaces `instead_of`, or comes last."""
        old = instead_of if instead_of is not None else key
        if self.entry(old) is None:
            new = Entry(key=key, at=value.at, value=value)
            return replace(self, entries=(*self.entries, new))
        entries = [replace(e, key=key, value=value) if e.key == old else e for e in self.entries]
        return replace(self, entries=tuple(entries))


class Sequence(Value):
    """Items in order."""

    items: tuple[Node, ...]
    at: Location
    flow: bool = False  #: written as `[1, 2]`


Node: TypeAlias = Scalar | Mapping | Sequence


class Source(Value):
    """A text and its name in messages."""

    name: str
    text: str

    def error(self, at: Location, message: str, *, private: bool = False) -> AppError:
        """INVALID with `file:line:column: error: message` and the line with a caret under it.

        `private`: the line is not shown; it never is of a block of secrets.
        """
        shown = f"{self.name}:{at.line}:{at.column}: error: {message}"
        return AppError(
            ErrorCode.INVALID,
            shown if private else shown + self._excerpt(at),
            file=self.name,
            line=at.line,
            column=at.column,
            problem=message,
        )

    def _excerpt(self, at: Location) -> str:
        lines = self.text.splitlines()
        if not 1 <= at.line <= len(lines):
            return ""
        if any(map(_SECRET.search, _lines_around(lines, at.line))):
            return ""
        line, column = lines[at.line - 1].replace("\t", " "), at.column - 1
        start = max(0, column - EXCERPT_COLUMNS_MAX // 2)
        part = line[start : start + EXCERPT_COLUMNS_MAX]
        printable = "".join(c if c.isprintable() else "�" for c in part)
        margin = " " * len(str(at.line))
        return f"\n  {at.line} | {printable}\n  {margin} | {' ' * (column - start)}^"


def _lines_around(lines: list[str], number: int) -> Iterator[str]:
    """A line, counted from 1, and the first lines of the blocks that it is in.

    Their indentation shows them; `- ` is a part of it.
    """
    narrowest = math.inf
    for line in reversed(lines[:number]):
        width = len(line) - len(line.lstrip(" \t-"))
        if line.strip() and width < narrowest:
            yield line
            narrowest = width


def as_written(path: str, origins: MappingABC[str, str]) -> str:
    """The path of a key in the file, where it, or a block around it, is read somewhere else."""
    head = path
    while head:
        if head in origins:
            return origins[head] + path[len(head) :]
        head = parent(head)
    return path


def parent(path: str) -> str:
    """`a.b` of `a.b.c` and of `a.b[0]`; "" of `a`."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def kind_of(node: Node) -> str:
    """The kind or value of a node, for people."""
    match node:
        case Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar() if node.is_null:
            return "nothing"
        case Scalar():
            return repr(node.text if len(node.text) <= 40 else node.text[:37] + "...")


def quoted(text: str) -> str:
    """In double quotes, by rules that JSON and YAML share."""
    shown = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escaped(c) for c in shown)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

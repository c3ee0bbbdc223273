"""Nodes back to text, in one style: `orchgpu fdl fmt`, and what `fdl migrate` prints.

Two spaces, one blank line at most, items at their key's column, flow collections that fit stay on
one line. Comments and the order of keys stay; what the text means never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass, field

from fdl.text.compose import Comment, Composed
from fdl.text.nodes import Entry, Location, Mapping, Node, Scalar, Sequence, quoted

#: A flow collection that would pass this column is written as a block.
COLUMNS_MAX = 100
_INDENT = "  "
#: Keys that need no quotes anywhere.
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
#: Characters that end a plain scalar inside `[]` or `{}`.
_FLOW_MARKS = re.compile(r"[,\[\]{}]")
#: Line breaks, which a plain scalar on one line cannot have.
_BREAKS = re.compile(r"[\n\r\x85\u2028\u2029]")


def render(composed: Composed, root: Node) -> str:
    """The text of `root`, with the comments and blank lines of the file it came from."""
    writer = _Writer(comments=composed.comments(), lines=composed.source.text.splitlines())
    writer.root(root)
    writer.rest()
    return "\n".join(writer.out).rstrip("\n") + "\n"


def one_line(node: Node) -> str:
    """A node as flow YAML, without comments."""
    return _flow(node)


@dataclass(slots=True)
class _Writer:
    """One rendering: the lines so far, and the comments that are still to come."""

    comments: SequenceABC[Comment]
    lines: SequenceABC[str]
    out: list[str] = field(default_factory=list)
    _next: int = 0  #: index of the first comment not written yet

    def root(self, node: Node) -> None:
        """The whole file."""
        if _is_empty(node) or self._fits(node, 0, 0):
            self._before(node.at, 0)
            self._line(0, "", _flow(node), node.at)
        else:
            self._block(node, 0)

    def _block(self, node: Node, depth: int) -> None:
        for entry in node.entries if isinstance(node, Mapping) else ():
            self._before(entry.at, depth)
            self._entry(entry, depth, "")
        for item in node.items if isinstance(node, Sequence) else ():
            self._before(item.at, depth)
            self._item(item, depth, "")

    def rest(self) -> None:
        """Comments after the last line."""
        self._before(Location(len(self.lines) + 1, 1), 0)

    # ------------------------------------------------------------------ one line and what follows

    def _entry(self, entry: Entry, depth: int, lead: str) -> None:
        """`key: value`, after `lead` (the dashes of the lists it is first in)."""
        key, value = _key(entry.key), entry.value
        if isinstance(value, Scalar):
            if block := _literal(value):
                self._line(depth, lead, f"{key}: |{block[0]}", entry.at)
                indent = _INDENT * (depth + 1)
                self.out += [indent + line if line else "" for line in block[1]]
                return
            self._line(depth, lead, f"{key}: {_scalar(value)}".rstrip(), entry.at)
        elif _is_empty(value) or self._fits(value, depth, len(lead) + len(key) + 2):
            self._line(depth, lead, f"{key}: {_flow(value)}", entry.at)
        else:
            self._line(depth, lead, f"{key}:", entry.at)
            self._block(value, depth if isinstance(value, Sequence) else depth + 1)

    def _item(self, item: Node, depth: int, lead: str) -> None:
        """`- value`; a block that starts on the dash's line continues two columns further in."""
        lead += "- "
        if isinstance(item, Mapping) and item.entries and not self._fits(item, depth, len(lead)):
            first, *others = item.entries
            self._entry(first, depth + 1, lead)
            for entry in others:
                self._before(entry.at, depth + 1)
                self._entry(entry, depth + 1, "")
        elif isinstance(item, Sequence) and item.items and not self._fits(item, depth, len(lead)):
            inner, *rest = item.items
            self._item(inner, depth + 1, lead)
            for child in rest:
                self._before(child.at, depth + 1)
                self._item(child, depth + 1, "")
        else:
            self._line(depth + 1, lead, _flow(item), item.at)

    def _line(self, depth: int, lead: str, text: str, at: Location) -> None:
        """One line, with the comment that stood at its end."""
        indent = _INDENT * depth
        line = (indent[: len(indent) - len(lead)] + lead + text).rstrip()
        if self._next < len(self.comments):
            comment = self.comments[self._next]
            if comment.at.line == at.line and not comment.alone:
                column = max(len(line) + 2, comment.at.column - 1)
                line = f"{line:<{column}}{comment.text}"
                self._next += 1
        self.out.append(line)

    def _before(self, at: Location, depth: int) -> None:
        """Comments that stood before this place, and one blank line where there was one."""
        while self._next < len(self.comments) and self.comments[self._next].at.line < at.line:
            comment = self.comments[self._next]
            self._next += 1
            self._blank(comment.at.line)
            self.out.append(_INDENT * depth + comment.text)
        self._blank(at.line)

    def _blank(self, line: int) -> None:
        above = line - 2
        was_blank = 0 <= above < len(self.lines) and not self.lines[above].strip()
        if was_blank and self.out and self.out[-1]:
            self.out.append("")

    def _fits(self, node: Node, depth: int, used: int) -> bool:
        """Whether a collection stays `{…}` or `[…]`: written so, short, and without comments in it.

        A scalar that must not be broken up always fits.
        """
        if isinstance(node, Scalar):
            return True
        if not node.flow or not _all_flow(node):
            return False
        lines = _lines_of(node)
        inside = [c for c in self.comments if lines[0] <= c.at.line < lines[1]]
        return not inside and len(_INDENT) * depth + used + len(_flow(node)) <= COLUMNS_MAX


def _children(node: Node) -> Iterator[Node]:
    match node:
        case Mapping():
            yield from (entry.value for entry in node.entries)
        case Sequence():
            yield from node.items


def _all_flow(node: Node) -> bool:
    """False when a rewrite put a block, or text of several lines, into it."""
    if isinstance(node, Scalar):
        return True
    return (node.flow or _is_empty(node)) and all(_all_flow(child) for child in _children(node))


def _lines_of(node: Node) -> tuple[int, int]:
    """First and last line on which something of it starts."""
    lines = [node.at.line, *(line for child in _children(node) for line in _lines_of(child))]
    return min(lines), max(lines)


def _is_empty(node: Node) -> bool:
    return not any(True for _ in _children(node)) and not isinstance(node, Scalar)


def _flow(node: Node) -> str:
    match node:
        case Scalar():
            text = _scalar(node)
            return quoted(node.text) if node.plain and _FLOW_MARKS.search(text) else text
        case Sequence():
            return "[" + ", ".join(_flow(item) or "~" for item in node.items) + "]"
        case Mapping():
            inner = (f"{_key(e.key)}: {_flow(e.value)}".rstrip() for e in node.entries)
            return "{" + ", ".join(inner) + "}"


def _scalar(node: Scalar) -> str:
    """Plain text stays plain, quoted text stays quoted: which it is decides what it may mean."""
    if node.plain and not _BREAKS.search(node.text):
        return node.text
    return quoted(node.text)


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else quoted(key)


def _literal(node: Scalar) -> tuple[str, list[str]] | None:
    """`(chomping, lines)` of text that reads best as a block; None for any other."""
    text = node.text
    lines = text.split("\n")
    good = (
        not node.plain
        and len(lines) > 1
        and bool(lines[0])
        and not lines[0].startswith((" ", "\t"))
        and all(c.isprintable() or c == "\n" for c in text)
        and not text.endswith("\n\n")
        and not any(line.isspace() for line in lines)
    )
    if not good:
        return None
    return ("", lines[:-1]) if text.endswith("\n") else ("-", lines)

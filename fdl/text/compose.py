"""Text → located nodes and comments; only this module and `yaml_errors` know YAML.

A small, hostile-proof part of YAML: one document; no anchors, aliases, tags or merge keys; no key
twice; at most 256 KiB and 24 levels. (Aliases let 380 bytes unfold into millions of nodes.) What a
plain scalar means is decided by the key that expects it, so `version: 1.10` stays `1.10`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from corekit.errors import invalid
from corekit.values import Value
from fdl.text.nodes import Entry, Location, Mapping, Node, Scalar, Sequence, Source, kind_of
from fdl.text.yaml_errors import explained, location_of

#: A comment starts after a blank or at the start of a line.
_HASH = re.compile(r"(?:(?<=[ \t])|^)#")
#: Characters that change the direction of text: people see another file than the parser reads.
_TURN = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: A real FDL has a few KiB; Lambda's own request limit for a function is far below this.
BYTES_MAX = 256 * 1024
#: The deepest key of the schema lies at level 9.
DEPTH_MAX = 24


class Comment(Value):
    """`# …` as it was written."""

    at: Location
    text: str
    alone: bool  #: nothing else stands on its line


class Composed(Value):
    """A whole file as nodes."""

    source: Source
    root: Node
    spans: tuple[tuple[int, int], ...]  #: of the scalars, in characters of the text

    def comments(self) -> tuple[Comment, ...]:
        """All of them, in the order of the file."""
        return _comments(self.source, self.spans)


def compose(data: bytes | str, name: str) -> Composed:
    """The nodes of a file. Raises INVALID with file:line:column and an excerpt, and nothing else.

    `name` is the name of the file in messages.
    """
    source = Source(name=name, text=_text(data, name))
    if turn := _TURN.search(source.text):
        what = f"the character U+{ord(turn[0]):04X} turns the direction of the text after it"
        raise source.error(_place(source.text, turn.start()), f"{what}; leave it out")
    composer = _guarded(source)
    return Composed(source=source, root=composer.root, spans=tuple(composer.spans))


def _comments(source: Source, spans: tuple[tuple[int, int], ...]) -> tuple[Comment, ...]:
    """Every `#` that YAML takes for the start of a comment: not inside a scalar, after a blank."""
    found = []
    inside = iter([*sorted(spans), (len(source.text) + 1,) * 2])
    start, end = next(inside)
    offset = 0
    for number, line in enumerate(source.text.splitlines(keepends=True), start=1):
        for match in _HASH.finditer(line):
            index = offset + match.start()
            while index >= end and end <= len(source.text):
                start, end = next(inside)
            if not start <= index < end:
                at = Location(number, match.start() + 1)
                text, alone = line[match.start() :].rstrip(), not line[: match.start()].strip()
                found.append(Comment(at=at, text=text, alone=alone))
                break
        offset += len(line)
    return tuple(found)


def _text(data: bytes | str, name: str) -> str:
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
    if size > BYTES_MAX:
        raise invalid(f"{name}: error: too large; an FDL file may have at most {BYTES_MAX} bytes")
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        at = _place(text, len(data[: error.start].decode("utf-8")))
        what = f"byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            text, what = "", "the file is in UTF-16; save it as UTF-8"
        raise Source(name=name, text=text).error(at, what) from None


def _guarded(source: Source) -> _Composer:
    composer = None
    try:
        composer = _Composer(source)
        composer.root = composer.document()
        return composer
    except yaml.MarkedYAMLError as error:
        at, message = explained(error, source.text)
    except yaml.reader.ReaderError as error:
        at = _place(source.text, error.position)
        message = f"the character U+{error.character:04X} is not allowed; leave it out"
    except (ValueError, OverflowError):
        # PyYAML converts escapes and directives with int() and chr() without looking first
        at = composer.reached() if composer is not None else Location(1, 1)
        message = "an escape or a directive near here has a number that is too large"
    raise source.error(at, f"not valid YAML: {message}")


def _place(text: str, index: int) -> Location:
    """Line and column of a character; YAML's own line ends count, as in PyYAML's marks."""
    before = text[:index]
    return Location(before.count("\n") + 1, index - before.rfind("\n"))


class _Composer:
    """PyYAML's events to located nodes; refuses what the module's docstring lists."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loader = yaml.SafeLoader(source.text)
        self.root: Node = Scalar(text="", plain=True, at=Location(1, 1))
        self.spans: list[tuple[int, int]] = []  #: of the scalars, in characters of the text

    def _next(self) -> yaml.Event:
        event: yaml.Event = self._loader.get_event()  # type: ignore[no-untyped-call]  # its stubs
        return event

    def reached(self) -> Location:
        """The location that the scanner has reached."""
        return location_of(self._loader.get_mark())

    def document(self) -> Node:
        loader = self._loader
        self._next()  # the stream's start
        if loader.check_event(yaml.StreamEndEvent):
            raise self._source.error(Location(1, 1), "the file is empty; it needs 'functions:'")
        self._next()  # the document's start
        root = self._node(0)
        self._next()  # the document's end
        if not loader.check_event(yaml.StreamEndEvent):
            raise self._refuse(self._next(), "a second document begins here; one file holds one")
        return root

    def _refuse(self, event: yaml.Event, message: str) -> Exception:
        return self._source.error(location_of(event.start_mark), message)

    def _node(self, depth: int) -> Node:
        event: Any = self._next()  # Any: the stubs lack the fields of node events
        at = location_of(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise self._refuse(
                event, f"the alias *{event.anchor}: write the value out, or quote it"
            )
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise self._refuse(
                event, f"the anchor &{event.anchor} is not allowed here: quote the value"
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._refuse(
                event, f"the tag {tag} is not allowed here: leave it out, or quote the value"
            )
        if isinstance(event, yaml.ScalarEvent):
            if half := _SURROGATE.search(event.value):
                code = f"U+{ord(half[0]):04X}"
                raise self._refuse(event, f"{code} is half a character: leave the escape out")
            self.spans.append(self._span(event))
            return Scalar(text=event.value, plain=event.style is None, at=at)
        if depth >= DEPTH_MAX:
            raise self._refuse(event, f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            return Sequence(items=self._items(depth), at=at, flow=bool(event.flow_style))
        return Mapping(entries=self._entries(depth), at=at, flow=bool(event.flow_style))

    def _span(self, event: Any) -> tuple[int, int]:
        """The text without comments; the line that opens a block (`|`, `>`) may end with one."""
        start, end = event.start_mark.index, event.end_mark.index
        if event.style in ("|", ">"):
            start = max(start, self._source.text.find("\n", start))
        return start, end

    def _items(self, depth: int) -> tuple[Node, ...]:
        items = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
        self._next()
        return tuple(items)

    def _entries(self, depth: int) -> tuple[Entry, ...]:
        entries: dict[str, Entry] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            key = self._node(depth + 1)
            if not isinstance(key, Scalar):
                raise self._source.error(key.at, "a key must be a plain word")
            if key.plain and key.text == "<<":
                raise self._source.error(key.at, "<< merges mappings: write the keys out")
            if key.text in entries:
                first = entries[key.text].at.line
                message = f"{kind_of(key)} is written twice, first on line {first}; keep one"
                raise self._source.error(key.at, message)
            entries[key.text] = Entry(key=key.text, at=key.at, value=self._node(depth + 1))
        self._next()
        return tuple(entries.values())

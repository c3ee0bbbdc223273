"""PyYAML's errors in words for the author of a file.

PyYAML's own messages are about tokens and block ends. They are recognised by their text; an unknown
one (of a newer PyYAML) is shown as it is, so nothing depends on the list being complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import yaml

from fdl.text.nodes import Location

#: PyYAML looks for the colon of a key no further.
_KEY_CHARACTERS_MAX = 1024
_COLON = re.compile(r":(\s|$)")


def explained(error: yaml.MarkedYAMLError, text: str) -> tuple[Location, str]:
    """The location of the mistake, and its explanation."""
    problem, context = str(error.problem or error.context), str(error.context or "")
    at = error.problem_mark or error.context_mark
    opened = error.context_mark or at
    fault = _Fault(lines=text.split("\n"), at=location_of(at), opened=location_of(opened))
    if "quoted scalar" in context and "unexpected" in problem:
        return fault.opened, "the quote that opens here is never closed"
    for construct, message in _BY_CONTEXT:
        if construct in context:
            return (fault.at if construct == "a directive" else fault.opened), message
    for expression, explain_match in _BY_PROBLEM:
        match = re.match(expression, problem)
        if match is not None:
            return explain_match(fault, *match.groups())
    return fault.at, problem


class _Mark(Protocol):
    """A place in a text, as PyYAML's two implementations name it; both count from 0."""

    line: int
    column: int


def location_of(mark: _Mark | None) -> Location:
    """A mark of PyYAML's as a location; the start of the text without one."""
    return Location(1, 1) if mark is None else Location(mark.line + 1, mark.column + 1)


class _Fault:
    """One error: the location at which it was noticed, and the start of the construct."""

    def __init__(self, *, lines: Sequence[str], at: Location, opened: Location) -> None:
        self.at, self.opened, self._lines = at, opened, lines

    @property
    def line(self) -> str:
        """The line at which it was noticed."""
        return self._lines[self.at.line - 1] if self.at.line <= len(self._lines) else ""

    def before(self) -> tuple[int, str]:
        """Number and text of the last line above that is not blank or a comment; (0, "") = none."""
        for index in range(min(self.at.line - 1, len(self._lines)) - 1, -1, -1):
            line = self._lines[index]
            if line.strip() and not line.lstrip().startswith("#"):
                return index + 1, line
        return 0, ""


_Explanation = tuple[Location, str]


_TAG = "a value that begins with ! needs quotes (tags are not allowed here)"
_DIRECTIVE = "directives (%YAML, %TAG) are not allowed here: leave the line out"
_BLOCK_TEXT = (
    "after | or > a text begins on the next line, indented; a value that begins with | or >"
    " needs quotes"
)
_KEY = "a line without ': ': write 'key: value', or indent the line if it continues the value above"
#: Construct that was read → the mistake in it.
_BY_CONTEXT = (
    ("an alias", "a value that begins with * needs quotes (aliases are not allowed here)"),
    ("an anchor", "a value that begins with & needs quotes (anchors are not allowed here)"),
    ("a tag", _TAG),
    ("block scalar", _BLOCK_TEXT),
    ("a directive", _DIRECTIVE),
    ("a simple key", _KEY),
)


def _character(fault: _Fault, character: str) -> _Explanation:
    if character == "\\t":
        return fault.at, "a tab: YAML indents with spaces; write spaces instead"
    return fault.at, f"a value cannot begin with {character}: put quotes around it"


def _second_colon(fault: _Fault) -> _Explanation:
    number, above = fault.before()
    if fault.at.column > _KEY_CHARACTERS_MAX:
        return fault.at, f"a key has at most {_KEY_CHARACTERS_MAX} characters"
    if _COLON.search(fault.line[: fault.at.column - 1]):
        message = "a second ': ' on one line: put quotes around the value, or begin a new line"
    elif number and not _COLON.search(above):
        message = f"a key here cannot be: line {number} above has no ': '"
    else:
        message = f"indented deeper than line {number}, which has its value already: indent alike"
    return fault.at, message


def _open(fault: _Fault, closing: str, found: str) -> _Explanation:
    opening = {"]": "[", "}": "{"}[closing]
    if found == "<stream end>":
        return fault.opened, f"the '{opening}' that opens here is never closed"
    where = f"line {fault.opened.line}, column {fault.opened.column}"
    return fault.at, f"',' or '{closing}' is missing: the '{opening}' on {where} is still open"


def _no_value(fault: _Fault, found: str) -> _Explanation:
    if found in ("]", "}"):
        return _closes(fault, found)
    if found == ",":
        return fault.at, "nothing stands before this comma: leave it out, or write the value"
    if found == "<stream end>":
        return fault.at, "the file ends before the value does: a ']' or '}' is missing"
    return fault.at, f"a value is missing before {found!r}"


def _closes(fault: _Fault, found: str) -> _Explanation:
    return fault.at, f"'{found}' closes nothing that is open here; quote it if it is text"


def _elsewhere(fault: _Fault, found: str) -> _Explanation:
    column, since = fault.opened.column, fault.opened.line
    if found in ("]", "}"):
        return _closes(fault, found)
    if found == "-":
        message = f"a '- ' item among keys, which begin on line {since}: indent it below its key"
    elif found == "?":
        message = f"a key among '- ' items, which begin on line {since}: indent it below an item"
    elif found == "<scalar>":
        message = "text follows the end of a value: put quotes around all of it"
    else:
        message = (
            f"indented otherwise than the lines it belongs with: those begin in column {column}"
            f" (line {since})"
        )
    return fault.at, message


def _after_the_end(fault: _Fault, _: str) -> _Explanation:
    number, above = fault.before()
    if above.startswith("%"):
        return Location(number, 1), _DIRECTIVE
    if above.startswith("..."):
        return fault.at, f"the document ended on line {number} ('...'): one file holds one document"
    return fault.at, "indented otherwise than the first line: all keys of a block begin alike"


def _escape(fault: _Fault, character: str) -> _Explanation:
    message = (
        f"\\{character} is not a valid escape inside double quotes: write \\\\{character}, or use"
        " single quotes"
    )
    return fault.at, message


#: Text of the error → explanation.
_BY_PROBLEM: tuple[tuple[str, Callable[..., _Explanation]], ...] = (
    (r"found character '(.+)' that cannot start any token", _character),
    (r"mapping values are not allowed", _second_colon),
    (r"expected ',' or '([\]}])', but got '?(.*?)'?$", _open),
    (r"expected the node content, but found '(.+)'", _no_value),
    (r"expected <block end>, but found '(.+)'", _elsewhere),
    (r"expected '<document start>', but found '(.+)'", _after_the_end),
    (r"found unknown escape character '(.+)'", _escape),
    (
        r"expected escape sequence of (\d+) hexadecimal",
        lambda fault, count: (fault.at, f"the escape needs {count} hexadecimal digits after it"),
    ),
    (
        r"sequence entries are not allowed",
        lambda fault: (fault.at, "a '- ' item begins on a line of its own"),
    ),
    (
        r"(?:duplicate tag handle|found (?:duplicate YAML directive|incompatible YAML))",
        lambda fault: (fault.at, _DIRECTIVE),
    ),
    (r"found undefined tag handle", lambda fault: (fault.opened, _TAG)),
)

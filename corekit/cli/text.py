"""Text for terminals: control characters escaped, and width in columns.

Names of objects, messages, reasons and lines of logs come from users and from the cloud. A control
sequence among them could write to the clipboard (OSC 52), clear the screen, or forge a line; a
bidirectional override displays a name other than the real one. Widths are those of `rich.cells`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len as cells
from rich.cells import split_text

__all__ = ["Keep", "cells", "cut", "first", "folded_to", "packed_to", "padded", "printable"]

#: The part of a shortened text that stays.
Keep = Literal["start", "end", "both"]
#: Replaces the part that was cut out.
_ELLIPSIS = "…"
#: A word with the spaces before it.
_WORD = re.compile(r"\s*\S+")


def printable(text: str) -> str:
    """A foreign name as one line: every character that is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def visible(text: str) -> str:
    """Foreign lines: line ends, tabs and spaces stay, every other control character is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _lays_out(c) else _written_out(c) for c in text)


def _lays_out(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) == "Zs"


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


def padded(text: str, width: int) -> str:
    """The text with spaces up to this many columns."""
    return text + " " * (width - cells(text))


def cut(text: str, width: int, keep: Keep = "start") -> str:
    """At most this many columns of the text, with an ellipsis where something is missing."""
    if cells(text) <= width:
        return text
    room = max(0, width - 1)
    at_end = {"start": 0, "end": room, "both": room // 2}[keep]
    end = split_text(text, cells(text) - at_end)[1] if at_end else ""
    return first(text, room - at_end) + _ELLIPSIS + end


def first(text: str, width: int) -> str:
    """The beginning of the text, of at most this many columns; half a character is a space."""
    return text if cells(text) <= width else split_text(text, width)[0]


def packed_to(items: Sequence[str], width: int | None, indent: str) -> str:
    """Items side by side, as many on a line as fit; None: all on one line."""
    lines: list[str] = []
    for item in items:
        grown = f"{lines[-1]}  {item}" if lines else indent + item
        if lines and (width is None or cells(grown) <= width):
            lines[-1] = grown
        else:
            lines.append(indent + item)
    return "\n".join(lines)


def folded_to(text: str, width: int, hang: int | None = None) -> str:
    """Lines of words, broken between words only; continuation lines are indented.

    They begin at column `hang`, where it is given.
    """
    lines = text.splitlines()
    return "\n".join(part for line in lines for part in _folded_line(line, width, hang))


def _folded_line(line: str, width: int, hang: int | None) -> list[str]:
    if cells(line) <= width and "\t" not in line:
        return [line]
    line = line.expandtabs()
    indent = " " * (len(line) - len(line.lstrip()) + 4 if hang is None else hang)
    lines, current = [], ""
    for word in _WORD.findall(line):
        fits = cells(current + word) <= width
        if fits or not current.strip() or cells(indent + word.lstrip()) > width:
            current += word  # a word longer than every line stays in place
        else:
            lines.append(current)
            current = f"{indent}{word.lstrip()}"
    return [*lines, current]

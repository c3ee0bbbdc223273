"""Text of others on a terminal: what would steer it is written out, and how wide the rest is.

Names of objects, messages, reasons and lines of logs come from users and from the cloud. A control
sequence among them could write to the clipboard (OSC 52), clear the screen, or forge a line; a
bidirectional override shows another name than there is. Width: Unicode Standard Annex 11.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

#: Which part of a text that is too long stays.
Keep = Literal["start", "end", "both"]
#: Stands for what was cut out.
_CUT = "…"
#: A word with the spaces before it.
_WORD = re.compile(r"\s*\S+")
_NO_WIDTH = frozenset({"Mn", "Me", "Cf"})


def printable(text: str) -> str:
    """A foreign name, which is one line: everything that is no visible character is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def visible(text: str) -> str:
    """Foreign lines: line ends, tabs and spaces stay, every other control is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _lays_out(c) else _written_out(c) for c in text)


def _lays_out(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) == "Zs"


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cells(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def padded(text: str, width: int) -> str:
    """With spaces up to so many columns."""
    return text + " " * (width - cells(text))


def cut(text: str, width: int, keep: Keep = "start") -> str:
    """At most so many columns of it, with a mark where something is missing."""
    if cells(text) <= width:
        return text
    room = max(0, width - 1)
    if keep == "end":
        return _CUT + first(text[::-1], room)[::-1]
    if keep == "both":
        return first(text, room - room // 2) + _CUT + first(text[::-1], room // 2)[::-1]
    return first(text, room) + _CUT


def first(text: str, width: int) -> str:
    """What of its beginning takes at most so many columns."""
    taken = 0
    for at, character in enumerate(text):
        taken += _cells_of(character)
        if taken > width:
            return text[:at]
    return text


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
    """Lines of words, broken between words only.

    What continues a line stands further in: at column `hang`, where it is given.
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
            current += word  # a word that fits on no line stays where it is
        else:
            lines.append(current)
            current = f"{indent}{word.lstrip()}"
    return [*lines, current]

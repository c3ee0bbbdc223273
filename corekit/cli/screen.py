"""Output of commands: lines, tables, colours on a terminal, JSON for programs.

All printed text passes through here: control sequences in it are escaped, even for a pipe, since a
file may be displayed on a terminal later.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from corekit.cli.chart import Glyphs, glyphs_of
from corekit.cli.table import GAP, Column, fitted
from corekit.cli.text import cut, folded_to, packed_to, padded, printable, visible

_COLOURS = {
    word: colour
    for colour, words in {
        "green": "SUCCEEDED UP OK ACTIVE healthy granted",
        "red": "FAILED REJECTED LOST BAD unhealthy given_up impossible",
        "yellow": "CANCELLED SUPERSEDED INPUT_GONE WAITING STALE SUSPECT RESERVED ENDING"
        " restarting waiting busy parked",
        "cyan": "RUNNING",
        "blue": "DRAINED ENDED",
    }.items()
    for word in words.split()
}
#: Clears the rest of a line that was longer before.
_CLEAR_REST = "\x1b[K"
#: The version of every object printed by `echo_json`: within a version keys are added, but none is
#: removed and none changes its meaning.
JSON_VERSION = 1

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@dataclass(frozen=True, slots=True)
class Coloured:
    """A state word in its colour, on a terminal and without NO_COLOR; other words have none."""

    word: str
    width: int = 0  #: filled with spaces up to this many columns
    shown: str | None = None  #: printed instead of the word itself, in its colour

    @property
    def colour(self) -> str | None:
        """The name of its colour; None for any word that names no state."""
        return _COLOURS.get(self.word)

    def on(self, stream: TextIO) -> str:
        """The text for this stream."""
        text = padded(printable(self.word if self.shown is None else self.shown), self.width)
        colour = self.colour
        if colour is None or os.environ.get("NO_COLOR") or not stream.isatty():
            return text
        return click.style(text, fg=colour)


#: The parts of one line.
Line = Sequence[str | Coloured]


def echo(*parts: str | Coloured, err: bool = False) -> None:
    """One line, or several, on standard output or error."""
    line = styled(parts, sys.stderr if err else sys.stdout)
    click.echo(line, err=err, color=True)  # colours were decided above


def styled(parts: Line, stream: TextIO) -> str:
    """The text of a line for this stream."""
    return "".join(one.on(stream) if isinstance(one, Coloured) else visible(one) for one in parts)


def echo_raw(text: str, *, nl: bool = True) -> None:
    """A text as it is: a rendered file, a script, or a log line with --raw."""
    click.echo(text, nl=nl, color=True)


def echo_json(value: Mapping[str, object], *, indent: int | None = 2) -> None:
    """One JSON object on standard output; without `indent` on one line, for a stream of objects."""
    click.echo(json.dumps({"version": JSON_VERSION, **value}, indent=indent))


def redraw(line: str) -> None:
    """Replace the current line of the terminal on standard error; "" clears it."""
    shown = cut(visible(line), shutil.get_terminal_size().columns - 1)  # one line: no wrapping
    click.echo(f"\r{shown}{_CLEAR_REST}", nl=False, err=True, color=True)


def redrawable(*, err: bool = False) -> bool:
    """True when standard output, or error, is a terminal that can replace lines."""
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def folded(text: str) -> str:
    """Lines of words as wide as the terminal, broken between words; elsewhere unchanged.

    Continuation lines are indented.
    """
    width = terminal_width()
    return text if width is None else folded_to(visible(text), width)


def continued(text: str, column: int, *, err: bool = False) -> str:
    """A foreign line that begins at this column, folded there on a terminal."""
    width = terminal_width(err=err)
    if width is None:
        return text
    shown = folded_to(" " * column + visible(text), width, min(column, width // 2))
    return shown[column:]


def packed(items: Sequence[str], indent: str = "") -> str:
    """Items side by side, as wide as the terminal, broken between them only."""
    return packed_to(items, terminal_width(), indent)


def counted(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def terminal_width(*, err: bool = False) -> int | None:
    """Columns of the terminal on standard output, or error; None elsewhere."""
    stream = sys.stderr if err else sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None


def output_glyphs() -> Glyphs:
    """Block characters where standard output can show them, else ASCII."""
    return glyphs_of(getattr(sys.stdout, "encoding", None))


def echo_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str = "") -> None:
    """Columns as wide as their content, or as the terminal allows; `empty` without rows."""
    for line in table_lines(columns, rows, empty):
        echo(*line)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], empty: str = ""
) -> list[Line]:
    """The lines of such a table."""
    if not rows and empty:
        return [(empty,)]
    rows = [[printable(cell) for cell in row] for row in rows]
    table = fitted(columns, rows, terminal_width())
    lines: list[Line] = []
    for row in ([column.name for column in columns], *rows):
        cells = table.line(row)
        while cells and not cells[-1]:
            cells.pop()  # no spaces before the end of a line
        widths = [*table.widths[: max(0, len(cells) - 1)], 0]
        words = [Coloured(cell, width) for cell, width in zip(cells, widths, strict=False)]
        lines.append([part for word in words for part in (" " * GAP, word)][1:])
    return lines

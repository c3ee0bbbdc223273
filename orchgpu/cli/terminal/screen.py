"""What people see: aligned tables, colour only where it helps and is wanted, JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

from orchgpu.cli.terminal.table import GAP, Column, fitted
from orchgpu.cli.terminal.text import cut, folded_to, packed_to, padded, printable, visible

_COLOURS = {
    "SUCCEEDED": "green",
    "FAILED": "red",
    "REJECTED": "red",
    "CANCELLED": "yellow",
    "SUPERSEDED": "yellow",
    "INPUT_GONE": "yellow",
    "RUNNING": "cyan",
    "WAITING": "yellow",
    "healthy": "green",
    "unhealthy": "red",
    "given up": "red",
    "restarting": "yellow",
    "UP": "green",
    "LOST": "red",
    "STALE": "yellow",
}


#: A short help is never cut: it is wrapped.
_WHOLE = 1000
#: Clears what is left of a line that was longer before.
_CLEAR_REST = "\x1b[K"
#: Of every object printed by `say_json`: within a version keys are added, but none goes or changes.
JSON_VERSION = 1


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard output."
)


class Commands(click.Group):
    """A group that knows what a mistyped command could have meant, listed in sections."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.sections: dict[str, list[str]] = {}

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Commands that are listed together, in this order."""
        for command in commands:
            self.add_command(command)
        self.sections[title] = [command.name or "" for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, by section, and with the first sentence of each whole."""
        for title, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            found = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in names]
            with formatter.section(title):
                formatter.write_dl(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a did-you-mean."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.commands, n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None


def say_json(value: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """One JSON object on standard output; without `indent` on one line, for one of many."""
    click.echo(json.dumps({"version": JSON_VERSION, **value}, indent=indent))


@dataclass(frozen=True, slots=True)
class Word:
    """A word in its colour, where there is a terminal and no NO_COLOR; foreign text has none."""

    word: str
    width: int = 0  #: filled with spaces up to so many columns
    shown: str | None = None  #: instead of the word itself, in its colour

    def on(self, stream: TextIO) -> str:
        """As it is written there."""
        text = padded(printable(self.word if self.shown is None else self.shown), self.width)
        colour = _COLOURS.get(self.word)
        if colour is None or os.environ.get("NO_COLOR") or not stream.isatty():
            return text
        return click.style(text, fg=colour)


def say(*parts: str | Word, err: bool = False) -> None:
    """One line, or several, on standard output or error: the one place where text is printed.

    Whatever would steer a terminal is written out, at a pipe too: a file may be shown on one later.
    """
    stream = sys.stderr if err else sys.stdout
    line = "".join(one.on(stream) if isinstance(one, Word) else visible(one) for one in parts)
    click.echo(line, err=err, color=True)  # what has colours was decided here


def say_raw(text: str) -> None:
    """A foreign line as it is, for those who asked for it."""
    click.echo(text, color=True)


def redraw(line: str) -> None:
    """The current line of the terminal on standard error becomes this one; "" clears it."""
    shown = cut(visible(line), shutil.get_terminal_size().columns - 1)  # one line: no wrapping
    click.echo(f"\r{shown}{_CLEAR_REST}", nl=False, err=True, color=True)


def folded(text: str) -> str:
    """Lines of words as wide as the terminal, broken between words only; no terminal: as they are.

    What continues a line stands further in.
    """
    width = terminal_width()
    return text if width is None else folded_to(visible(text), width)


def continued(text: str, column: int, *, err: bool = False) -> str:
    """A foreign line that begins at this column, folded there; no terminal: as it is."""
    width = terminal_width(err=err)
    if width is None:
        return text
    shown = folded_to(" " * column + visible(text), width, min(column, width // 2))
    return shown[column:]


def packed(items: Sequence[str], indent: str = "") -> str:
    """Items side by side, broken between them only, as wide as the terminal."""
    return packed_to(items, terminal_width(), indent)


def counted(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def terminal_width(*, err: bool = False) -> int | None:
    """Columns of the terminal on standard output, or error; None where there is none."""
    stream = sys.stderr if err else sys.stdout
    return shutil.get_terminal_size().columns if stream.isatty() else None


def say_table(columns: Sequence[Column | str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Columns as wide as their content, or as the terminal allows; `empty` when there is no row.

    A name alone is a column that gives up nothing.
    """
    if not rows:
        say(empty)
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    stated = [Column(name=one) if isinstance(one, str) else one for one in columns]
    table = fitted(stated, rows, terminal_width())
    for row in ([column.name for column in stated], *rows):
        cells = table.line(row)
        while cells and not cells[-1]:
            cells.pop()  # no spaces before the end of a line
        widths = [*table.widths[: max(0, len(cells) - 1)], 0]
        words = [Word(cell, width) for cell, width in zip(cells, widths, strict=False)]
        say(*[part for word in words for part in (" " * GAP, word)][1:])

"""What people see: aligned tables, colour only where it helps and is wanted, JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

_COLOURS = {
    "SUCCEEDED": "green", "FAILED": "red", "REJECTED": "red", "CANCELLED": "yellow",
    "SUPERSEDED": "yellow", "INPUT_GONE": "yellow", "RUNNING": "cyan", "WAITING": "yellow",
    "healthy": "green", "unhealthy": "red", "given up": "red",
    "restarting": "yellow", "UP": "green", "LOST": "red", "STALE": "yellow",
}  # fmt: skip


#: Of every object printed by `say_json`: within a version keys are added, but none goes or changes.
JSON_VERSION = 1


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard output."
)


class Commands(click.Group):
    """A group that knows what a mistyped command could have meant."""

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


def coloured(word: str, padded: str | None = None) -> str:
    """The word (or its padded form) in its colour; plain without a terminal or with NO_COLOR."""
    text = word if padded is None else padded
    colour = _COLOURS.get(word)
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour)


def printable(text: str) -> str:
    """A foreign name as people may see it: what would steer the terminal is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def folded(text: str) -> str:
    """Lines of words as wide as the terminal, broken between words only; no terminal: as they are.

    What continues a line stands further in.
    """
    if not sys.stdout.isatty():
        return text
    import textwrap

    width = shutil.get_terminal_size().columns
    found: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        found += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return "\n".join(found)


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Columns as wide as their content; `empty` when there is no row."""
    if not rows:
        click.echo(empty)
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [coloured(cell, cell.ljust(width)) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def clock_time(wall_s: float) -> str:
    """Time of day for people."""
    return datetime.fromtimestamp(wall_s).astimezone().strftime("%H:%M:%S")

"""What `ssgm` writes and how it ends: JSON for programs, colours for people, a line for a fault."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from gpu_scheduler.client.commands.forms import JSON_VERSION

#: What a shell reports for a program ended by Ctrl-C.
INTERRUPTED_STATUS = 130

_COLOURS = {
    "UP": "green",
    "OK": "green",
    "ACTIVE": "green",
    "granted": "green",
    "STALE": "yellow",
    "SUSPECT": "yellow",
    "RESERVED": "yellow",
    "ENDING": "yellow",
    "waiting": "yellow",
    "busy": "yellow",
    "parked": "yellow",
    "LOST": "red",
    "BAD": "red",
    "impossible": "red",
    "DRAINED": "blue",
    "ENDED": "blue",
}


def say_json(value: Any, *, one_line: bool = False) -> None:
    """One object on standard output, with the version of its form, and nothing else there."""
    said = {"version": JSON_VERSION, **encode(value)}
    click.echo(json.dumps(said, indent=None if one_line else 2, ensure_ascii=False))


def coloured(word: str) -> str:
    """A state in its colour; plain without a terminal or with NO_COLOR."""
    colour = _COLOURS.get(word)
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return word
    return click.style(word, fg=colour)


#: Between two columns.
GAP = 2


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str = "",
    drop: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Columns as wide as their widest cell; `empty` instead of a head without rows.

    On a terminal they fit in its lines (`width`; None: what the terminal says): the columns named
    in `drop` are left out, one after the other, then the widest cells are shortened. Elsewhere
    nothing is left out.
    """
    if not rows and empty:
        return empty
    most = terminal_width() if width is None else width
    lines = [list(head), *map(list, rows)]
    for name in drop if most is not None else ():
        if sum(_widths(lines)) + GAP * (len(lines[0]) - 1) <= (most or 0):
            break
        at = lines[0].index(name)
        lines = [line[:at] + line[at + 1 :] for line in lines]
    widths = _fitted(_widths(lines), most)
    return "\n".join(
        (" " * GAP)
        .join(
            coloured(shortened(cell, width)) + " " * max(0, width - len(cell))
            for cell, width in zip(line, widths, strict=True)
        )
        .rstrip()
        for line in lines
    )


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _fitted(widths: list[int], most: int | None) -> list[int]:
    """The widest column gives way, a character at a time, while it is wider than any word needs."""
    narrow = 8
    if most is not None:
        while sum(widths) + GAP * (len(widths) - 1) > most and max(widths) > narrow:
            widths[widths.index(max(widths))] -= 1
    return widths


def shortened(text: str, width: int) -> str:
    """Of at most so many characters; what is cut off is an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def terminal_width() -> int | None:
    """Columns of the terminal that shows standard output, or COLUMNS; None elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


class Progress:
    """One line on standard error that says why we wait; rewritten in place on a terminal."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._said = False

    def say(self, sentence: str, waited: str) -> None:
        """Elsewhere than on a terminal the first sentence is told, once."""
        if self._in_place:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0: not known
            line = f"waiting {waited}: {sentence}"[: columns - 1]
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif not self._said:
            click.echo(f"ssgm: waiting: {sentence}", err=True)
        self._said = True

    def clear(self) -> None:
        """Take the line away again."""
        if self._in_place and self._said:
            click.echo("\r\x1b[K", nl=False, err=True)


def status_of(command: click.Command, arguments: Sequence[str]) -> int:
    """Run one command; its exit status (docs/exit-codes.md)."""
    as_json = "--json" in arguments
    try:
        # not `command.main`: that turns a closed pipe into status 1
        with command.make_context("ssgm", list(arguments)) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as ended:  # after --help, --version
        return ended.exit_code
    except AppError as error:
        return _refused(error, as_json)
    except click.ClickException as error:
        if as_json:
            say_json({"error": AppError(ErrorCode.INVALID, error.format_message()).as_json()})
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("ssgm: interrupted", err=True)
        return INTERRUPTED_STATUS
    return result if isinstance(result, int) else 0


def _refused(error: AppError, as_json: bool) -> int:
    if as_json:
        say_json({"error": encode(error.as_json())})
    click.echo(f"ssgm: {error.message}", err=True)
    return EXIT_STATUS[error.code]


#: How a value is told to people.
Text = Callable[[], str]


def show(value: Mapping[str, Any] | Any, as_json: bool, text: Text) -> None:
    """The answer of a command, in one of its two forms."""
    if as_json:
        say_json(value)
    else:
        click.echo(text())

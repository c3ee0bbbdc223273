"""How the commands that read a definition end and what they say of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from corekit.errors import EXIT_STATUS, AppError
from fdl.lint.diagnostics import Diagnostic
from orchgpu.cli.terminal.screen import say, say_json


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """An expected failure becomes its message and its exit status."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except AppError as error:
            fail(error, as_json=bool(kwargs.get("as_json")), status=EXIT_STATUS[error.code])

    return run


def fail(error: AppError, *, as_json: bool, status: int) -> NoReturn:
    """End the process with what went wrong."""
    if as_json:
        say_json({"error": error.as_json()})
    say(f"orchgpu: {error.message}", err=True)
    sys.exit(status)


def note_json(note: Diagnostic) -> dict[str, Any]:
    """A finding as data."""
    return {
        "severity": note.severity.value,
        "path": note.path,
        "line": note.at.line,
        "column": note.at.column,
        "message": note.message,
    }


def show_notes(notes: Sequence[Diagnostic], file: str) -> None:
    """Findings on standard error, one a line."""
    for note in notes:
        say(note.text(file), err=True)

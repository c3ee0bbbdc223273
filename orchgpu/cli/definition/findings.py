"""Findings about a definition, as lines and as data."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.cli.screen import echo
from fdl.diagnostics import Diagnostic


def note_json(note: Diagnostic) -> dict[str, object]:
    """A finding as data."""
    return {
        "severity": note.severity.value,
        "path": note.path,
        "line": note.at.line,
        "column": note.at.column,
        "message": note.message,
    }


def echo_notes(notes: Sequence[Diagnostic], file: str) -> None:
    """Print findings on standard error, one per line."""
    for note in notes:
        echo(note.text(file), err=True)

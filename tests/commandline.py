"""A command line of `orchgpu` run in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

from corekit.cli.program import status_of
from orchgpu.cli.main import cli


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command line."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Terminal(io.StringIO):
    """Output on a terminal."""

    def isatty(self) -> bool:
        return True


def run(arguments: Sequence[str]) -> int:
    """`orchgpu` with these arguments; its exit status."""
    return status_of(cli, "orchgpu", arguments)


def done(arguments: Sequence[str], standard_input: str | bytes = b"") -> Done:
    """The same, with its output."""
    given = standard_input.encode() if isinstance(standard_input, str) else standard_input
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(given))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "stdin", stdin),
    ):
        status = run(arguments)
    return Done(status, out.getvalue(), err.getvalue())

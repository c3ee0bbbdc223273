"""One run of a command line: its exit status, its errors for people and as JSON."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from corekit.aio.output import exiting_by_output
from corekit.cli.screen import echo, echo_json
from corekit.errors import EXIT_STATUS, AppError, invalid

#: The status that a shell reports for a program ended by Ctrl-C.
INTERRUPTED_STATUS = 130


def run_and_exit(command: click.Command, program: str) -> None:
    """Run the command line of this process and exit with its status."""
    with exiting_by_output(program):
        status = status_of(command, program, sys.argv[1:])
    sys.exit(status)


def status_of(command: click.Command, program: str, arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status (docs/reference/exit-codes.md)."""
    as_json = "--json" in arguments
    try:
        result = command.main(list(arguments), prog_name=program, standalone_mode=False)
    except AppError as error:
        return refused(error, program, as_json=as_json)
    except click.ClickException as error:
        if as_json:
            echo_json({"error": invalid(error.format_message()).as_json()})
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interrupt:  # click wraps ours in an Abort of its own
        # between the creation of a coroutine and its first step it is not an error either
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        echo(f"{program}: {interrupted(interrupt)}", err=True)
        return INTERRUPTED_STATUS
    return result if isinstance(result, int) else 0


def refused(error: AppError, program: str, *, as_json: bool) -> int:
    """Print an expected failure, also as JSON on request; returns its exit status."""
    if as_json:
        echo_json({"error": error.as_json()})
    echo(f"{program}: {error.message}", err=True)
    return EXIT_STATUS[error.code]


def interrupted(interrupt: BaseException) -> str:
    """The message of the interrupted command, or just "interrupted"."""
    cause: BaseException | None = interrupt
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt) and cause.args:
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return "interrupted"


class DaemonCommand(click.Command):
    """A daemon: a closed pipe is status 141, a full disk 74 (docs/reference/exit-codes.md)."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run as click does; the daemon continues when its log on standard error is lost."""
        with exiting_by_output(self.name or "", errors=False):
            return super().main(*args, **extra)


class DaemonGroup(DaemonCommand, click.Group):
    """The same for a daemon that has commands."""

"""Lines that are replaced in place, on the alternate screen of a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from types import TracebackType

import click

from corekit.cli.screen import Line, styled

_ENTER = "\x1b[?1049h\x1b[?25l"  # alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class LiveScreen:
    """`with LiveScreen() as screen: screen.show(lines)`; the last lines stay after its end."""

    def __init__(self) -> None:
        self._last: Sequence[Line] = ()

    def __enter__(self) -> LiveScreen:
        click.echo(_ENTER, nl=False, color=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        click.echo(_LEAVE, nl=False, color=True)
        for line in self._last:
            click.echo(styled(line, sys.stdout), color=True)

    def show(self, lines: Sequence[Line]) -> None:
        """Replace everything; lines below the end of the terminal are counted."""
        self._last = lines
        height = max(2, shutil.get_terminal_size().lines)
        shown = list(lines)
        if len(shown) > height:
            shown = [*shown[: height - 1], (f"… {len(lines) - height + 1} more lines",)]
        text = "\r\n".join(f"{styled(line, sys.stdout)}{_CLEAR_LINE}" for line in shown)
        click.echo(f"{_HOME}{text}{_CLEAR_BELOW}", nl=False, color=True)

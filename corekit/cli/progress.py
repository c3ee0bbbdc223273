"""A bar on standard error for work on many items; nothing without a terminal."""

from __future__ import annotations

from corekit.cli.screen import Coloured, echo, redraw, redrawable

BAR_WIDTH = 24


def bar(done: int, total: int) -> str:
    """`[######      ] 6/12`."""
    full = BAR_WIDTH * done // total if total else BAR_WIDTH
    return f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] {done}/{total}"


class Bar:
    """One line on standard error, replaced in place; permanent lines are printed above it.

    A single item has no bar: its own lines show more.
    """

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total = total
        self.shown = not quiet and total > 1 and redrawable()

    def draw(self, done: int, words: str) -> None:
        """Draw the bar with this many items done."""
        if self.shown:
            redraw(f"{bar(done, self.total)}{words}")

    def line(self, *parts: str | Coloured, err: bool) -> None:
        """Print a permanent line, on standard output or error."""
        self.end()
        echo(*parts, err=err)

    def end(self) -> None:
        """Remove the bar, so that the next output has a line of its own."""
        if self.shown:
            redraw("")


class WaitingLine:
    """One line on standard error with the reason of a wait; replaced in place on a terminal."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._in_place = redrawable()
        self._printed = False

    def show(self, sentence: str, waited: str) -> None:
        """Show the current reason; without a terminal only the first one is printed."""
        if self._in_place:
            redraw(f"waiting {waited}: {sentence}")
        elif not self._printed:
            echo(f"{self._program}: waiting: {sentence}", err=True)
        self._printed = True

    def clear(self) -> None:
        """Remove the line."""
        if self._in_place and self._printed:
            redraw("")


class SearchLine:
    """One line on standard error with the counts of a search of unknown length, on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and redrawable()

    def show(self, words: str) -> None:
        """Replace the line."""
        if self._shown:
            redraw(words)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            redraw("")

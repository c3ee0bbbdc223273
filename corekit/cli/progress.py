"""One line on standard error that is replaced in place; nothing without a terminal."""

from __future__ import annotations

from corekit.cli.screen import Coloured, echo, redraw, redrawable

BAR_WIDTH = 24


class StatusLine:
    """The state of work whose length is not known."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and redrawable(err=True)

    def show(self, words: str) -> None:
        """Replace the line."""
        if self.shown:
            redraw(words)

    def clear(self) -> None:
        """Remove the line, so that the next output has a line of its own."""
        self.show("")


class Bar(StatusLine):
    """The state of work on many items. A single item has no bar: its own lines show more."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet or total <= 1)
        self.total = total

    def draw(self, done: int, words: str) -> None:
        """Draw the bar with this many items done."""
        self.show(f"{bar(done, self.total)}{words}")

    def line(self, *parts: str | Coloured, err: bool) -> None:
        """Print a permanent line, on standard output or error, above the bar."""
        self.clear()
        echo(*parts, err=err)


def bar(done: int, total: int) -> str:
    """`[######      ] 6/12`."""
    full = BAR_WIDTH * done // total if total else BAR_WIDTH
    return f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] {done}/{total}"

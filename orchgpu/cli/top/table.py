"""A table of any number of rows, of which only those on the screen are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from corekit.cli.screen import Coloured
from corekit.cli.table import GAP, Column, Fitted, fitted
from corekit.cli.text import padded
from orchgpu.cli.top.rows import TableRow

#: Of more rows, only the widest texts of each column decide the widths.
MEASURED_MAX = 2000
_HEAD = Style(bold=True, underline=True)
_CURSOR = Style(reverse=True)


class RowTable(ScrollView, can_focus=True):
    """Rows under a head that stays, with a cursor that stays on its row."""

    DEFAULT_CSS = """
    RowTable {
        height: 1fr; overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("home,g", "end(-1)", show=False),
        Binding("end,G", "end(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Enter, or a second click, on a row."""

        def __init__(self, row: TableRow) -> None:
            self.row = row
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self._columns: Sequence[Column] = ()
        self._rows: Sequence[TableRow] = ()
        self._fitted = Fitted((), (), ())
        self._cursor = 0
        self._empty = ""

    def show(self, columns: Sequence[Column], rows: Sequence[TableRow], empty: str) -> None:
        """Replace the rows; the cursor stays on the row with the same key, if it is there."""
        selected = self.selected
        self._columns, self._rows, self._empty = columns, rows, empty
        if selected is not None:
            at = next((n for n, row in enumerate(rows) if row.key == selected.key), None)
            self._cursor = self._cursor if at is None else at
        self._cursor = max(0, min(self._cursor, len(rows) - 1))
        self._measure()

    @property
    def selected(self) -> TableRow | None:
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the head, then the rows from the scroll position on."""
        width = self.size.width
        if y == 0:
            names = [column.name for column in self._columns]
            return self._strip(names, _HEAD, width) if names else Strip.blank(width)
        at = y - 1 + self.scroll_offset.y
        if at < len(self._rows):
            return self._strip(self._rows[at].cells, _CURSOR if at == self._cursor else None, width)
        if at == 0 and self._empty:
            return Strip([Segment(self._empty)]).adjust_cell_length(width)
        return Strip.blank(width)

    def _strip(self, cells: Sequence[str], style: Style | None, width: int) -> Strip:
        shown = zip(self._fitted.line(cells), self._fitted.widths, strict=True)
        segments = []
        for text, wide in shown:
            colour = Coloured(text).colour if style is None else None
            own = Style(color=colour) if colour is not None else style
            segments += [Segment(padded(text, wide), own), Segment(" " * GAP, style)]
        return Strip(segments).adjust_cell_length(width, style)

    def _measure(self) -> None:
        texts = [row.cells for row in self._rows]
        if len(texts) > MEASURED_MAX:
            texts = [max(texts, key=lambda row: len(row[i])) for i in range(len(self._columns))]
        self._fitted = fitted(self._columns, texts, self.size.width or 80)
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self._follow()
        self.refresh()

    def _follow(self) -> None:
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)

    def on_resize(self, event: Resize) -> None:
        del event
        self._measure()

    def on_click(self, event: Click) -> None:
        """Move the cursor; a second click opens the row."""
        at = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and at < len(self._rows):
            if at == self._cursor:
                self.action_open()
            self._to(at)

    def _to(self, at: int) -> None:
        self._cursor = max(0, min(at, len(self._rows) - 1))
        self._follow()
        self.refresh(Region(0, 0, self.size.width, self.size.height))

    def action_move(self, by: int) -> None:
        self._to(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._to(self._cursor + by * max(1, self.size.height - 2))

    def action_end(self, which: int) -> None:
        self._to(0 if which < 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

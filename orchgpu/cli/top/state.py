"""State of the screen: its view, and of each table the filter and the order."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from corekit.cli.table import Column
from corekit.suggest import did_you_mean
from corekit.values import Value, replace
from orchgpu.cli.top.rows import FLEET, JOBS, QUEUE, TableRow


class ViewName(StrEnum):
    """The views, in the order of their keys 1 to 4."""

    FLEET = "fleet"
    QUEUE = "queue"
    JOBS = "jobs"
    JOB = "job"


#: The columns of each view with a table.
COLUMNS = {ViewName.FLEET: FLEET, ViewName.QUEUE: QUEUE, ViewName.JOBS: JOBS}


class TableState(Value):
    """Filter and order of one table; `column` None: the order in which its rows are read."""

    filter: str = ""
    column: int | None = None
    descending: bool = False

    def shown(self, rows: Sequence[TableRow]) -> list[TableRow]:
        """The rows that contain every word of the filter, in order; the case does not matter."""
        words = self.filter.lower().split()
        found = (
            [row for row in rows if all(word in _text(row) for word in words)] if words else rows
        )
        if self.column is None:
            return list(found)
        column = self.column
        return sorted(found, key=lambda row: row.order[column], reverse=self.descending)

    def sorted_by_next(self, columns: int) -> TableState:
        """Sorted by the next column, then as read again."""
        following = 0 if self.column is None else self.column + 1
        return replace(self, column=following if following < columns else None, descending=False)

    def reversed(self) -> TableState:
        """The other direction."""
        return replace(self, descending=not self.descending)

    def words(self, columns: Sequence[Column]) -> str:
        """Filter and order for people; "" without any."""
        parts = [f"/{self.filter}"] if self.filter else []
        if self.column is not None:
            parts.append(f"by {columns[self.column].name} {'↓' if self.descending else '↑'}")
        return "  ".join(parts)


def _text(row: TableRow) -> str:
    return "\n".join((row.key, *row.cells)).lower()


class Typed(Value):
    """A command after `:`; exactly one field is set, `problem` for one that is not known."""

    view: ViewName | None = None
    job: str | None = None
    leave: bool = False
    problem: str = ""


def typed(text: str) -> Typed:
    """`:fleet`, `:queue`, `:jobs`, `:job ID`, `:quit`; a prefix of a view's name is enough."""
    name, _, rest = text.strip().partition(" ")
    if name in ("q", "quit", "exit"):
        return Typed(leave=True)
    if name == ViewName.JOB and rest.strip():
        return Typed(job=rest.strip())
    if name in ("devices", "gpus"):
        return Typed(view=ViewName.FLEET)
    for view in (ViewName.FLEET, ViewName.QUEUE, ViewName.JOBS):
        if name and view.startswith(name):
            return Typed(view=view)
    hint = did_you_mean(name, [*ViewName, "quit"], otherwise="; views: fleet, queue, jobs, job ID")
    return Typed(problem=f"{name!r} is not a view{hint}")

"""Draws the table of jobs (`orchgpu/core/table.py`) in docs/explanation/orchestrator.md.

`python -m tools.job_machine` from the root of the sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.model import LeaseState
from orchgpu.core.events import LeaseChanged, TimerFired
from orchgpu.core.job import Phase
from orchgpu.core.table import ANY, GONE, Row, rows
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "explanation/orchestrator.md"


def all_rows() -> list[tuple[Row, str]]:
    """Every row, and the attempts that it is about."""
    with_device, without = rows(with_device=True), rows(with_device=False)
    common = [(row, "") for row in with_device if row in without]
    own = [(row, "with a device") for row in with_device if row not in without]
    return [*common, *own, *((row, "without") for row in without if row not in with_device)]


def diagram() -> Iterator[str]:
    """The moves from phase to phase, but those that any phase may make."""
    yield "```mermaid\nstateDiagram-v2"
    yield "    [*] --> READING: MessageReceived"
    yield "    [*] --> ADOPTING: Orphaned"
    moves = {
        (phase, Phase(to))
        for row, _ in all_rows()
        if row.phases != ANY
        for phase in row.phases
        for to in row.to
        if to != GONE
    }
    order = list(Phase)
    for phase, to in sorted(moves, key=lambda move: tuple(map(order.index, move))):
        yield f"    {phase.name} --> {to.name}"
    yield "    DELETING --> [*]\n```"


def listing() -> Iterator[str]:
    """One line for each row: the event, the phases, and those that may follow."""
    for row, attempts in all_rows():
        then = ", ".join(to.name if isinstance(to, Phase) else to for to in row.to) or "the same"
        note = f" ({attempts})" if attempts else ""
        yield f"    {_event(row):24} {_phases(row)} ─▶ {then}{note}"


def _event(row: Row) -> str:
    if isinstance(row.trigger, type):
        return row.trigger.__name__
    kind = LeaseChanged if isinstance(row.trigger, LeaseState) else TimerFired
    return f"{kind.__name__} {row.trigger.name}"


def _phases(row: Row) -> str:
    if row.phases == ANY:
        return "any"
    return ", ".join(phase.name for phase in Phase if phase in row.phases)


def page(text: str) -> str:
    """The page with the drawing as it must be."""
    return with_section(text, "job machine", "\n".join([*diagram(), "", *listing(), ""]))


if __name__ == "__main__":
    renew(PAGE, page)

"""Draws the table of jobs (`orchgpu/core/table.py`) in docs/explanation/orchestrator.md.

`python -m tools.job_machine` from the root of the sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.core.job import Phase
from orchgpu.core.table import ANY, GONE, Row, rows
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "explanation/orchestrator.md"


def all_rows() -> list[Row]:
    """The rows of attempts with a device, and those that only attempts without one have."""
    with_device = list(rows(with_device=True))
    return [*with_device, *(row for row in rows(with_device=False) if row not in with_device)]


def diagram() -> Iterator[str]:
    """The moves from phase to phase, but those that any phase may make."""
    yield "```mermaid\nstateDiagram-v2"
    yield "    [*] --> READING: MessageReceived"
    yield "    [*] --> ADOPTING: Orphaned"
    moves = {
        (phase, Phase(to))
        for row in all_rows()
        if row.phases != ANY
        for phase in row.phases
        for to in row.to
        if to != GONE
    }
    order = list(Phase)
    for phase, to in sorted(moves, key=lambda move: tuple(map(order.index, move))):
        yield f"    {phase.name} --> {to.name}"
    yield "    DELETING --> [*]\n```"


def page(text: str) -> str:
    """The page with the drawing as it must be."""
    return with_section(text, "job machine", "\n".join([*diagram(), ""]))


if __name__ == "__main__":
    renew(PAGE, page)

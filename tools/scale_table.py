"""Writes the tables of docs/explanation/scale.md, from the figures of benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.scale import ladder
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "explanation/scale.md"
FIGURES = DOCS / "reference/benchmarks.md"
_HEADS = {
    "ladder": ("rung", "limit", "figures", "what ends it"),
    "costs": ("part", "cost", "a second has", "in all"),
    "limits": ("limit", "reached at", "then"),
}


def renewed(page: str) -> str:
    """The page with all tables up to date."""
    scale = ladder.Scale(ladder.Figures(FIGURES.read_text(encoding="utf-8")))
    rows = {
        "ladder": ladder.rungs(scale),
        "costs": ladder.costs(scale),
        "limits": ladder.limits(scale),
    }
    for name, found in rows.items():
        page = with_section(page, name, _table(_HEADS[name], found))
    used = ("scale.rate", "scale.hour", "scheduler.fleet", "scheduler.job_cost", "scheduler.cycles")
    loads = ", ".join(f"`{name}` {scale.figures.loads[name]}" for name in used)
    text = (
        "Load of the machine when each began (2 is full, more inflates times), and its speed where"
    )
    text += f" it was noted: {loads}.\n"
    return with_section(page, "loads", f"{text}\n")


def _table(head: ladder.Row, rows: Iterable[ladder.Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text.replace("|  |", "| |") + "\n\n"


if __name__ == "__main__":
    renew(PAGE, renewed)

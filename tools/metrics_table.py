"""Writes the tables of metrics into docs/reference/metrics.md, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.metrics import METRICS, Metric
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "reference/metrics.md"
TITLES = {
    "ssgmd": "`ssgmd`",
    "monitor": "The monitor, in `gpud` and `ssgm-monitor`",
    "gpud": "`gpud`",
    "orchestrator": "The orchestrator",
    "console": "The web console",
}


def tables() -> str:
    """A section with a table for each program."""
    return "\n".join(line for program in TITLES for line in _section(program))


def renewed(page: str) -> str:
    """The page with the tables as they must be."""
    return with_section(page, "metrics", tables() + "\n")


def _section(program: str) -> Iterator[str]:
    yield f"\n### {TITLES[program]}\n"
    yield "| metric | type | unit | labels, and the bound on their values | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    yield from (_row(metric) for metric in METRICS.values() if metric.program == program)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"{name} ({bound})" for name, bound in metric.labels.items())
    cells = (f"`{metric.name}`", metric.kind.value, metric.unit, labels, metric.help)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


if __name__ == "__main__":
    renew(PAGE, renewed)

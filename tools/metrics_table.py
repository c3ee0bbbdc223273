"""Writes the tables of metrics into docs/reference/metrics.md, from the catalogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

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
    metrics = [metric for metric in METRICS.values() if metric.program == program]
    pairs = dict.fromkeys(pair for metric in metrics for pair in metric.labels.items())
    names = Counter(name for name, _ in pairs)
    common = {name: bound for name, bound in pairs if names[name] == 1}
    yield f"\n### {TITLES[program]}\n"
    yield "| metric | type | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    yield from (_row(metric, common) for metric in metrics)
    yield "\nValues of labels that have no bound in the table:\n"
    yield from (f"- `{name}`: {bound}" for name, bound in common.items())


def _row(metric: Metric, common: Mapping[str, str]) -> str:
    kind = metric.kind.value if metric.unit == "1" else f"{metric.kind.value}, {metric.unit}"
    labels = [
        f"`{name}`" if name in common else f"`{name}`: {bound}"
        for name, bound in metric.labels.items()
    ]
    cells = (f"`{metric.name}`", kind, "; ".join(labels), metric.help)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


if __name__ == "__main__":
    renew(PAGE, renewed)

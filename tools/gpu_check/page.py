"""The JSON file and the page of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import row
from tools.gpu_check.machine import Machine
from tools.gpu_check.runner import FAILED, LEFT_OUT, PASSED, Result

_CELL_MAX = 160  #: characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that is known of one run."""

    kind: str
    date: str
    commit: str
    command: str
    machine: Machine
    computer: dict[str, Any]  #: of `benchmarks.report.machine`
    quick: bool
    interrupted: bool
    parts: Sequence[Result]
    titles: dict[str, str]

    @property
    def complete(self) -> bool:
        """All parts passed, or look at something that this machine lacks."""
        return not self.interrupted and all(p.status in (PASSED, LEFT_OUT) for p in self.parts)

    @property
    def stem(self) -> str:
        """The name of its files: date, card, commit."""
        card = self.machine.cards[0].name if self.machine.cards else self.kind
        words = f"{self.date[:10]} {card if self.kind == 'cuda' else self.kind} {self.commit[:8]}"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def write(run: Run, folder: Path) -> tuple[Path, Path]:
    """Write both; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / f"{run.stem}.json", folder / f"{run.stem}.md"
    data.write_text(json.dumps(asdict(run), indent=2) + "\n", encoding="utf-8")
    text.write_text(page(run), encoding="utf-8")
    return data, text


def page(run: Run) -> str:
    """The run as Markdown."""
    lines = [f"# GPU check of {run.date[:10]}", "", *_head(run), "", *_summary(run)]
    for part in run.parts:
        lines += _section(part, run.titles.get(part.name, ""))
    return "\n".join(lines).rstrip() + "\n"


def _head(run: Run) -> list[str]:
    cards = [
        f"{card.name} ({card.memory_mib} MiB, compute capability {card.capability})"
        for card in run.machine.cards
    ]
    facts = {
        "device": "; ".join(cards) if run.kind == "cuda" else f"kind {run.kind}: no card was used",
        "driver": run.machine.driver or "unknown",
        "CUDA of the driver": run.machine.cuda or "unknown",
        "date": run.date,
        "commit": run.commit or "unknown",
        "command": f"`{run.command}`",
        "machine": f"{run.computer['cpu']}, {run.computer['cores']} cores",
        "system": f"{run.computer['system']}, Python {run.computer['python']}",
    }
    lines = ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {cell(str(value))} |" for name, value in facts.items()]
    if run.quick:
        lines += ["", "Small sizes (`--quick`): the figures are not comparable with others."]
    if run.interrupted:
        lines += ["", "The run was interrupted; `--resume` continues it."]
    return lines


def _summary(run: Run) -> list[str]:
    lines = ["| part | result | time | targets met | reason |", "| --- | --- | --- | --- | --- |"]
    for part in run.parts:
        with_target = [figure["met"] for figure in part.figures if "met" in figure]
        met = f"{sum(with_target)} of {len(with_target)}" if with_target else ""
        cells = [part.name, part.status, f"{part.seconds:.1f} s", met, cell(part.why)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _section(part: Result, title: str) -> list[str]:
    lines = ["", f"## {part.name}", "", f"{title}."]
    if part.status != PASSED:
        lines += ["", f"{part.status.capitalize()}: {part.why}"]
    if part.figures:
        lines += ["", "| metric | value | baseline | ratio | target | met |", "| --- " * 6 + "|"]
        lines += [f"| {' | '.join(map(cell, row(figure)))} |" for figure in part.figures]
    for note in part.notes:
        lines += ["", note]
    if part.status == FAILED and part.log:
        lines += ["", "```text", part.log.strip().replace("```", "'''"), "```"]
    return lines


def cell(text: str) -> str:
    """A text as a table's cell."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= _CELL_MAX else flat[: _CELL_MAX - 1] + "…"

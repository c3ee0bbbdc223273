"""Results of experiments, kept in `docs/papers/results.json` with commit, machine and date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.experiment import Found
from simulator.workloads.measures import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The last run of one experiment that ended."""

    commit: str  #: with `+` where the tree differed
    machine: str
    when: str  #: date in UTC
    took_s: float
    processor_s: float = 0.0  #: of it and of the programs that it ended; 0 = not measured then
    seeds: int
    quick: bool
    figures: Mapping[str, tuple[float, float, float]]  #: mean, and the ends of its interval
    notes: tuple[str, ...]


def kept(found: Found, **facts: Any) -> Kept:
    """The part of a run that is kept; `facts`: the other fields."""
    figures = {name: _three(value) for name, value in found.figures.items()}
    return Kept(figures=figures, seeds=found.seeds, notes=tuple(found.notes), **facts)


def _three(value: float | Interval) -> tuple[float, float, float]:
    if isinstance(value, Interval):
        return value.mean, value.low, value.high
    return value, value, value


def file_in(docs: Path) -> Path:
    """The file of results below a folder of pages."""
    return docs / "papers" / "results.json"


def read(path: Path) -> dict[str, Kept]:
    """All kept results by experiment; none without the file."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {name: _result(one) for name, one in content.items()}


def _result(content: Mapping[str, Any]) -> Kept:
    figures = {name: (one[0], one[1], one[2]) for name, one in content["figures"].items()}
    return Kept(**{**content, "figures": figures, "notes": tuple(content["notes"])})


def write(path: Path, results: Mapping[str, Kept]) -> None:
    """Replace the file, in the order of the names."""
    content = {name: asdict(results[name]) for name in sorted(results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)

"""The papers' numbers as `reference.yaml` states them, and the verdict on ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import is_met

FILE = Path(__file__).with_name("reference.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of a figure."""

    key: str  #: of the experiment's figures
    name: str
    unit: str
    paper: float | str | None  #: a text where the paper has a shape instead of a number
    accept: str  #: ">= 2", "2…3"; "" where nothing is claimed

    def holds(self, ours: float) -> bool | None:
        """True where ours is accepted; None without a claim."""
        return is_met(self.accept, ours) if self.accept else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A figure, table or statement of a paper."""

    name: str  #: "Figure 6.5"
    content: str
    experiment: str  #: the module; "" if there is none
    pictures: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    note: str  #: what to know about it; the reason where it cannot be reproduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """One paper with all of its figures."""

    number: str  #: "003", as the page and the command name it
    title: str
    authors: str
    claims: str
    ours: str
    figures: tuple[Shown, ...]

    @property
    def experiments(self) -> tuple[str, ...]:
        """The modules that its figures need, each once."""
        return tuple(dict.fromkeys(one.experiment for one in self.figures if one.experiment))


@cache
def papers(file: Path = FILE) -> tuple[Paper, ...]:
    """All papers, in the order of the file."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tuple(_paper(number, one) for number, one in content["papers"].items())


def _paper(number: str, content: Mapping[str, Any]) -> Paper:
    return Paper(
        number=str(number),
        title=content["title"],
        authors=content["authors"],
        claims=content["claims"].strip(),
        ours=content["ours"].strip(),
        figures=tuple(_shown(name, one) for name, one in content["figures"].items()),
    )


def _shown(name: str, content: Mapping[str, Any]) -> Shown:
    return Shown(
        name=name,
        content=content["content"],
        experiment=content.get("experiment", ""),
        pictures=tuple(content.get("pictures", ())),
        quantities=tuple(_quantity(*pair) for pair in content.get("rows", {}).items()),
        note=content.get("note", "").strip(),
    )


def _quantity(key: str, content: Mapping[str, Any]) -> Quantity:
    return Quantity(
        key=key,
        name=content["name"],
        unit=content.get("unit", ""),
        paper=content.get("paper"),
        accept=str(content.get("accept", "")),
    )

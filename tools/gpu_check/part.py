"""The parts of the check: declaration, device, answer; found by presence in a folder.

A part is a module with `PART` and `run`. Its declaration is read from the source: importing a part
may need libraries that are not here.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Figure

KINDS = ("cuda", "opencl", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The declaration of a part: keyword arguments that are literals, read without an import."""

    title: str
    order: int  #: smaller ones run first
    limit_s: float  #: of its process
    kinds: tuple[str, ...] = KINDS  #: of devices that it can run on
    modules: tuple[str, ...] = ()  #: that must be installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device and the extent of a part's run."""

    kind: str
    folder: Path  #: for temporary files
    quick: bool = False  #: small sizes: the code runs, and the figures are not comparable


@dataclass(slots=True)
class Answer:
    """The figures of a part, and notes in sentences."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def bounded(metric: str, value: float, unit: str, target: str | None, **compared: Any) -> Figure:
    """A figure with a target such as `<= 2`; None: of this device there is none."""
    if target is None:
        return Figure(metric=metric, value=value, unit=unit, **compared)
    comparison, bound = target.split()
    met = value <= float(bound) if comparison == "<=" else value >= float(bound)
    return Figure(metric=metric, value=value, unit=unit, target=target, met=met, **compared)


class LeftOutError(Exception):
    """This machine lacks what the part looks at; the reason is the message."""


PARTS = Path(__file__).parent / "parts"


def parts_in(folder: Path = PARTS) -> dict[str, Part]:
    """Names (of the modules) → declarations, in the order of the run."""
    found = {
        path.stem: declaration(path)
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def declaration(path: Path) -> Part:
    """The `PART` of a module. Raises ValueError with the path."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PART":
            call = node.value
            if not isinstance(call, ast.Call) or call.args:
                break
            try:
                return Part(**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: PART: {error}") from None
    raise ValueError(f"{path}: a part has a line PART = Part(…) with keyword arguments")


def missing_modules(part: Part) -> list[str]:
    """Those of its modules that are not installed."""
    return [name for name in part.modules if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False

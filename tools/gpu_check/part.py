"""A part of the check: its declaration, the device it runs on, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

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


class LeftOutError(Exception):
    """This machine lacks what the part looks at; the reason is the message."""

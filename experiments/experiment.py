"""An experiment: a run that gives figures by name, and pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from benchmarks.pictures import Picture
from simulator.workloads.measures import Interval

#: Of a random experiment.
SEEDS = 30


class Evidence(StrEnum):
    """The origin of a number."""

    MEASURED = "measured"  #: on the machine that ran it
    SIMULATED = "simulated"  #: by the production cores, on virtual time
    EMULATED = "emulated"  #: through the whole system, on devices with the paper's times
    ARITHMETIC = "arithmetic"  #: follows from stated numbers
    NOT_REPRODUCIBLE = "not reproducible"


class Beside(StrEnum):
    """When an experiment runs at the same time as others."""

    ALWAYS = "always"  #: it waits most of its time, or its clock is virtual
    QUICK = "quick"  #: in a quick run: it measures latencies or rates, which are exact alone
    NEVER = "never"  #: it compares the time of processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of an experiment: figures by the names of `reference.yaml`."""

    figures: Mapping[str, float | Interval]
    pictures: Sequence[Picture] = ()
    seeds: int = 1
    notes: Sequence[str] = ()  #: sentences for the page, with what this machine lacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The length of an experiment, and its processes."""

    quick: bool = False  #: a benchmark in seconds instead of minutes
    seeds: int = SEEDS  #: of a simulation whose load is drawn
    length: float = 1.0  #: of a simulation, part of the whole
    workers: int = 2  #: processes of a simulation
    keep: Path | None = None  #: of a simulation: a file of its settings that were run
    advance: Callable[[float], object] = float  #: gets the part of the work that is done

    def part(self, number: int, parts: int) -> Settings:
        """The settings of one of several equal parts of the work."""
        return replace(self, advance=lambda done: self.advance((number + done) / parts))


#: A few minutes for all experiments; a figure may be out of tolerance.
QUICK = Settings(quick=True, seeds=2, length=0.06)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The object `EXPERIMENT` of a module of this package."""

    summary: str
    evidence: Evidence
    run: Callable[[Settings], Found]
    beside: Beside = Beside.ALWAYS

    def has_neighbours(self, *, quick: bool) -> bool:
        """Whether others may run at the same time."""
        return self.beside is Beside.ALWAYS or (quick and self.beside is Beside.QUICK)

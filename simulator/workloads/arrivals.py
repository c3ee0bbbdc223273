"""Open loads: Poisson, phases, bursts, and lists of times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.workloads.model import Arrival, Run, Source, Workload


def _arrival(
    at_s: float, workload: str, stream: random.Random, tenant: str | None = None
) -> Arrival:
    """One request with its draws: the same number of draws for each, whatever its workload."""
    return Arrival(
        at_s=at_s,
        workload=workload,
        tenant=tenant,
        execution_normal=stream.gauss(0.0, 1.0),
        loading_normal=stream.gauss(0.0, 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent requests at a mean rate."""

    workload: str
    rate_per_s: float
    start_s: float = 0.0
    tenant: str | None = None

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        at_s = self.start_s
        while self.rate_per_s > 0:
            at_s += stream.expovariate(self.rate_per_s)
            if at_s >= until_s:
                return
            yield _arrival(at_s, self.workload, stream, self.tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run with one rate."""

    duration_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phases one after the other: warm-up, scaling, cool-down (HARDLESS' P0, P1, P2)."""

    workload: str
    phases: tuple[Phase, ...]
    regular: bool = False  #: equal gaps within a phase; else a Poisson stream
    start_s: float = 0.0
    tenant: str | None = None

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        begin_s = self.start_s
        for phase in self.phases:
            end_s = begin_s + phase.duration_s
            at_s = begin_s
            while phase.rate_per_s > 0:
                gap_s = 1.0 / phase.rate_per_s
                at_s += gap_s if self.regular else stream.expovariate(phase.rate_per_s)
                if at_s >= min(end_s, until_s):
                    break
                yield _arrival(at_s, self.workload, stream, self.tenant)
            begin_s = end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Several requests at one moment, again and again."""

    workload: str
    every_s: float
    size: int
    start_s: float = 0.0
    tenant: str | None = None

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        number = 0
        while (at_s := self.start_s + number * self.every_s) < until_s:
            for _ in range(self.size):
                yield _arrival(at_s, self.workload, stream, self.tenant)
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Requests at stated times."""

    workload: str
    at_s: tuple[float, ...]
    tenant: str | None = None

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        for at_s in sorted(self.at_s):
            if at_s < until_s:
                yield _arrival(at_s, self.workload, stream, self.tenant)


def rate_factor(run: Run) -> float:
    """The factor of all Poisson rates that gives the run its occupancy; 1 without one."""
    if run.occupancy is None:
        return 1.0
    work = sum(
        source.rate_per_s * _device_s(run.workloads[source.workload])
        for source in run.load
        if isinstance(source, Poisson)
    )
    return run.occupancy * run.devices / work if work else 1.0


def _device_s(workload: Workload) -> float:
    """Device seconds of a warm job on the first device that the run has times for."""
    part = 1.0 if workload.exclusive else workload.compute_pct / 100
    times = [timing.median_s for timing in workload.execution.values()]
    return (times[0] if times else 0.0) * part * workload.count


def open_arrivals(run: Run, seed: int) -> list[Arrival]:
    """All requests of the open sources by time; at one time in the order of the sources.

    Each source has a stream of its own: another source or policy changes none of its draws.
    """
    factor, found = rate_factor(run), []
    for index, source in enumerate(run.load):
        if isinstance(source, Source):
            stream = random.Random(f"{seed}/{run.name}/{index}")
            scaled = _scaled(source, factor)
            found += [replace(one, source=index) for one in scaled.arrivals(stream, run.duration_s)]
    found.sort(key=lambda arrival: arrival.at_s)
    if run.steps:
        return [replace(one, at_s=float(math.floor(one.at_s))) for one in found]
    return found


def _scaled(source: Source, factor: float) -> Source:
    if isinstance(source, Poisson):
        return replace(source, rate_per_s=source.rate_per_s * factor)
    return source

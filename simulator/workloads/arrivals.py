"""Open loads: Poisson, phases, bursts, and lists of times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.workloads.model import Arrival, Objectives, Run, Source, Workload
from simulator.workloads.workflows import whole_cluster_s


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
class OfWorkflow:
    """A source of requests of a workload, or of runs of a workflow with their objectives."""

    workload: str = ""
    workflow: str | None = None
    slo: Objectives | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(OfWorkflow):
    """Independent requests at a mean rate."""

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
class Phases(OfWorkflow):
    """Phases one after the other: warm-up, scaling, cool-down (HARDLESS' P0, P1, P2)."""

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
class Bursts(OfWorkflow):
    """Several requests at one moment, again and again."""

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
class Times(OfWorkflow):
    """Requests at stated times."""

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
        source.rate_per_s * _work_s(run, source)
        for source in run.load
        if isinstance(source, Poisson)
    )
    return run.occupancy * run.devices / work if work else 1.0


def _work_s(run: Run, source: OfWorkflow) -> float:
    if source.workflow is None:
        return _device_s(run.workloads[source.workload])
    return whole_cluster_s(run.workflows[source.workflow], run.hosts)


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
            own = [replace(one, source=index) for one in scaled.arrivals(stream, run.duration_s)]
            if isinstance(source, OfWorkflow) and source.workflow is not None:
                own = list(_runs(own, source, random.Random(f"{seed}/{run.name}/{index}/slo")))
            found += own
    found.sort(key=lambda arrival: arrival.at_s)
    if run.steps_s:
        return [replace(one, at_s=_floor(one.at_s, run.steps_s)) for one in found]
    return found


def _runs(arrivals: list[Arrival], source: OfWorkflow, stream: random.Random) -> Iterator[Arrival]:
    for one in arrivals:
        run = replace(one, workflow=source.workflow)
        yield run if source.slo is None else source.slo.draw(run, stream)


def _floor(at_s: float, steps_s: float) -> float:
    return float(math.floor(at_s / steps_s) * steps_s)


def _scaled(source: Source, factor: float) -> Source:
    if isinstance(source, Poisson):
        return replace(source, rate_per_s=source.rate_per_s * factor)
    return source

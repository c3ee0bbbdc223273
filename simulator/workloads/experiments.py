"""Many runs: the seeds of a run, several policies, sweeps; on several processors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace

from corekit.errors import invalid
from gpu_scheduler.model import Advance
from simulator.workloads.devices import hosts_of
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.measures import Interval, figures, over_seeds
from simulator.workloads.model import ClosedLoop, Run, Timing

#: Called after each run with the number of runs done.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one seed."""

    run: Run
    policy: str
    seed: int
    trace: str
    figures: Mapping[str, float]
    processor_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A setting of an experiment: a run under one policy."""

    policy: str  #: in results: the name, with its parameters if there are several of it
    run: Run  #: with its policy
    value: float | None = None  #: of the swept quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A setting over all seeds."""

    point: Point
    outcomes: tuple[Outcome, ...]

    @property
    def intervals(self) -> dict[str, Interval]:
        """Every figure with its confidence interval."""
        return over_seeds([outcome.figures for outcome in self.outcomes])


def simulate(
    run: Run, seed: int, policy: str | None = None, progress: Callable[[float], None] | None = None
) -> tuple[Outcome, list[Job]]:
    """One run of one seed."""
    began_s = time.process_time()
    engine = Engine(run, seed, policy, progress=progress)
    jobs = engine.simulate()
    outcome = Outcome(
        run=run,
        policy=engine.machine.state.parameters.policy,
        seed=seed,
        trace=engine.trace(),
        figures=figures(engine),
        processor_s=time.process_time() - began_s,
    )
    return outcome, jobs


def _outcome(point: Point, seed: int) -> Outcome:
    return simulate(point.run, seed)[0]


def experiment(
    points: Sequence[Point],
    seeds: Sequence[int],
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Result]:
    """Every setting with every seed; the results are in the order of the settings."""
    outcomes: dict[tuple[int, int], Outcome] = {}
    with _mapper(points, seeds, workers) as done:
        for key, outcome in done:
            outcomes[key] = outcome
            if progress is not None:
                progress(len(outcomes))
    return [
        Result(point=point, outcomes=tuple(outcomes[index, seed] for seed in seeds))
        for index, point in enumerate(points)
    ]


@contextmanager
def _mapper(
    points: Sequence[Point], seeds: Sequence[int], workers: int
) -> Iterator[Iterator[tuple[tuple[int, int], Outcome]]]:
    keys = [(index, seed) for index in range(len(points)) for seed in seeds]
    if workers <= 1:
        yield ((key, _outcome(points[key[0]], key[1])) for key in keys)
        return
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(_outcome, points[key[0]], key[1]): key for key in keys}
        try:
            yield ((futures[future], future.result()) for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def with_devices(run: Run, devices: int) -> Run:
    """The run with this many devices in its first hosts; other hosts stay."""
    if devices < 1:
        raise invalid(f"a run needs at least one device, not {devices}")
    first = replace(run.hosts[0], devices=devices, hosts=1)
    return replace(run, hosts=(first, *run.hosts[1:]))


def with_clients(run: Run, clients: int) -> Run:
    """The run with this many clients in each of its closed loops."""
    if not any(isinstance(source, ClosedLoop) for source in run.load):
        raise invalid("the run has no closed loop (kind: closed), so it has no number of clients")
    load = tuple(
        replace(source, clients=clients) if isinstance(source, ClosedLoop) else source
        for source in run.load
    )
    return replace(run, load=load)


def with_start(run: Run, start: Timing) -> Run:
    """The run in which functions start in this time, and jobs take leases ahead."""
    workloads = {
        name: replace(one, start=start, advance=one.advance or Advance())
        for name, one in run.workloads.items()
    }
    return replace(run, workloads=workloads)


def with_occupancy(run: Run, occupancy: float) -> Run:
    """The run with Poisson rates that occupy this part of the devices."""
    return replace(run, occupancy=occupancy)


def device_names(run: Run) -> list[str]:
    """The ids of all devices, by host."""
    return [str(device) for host in hosts_of(run.hosts) for device in host.devices]

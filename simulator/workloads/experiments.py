"""Many runs: the seeds of a run, several policies, sweeps; on several processors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace

from corekit.errors import invalid
from corekit.suggest import one_of_known
from gpu_scheduler.model import Advance
from gpu_scheduler.parameters import installed_name
from gpu_scheduler.policy_registry import installed_policies
from simulator.workloads.arrivals import Poisson
from simulator.workloads.devices import hosts_of
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.measures import Interval, figures, over_seeds
from simulator.workloads.model import (
    NO_TIME,
    ClosedLoop,
    Run,
    Source,
    Timing,
    Timings,
    Workload,
)

#: Called after each run with the number of runs done.
Progress = Callable[[int], None]
_WITH_CLIENTS = (ClosedLoop, Poisson)


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
    """The run with this many clients: in each closed loop, and of each Poisson source, whose rate
    they share, each as a tenant of its own."""
    if clients < 1:
        raise invalid(f"a run needs at least one client, not {clients}")
    load = tuple(one for source in run.load for one in _of_clients(source, clients))
    if not any(isinstance(one, _WITH_CLIENTS) for one in load):
        raise invalid(
            "the run has no source of the kind `closed` or `poisson`, so it has no clients"
        )
    return replace(run, load=load)


def _of_clients(source: Source | ClosedLoop, clients: int) -> Iterator[Source | ClosedLoop]:
    if isinstance(source, ClosedLoop):
        yield replace(source, clients=clients)
    elif isinstance(source, Poisson):
        for number in range(clients):
            tenant = f"{source.tenant or source.workload}-{number}"
            yield replace(source, rate_per_s=source.rate_per_s / clients, tenant=tenant)
    else:
        yield source


def with_loading(run: Run, factor: float) -> Run:
    """The run whose workloads take this many times as long to load."""
    return _with_workloads(run, lambda one: replace(one, loading=_longer(one.loading, factor)))


def with_execution(run: Run, factor: float) -> Run:
    """The run whose jobs take this many times as long to execute."""
    return _with_workloads(run, lambda one: replace(one, execution=_longer(one.execution, factor)))


def _longer(timings: Timings, factor: float) -> Timings:
    if factor <= 0:
        raise invalid(f"a factor of times is above 0, not {factor:g}")
    return {place: replace(one, median_s=one.median_s * factor) for place, one in timings.items()}


def _with_workloads(run: Run, change: Callable[[Workload], Workload]) -> Run:
    return replace(run, workloads={name: change(one) for name, one in run.workloads.items()})


def with_start(run: Run, start: Timing, new_pct: float = 0.0, new_start: Timing = NO_TIME) -> Run:
    """The run in which functions start in this time, and jobs take leases ahead.

    `new_pct`: of them start a sandbox, and take `new_start`.
    """
    return _with_workloads(
        run,
        lambda one: replace(
            one,
            start=start,
            new_pct=new_pct,
            new_start=new_start,
            advance=one.advance or Advance(),
        ),
    )


def with_occupancy(run: Run, occupancy: float) -> Run:
    """The run with Poisson rates that occupy this part of the devices."""
    return replace(run, occupancy=occupancy)


def device_names(run: Run) -> list[str]:
    """The ids of all devices, by host."""
    return [str(device) for host in hosts_of(run.hosts) for device in host.devices]


def with_parameters(run: Run, given: Sequence[str]) -> Run:
    """The run with parameters of the scheduler, each as NAME=VALUE."""
    parameters = dict(run.parameters)
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise invalid(f"--set {text!r}: write NAME=VALUE")
        parameters[name] = value
    return replace(run, parameters=parameters)


def points_of(run: Run, policies: Sequence[str]) -> list[Point]:
    """A setting for each policy; `NAME:PARAMETER=VALUE,…` sets parameters of it."""
    points = []
    for text in policies or tuple(installed_policies()):
        name, _, own = text.partition(":")
        name = policy_name(name)
        given = [f"policy.{name}.{one}" for one in own.split(",") if one]
        points.append(Point(policy=text, run=replace(with_parameters(run, given), policy=name)))
    return points


def policy_name(name: str) -> str:
    """The name of an installed policy. Raises INVALID with the closest one."""
    known = installed_policies()
    found = installed_name(name, known)
    if found is None:
        raise invalid(f"{name!r} is not an installed policy{one_of_known(name, tuple(known))}")
    return found

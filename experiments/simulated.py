"""Runs of the simulator for experiments: policies side by side, and sweeps, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import simulator
from benchmarks.pictures import Curve
from experiments.experiment import Settings
from simulator.workloads.experiments import Point, Result, experiment, points_of
from simulator.workloads.measures import Interval
from simulator.workloads.model import Run
from simulator.workloads.run_file import load_run

RUNS = Path(simulator.__file__).parent / "runs"
#: Figures by name, of each policy.
ByPolicy = Mapping[str, Mapping[str, Interval]]


def run_of(name: str) -> Run:
    """A run file of the simulator."""
    return load_run(RUNS / f"{name}.yaml")


def compared(run: Run, policies: Sequence[str], settings: Settings) -> ByPolicy:
    """Every figure of some policies, over the same seeds."""
    results = _results(points_of(shortened(run, settings.length), policies), settings)
    return {one.point.policy: one.intervals for one in results}


def swept(
    run: Run,
    policies: Sequence[str],
    values: Sequence[float],
    change: Callable[[Run, float], Run],
    settings: Settings,
) -> Mapping[str, Mapping[float, Mapping[str, Interval]]]:
    """Every figure of some policies over a quantity of the run."""
    points = [
        replace(point, run=change(point.run, value), value=value)
        for point in points_of(shortened(run, settings.length), policies)
        for value in values
    ]
    found: dict[str, dict[float, Mapping[str, Interval]]] = {}
    for one in _results(points, settings):
        assert one.point.value is not None
        found.setdefault(one.point.policy, {})[one.point.value] = one.intervals
    return found


def shortened(run: Run, length: float) -> Run:
    """The run, or its beginning."""
    return replace(
        run, duration_s=run.duration_s * length, measure_from_s=run.measure_from_s * length
    )


def _results(points: Sequence[Point], settings: Settings) -> list[Result]:
    first = points[0].run.seed
    seeds, all_runs = range(first, first + settings.seeds), len(points) * settings.seeds

    def advance(done: int) -> None:
        settings.advance(done / all_runs)

    return experiment(
        points,
        seeds,
        workers=settings.workers,
        progress=advance,
    )


def curves(
    of_policies: Mapping[str, Mapping[float, Mapping[str, Interval]]], figure: str
) -> list[Curve]:
    """A figure over the swept quantity, a curve for each policy."""
    return [
        Curve(
            name=policy,
            points=tuple((value, every[figure].mean) for value, every in by_value.items()),
        )
        for policy, by_value in of_policies.items()
    ]


def named(
    found: ByPolicy, figures: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, Interval]:
    """`FIGURE.POLICY` by short names: of the figures, and of the policies."""
    return {
        f"{short}.{names[policy]}": every[figure]
        for policy, every in found.items()
        for figure, short in figures.items()
    }

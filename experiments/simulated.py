"""Runs of the simulator for experiments: policies side by side, and sweeps, over seeds."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import simulator
from benchmarks.pictures import Curve
from experiments.experiment import SEEDS, Settings
from simulator.workloads.experiments import Point, experiment, points_of
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
    points = points_of(shortened(run, settings.length), policies)
    return {point.policy: intervals for point, intervals in _results(points, settings)}


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
    for point, intervals in _results(points, settings):
        assert point.value is not None
        found.setdefault(point.policy, {})[point.value] = intervals
    return found


def shortened(run: Run, length: float) -> Run:
    """The run, or its beginning."""
    return replace(
        run, duration_s=run.duration_s * length, measure_from_s=run.measure_from_s * length
    )


def _results(
    points: Sequence[Point], settings: Settings
) -> list[tuple[Point, Mapping[str, Interval]]]:
    """Each setting over all seeds; one that was kept is read instead of run."""
    kept, first = _read_kept(settings), points[0].run.seed
    seeds = range(first, first + settings.seeds)
    keys = [hashlib.sha256(repr((one.run, seeds)).encode()).hexdigest()[:24] for one in points]
    missing = [place for place, key in enumerate(keys) if key not in kept]
    at_once, before = max(1, SEEDS // settings.seeds), len(points) - len(missing)
    for start in range(0, len(missing), at_once):

        def advance(done: int, start: int = start) -> None:
            settings.advance((before + start + done / settings.seeds) / len(points))

        batch = missing[start : start + at_once]
        results = experiment(
            [points[place] for place in batch], seeds, workers=settings.workers, progress=advance
        )
        for place, result in zip(batch, results, strict=True):
            kept[keys[place]] = result.intervals
            _keep(settings, keys[place], result.intervals)
    settings.advance(1.0)
    return [(point, kept[key]) for point, key in zip(points, keys, strict=True)]


def _read_kept(settings: Settings) -> dict[str, Mapping[str, Interval]]:
    """The settings that a file has; a line that was cut off is left out."""
    if settings.keep is None or not settings.keep.exists():
        return {}
    found: dict[str, Mapping[str, Interval]] = {}
    for line in settings.keep.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            key, figures = json.loads(line)
            found[key] = {name: Interval(*value) for name, value in figures.items()}
    return found


def _keep(settings: Settings, key: str, intervals: Mapping[str, Interval]) -> None:
    if settings.keep is not None:
        figures = {name: astuple(one) for name, one in intervals.items()}
        with settings.keep.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([key, figures]) + "\n")


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

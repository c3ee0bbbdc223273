"""Goodput of promised runs by load: ours beside FIFO, EDF and naive Clockwork."""

from __future__ import annotations

from benchmarks.goodput import BASELINES, LOADS, OURS, all_runs, gain
from benchmarks.pictures import Curve, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from simulator.workloads.measures import Interval, interval

#: Seconds of arrivals.
DURATION_S = 0.4


def run(settings: Settings) -> Found:
    seeds, length_s = range(1, settings.seeds + 1), settings.length * DURATION_S
    figures: dict[str, float | Interval] = {}
    met: dict[str, list[tuple[float, float]]] = {}
    missed = 0.0
    for number, load in enumerate(LOADS):
        calls = [(policy, load, seed, length_s) for policy in (OURS, *BASELINES) for seed in seeds]
        runs = all_runs(calls, settings.workers)
        of_policies = {
            policy: [runs[policy, load, seed, length_s] for seed in seeds]
            for policy in (OURS, *BASELINES)
        }
        figures[f"gain.{load:g}"], _ = gain(of_policies)
        missed += sum(one["missed"] for one in of_policies[OURS])
        for policy, found in of_policies.items():
            mean = interval([one["goodput_pct"] for one in found]).mean
            met.setdefault(policy, []).append((load, mean))
        settings.advance((number + 1) / len(LOADS))
    figures["missed"] = missed
    gains = [one.mean for name, one in figures.items() if isinstance(one, Interval)]
    figures["gain_min"] = min(gains)
    picture = Picture(
        name="thesis-goodput",
        title="Runs that meet latency and cost, ensembles and cascades",
        x="load, part of the capacity",
        y="% of runs",
        curves=[Curve(name=policy, points=points) for policy, points in met.items()],
    )
    return Found(figures=figures, pictures=(picture,), seeds=settings.seeds)


EXPERIMENT = Experiment(
    summary="goodput of promises beside FIFO, EDF and naive Clockwork",
    evidence=Evidence.SIMULATED,
    run=run,
)

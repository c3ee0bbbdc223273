"""Figures 3 and 4 of the paper for our runs: latencies, RFast, successes, queue, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.hardless.phases import Job
from benchmarks.plot import Curve, write_curves
from orchgpu.jobs.measures import latencies
from simulator.workloads.rates import count_over_time, rfast_curve

_POINTS_MAX = 600  #: of one curve


def write_plots(folder: Path, runs: Mapping[str, Sequence[Job]]) -> list[Path]:
    """One picture for each measure, with a curve for each run; times are unscaled."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "hardless-latency": ("RLat and DLat of a job, s, over its upload, s", _latencies(runs)),
        "hardless-rfast": ("RFast, 1/s, over time, s", _rfast(runs)),
        "hardless-success": ("RSuccess over time, s", _successes(runs)),
        "hardless-queue": ("Jobs that wait for execution, over time, s", _queues(runs)),
        "hardless-devices": ("Running executions by kind of device, over time, s", _devices(runs)),
    }
    written = []
    for name, (title, curves) in pictures.items():
        path = folder / f"{name}.svg"
        write_curves(path, title, curves, logarithmic=False)
        written.append(path)
    return written


def moments_s(jobs: Sequence[Job], name: str) -> list[float]:
    """One moment of all jobs that succeeded, sorted."""
    found = [job.moments[name] for job in jobs if job.succeeded]
    return sorted(at_s for at_s in found if at_s is not None)


def _curve(name: str, points: Sequence[tuple[float, float]]) -> Curve:
    every = max(1, len(points) // _POINTS_MAX)
    return Curve(name=name, points=tuple(points[::every]) or ((0.0, 0.0),))


def _latencies(runs: Mapping[str, Sequence[Job]]) -> list[Curve]:
    curves = []
    for run, jobs in runs.items():
        for measure in ("RLat", "DLat"):
            points = [
                (start_s, latency_s)
                for job in jobs
                if (start_s := job.moments["RStart"]) is not None
                if (latency_s := latencies(job.moments)[measure]) is not None
            ]
            curves.append(_curve(f"{measure}, {run}", sorted(points)))
    return curves


def _rfast(runs: Mapping[str, Sequence[Job]]) -> list[Curve]:
    curves = []
    for run, jobs in runs.items():
        ends_s = moments_s(jobs, "REnd")
        last_s = ends_s[-1] if ends_s else 0.0
        curves.append(_curve(run, rfast_curve(ends_s, 0.0, last_s)))
    return curves


def _successes(runs: Mapping[str, Sequence[Job]]) -> list[Curve]:
    return [
        _curve(run, [(at_s, n) for n, at_s in enumerate(moments_s(jobs, "REnd"), 1)])
        for run, jobs in runs.items()
    ]


def _queues(runs: Mapping[str, Sequence[Job]]) -> list[Curve]:
    return [
        _curve(run, count_over_time(moments_s(jobs, "RStart"), moments_s(jobs, "EStart")))
        for run, jobs in runs.items()
    ]


def _devices(runs: Mapping[str, Sequence[Job]]) -> list[Curve]:
    curves = []
    for run, jobs in runs.items():
        for model in sorted({job.model for job in jobs if job.model}):
            there = [job for job in jobs if job.model == model]
            counts = count_over_time(moments_s(there, "EStart"), moments_s(there, "EEnd"))
            curves.append(_curve(f"{model}, {run}", counts))
    return curves

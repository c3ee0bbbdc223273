"""Figures 3 and 4 of the paper for our runs: latencies, RFast, successes, queue, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.hardless.phases import Job
from benchmarks.pictures import Curve, Picture, draw
from orchgpu.jobs.measures import latencies
from simulator.workloads.rates import count_over_time, rfast_curve

_POINTS_MAX = 600  #: of one curve


def pictures(runs: Mapping[str, Sequence[Job]]) -> list[Picture]:
    """One picture for each measure, with a curve for each run; times are unscaled."""
    described = {
        "hardless-latency": ("Latencies of a job", "upload, s", "s", _latencies(runs)),
        "hardless-rfast": ("RFast: successes in the last 10 s", "s", "1/s", _rfast(runs)),
        "hardless-success": ("RSuccess: successes so far", "s", "jobs", _successes(runs)),
        "hardless-queue": ("Jobs that wait for execution", "s", "jobs", _queues(runs)),
        "hardless-devices": ("Executions by kind of device", "s", "running", _devices(runs)),
    }
    return [
        Picture(name=name, title=title, x=x, y=y, curves=curves)
        for name, (title, x, y, curves) in described.items()
    ]


def write_plots(folder: Path, runs: Mapping[str, Sequence[Job]]) -> list[Path]:
    """Draw them into a folder; the files."""
    return [draw(picture, folder) for picture in pictures(runs)]


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

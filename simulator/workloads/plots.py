"""Plots of runs and experiments as SVG or PNG files, with matplotlib (`orchgpu[simulate]`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from corekit.errors import AppError, ErrorCode
from orchgpu.history.measures import Span, per_step_s, steps
from simulator.workloads.experiments import Result
from simulator.workloads.jobs import Job
from simulator.workloads.measures import part_of, queue_over_time

#: matplotlib has no complete types.
Axes: TypeAlias = Any
#: Most leases that a chart of devices shows; the first ones.
GANTT_JOBS_MAX = 2000
#: Points of the curve of utilisation, and of those of a fleet.
_BINS, _FLEET_STEPS = 120, 240
_SETTINGS = {"svg.hashsalt": "orchgpu", "svg.fonttype": "none", "figure.autolayout": True}


def matplotlib_modules() -> tuple[Any, Any]:  # matplotlib has no complete types
    """matplotlib and its figures. Raises UNAVAILABLE without them."""
    try:
        return importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError as error:
        text = "plots need matplotlib: pip install 'orchgpu[simulate]', or leave --plots out"
        raise AppError(ErrorCode.UNAVAILABLE, text) from error


def save(path: Path, draw: Callable[[Axes], None], *, size: tuple[float, float] = (7, 4)) -> None:
    """Draw one figure into a file. Raises UNAVAILABLE without matplotlib.

    The same data gives the same file: it contains no date.
    """
    matplotlib, figure_module = matplotlib_modules()
    with matplotlib.rc_context(_SETTINGS):
        figure = figure_module.Figure(figsize=size)
        draw(figure.add_subplot())
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)


def plot_run(jobs: Mapping[str, Sequence[Job]], devices: Sequence[str], folder: Path) -> list[Path]:
    """The plots of one run under some policies; the written files. `devices` are all ids."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Callable[[Axes], None]] = {
        "latency-cdf.svg": lambda axes: _cdf(axes, jobs),
        "queue.svg": lambda axes: _queue(axes, jobs),
        "cold-starts.svg": lambda axes: _cold(axes, jobs),
        "utilisation.svg": lambda axes: _utilisation(axes, jobs, len(devices)),
    }
    for policy, of_policy in jobs.items():
        drawn[f"devices-{policy}.svg"] = _gantt_of(of_policy, devices, policy)
    for name, draw in drawn.items():
        save(folder / name, draw)
    return [folder / name for name in drawn]


def plot_sweep(
    results: Sequence[Result], swept: str, figure: str, path: Path, *, logarithmic: bool = False
) -> None:
    """One figure over the swept quantity: a line for each policy with its confidence interval."""

    def draw(axes: Axes) -> None:
        for policy in dict.fromkeys(result.point.policy for result in results):
            own = [result for result in results if result.point.policy == policy]
            found = [result.intervals[figure] for result in own]
            values = [result.point.value for result in own]
            axes.plot(values, [one.mean for one in found], marker="o", markersize=3, label=policy)
            lows, highs = [one.low for one in found], [one.high for one in found]
            axes.fill_between(values, lows, highs, alpha=0.2)
        if logarithmic:
            axes.set_yscale("symlog", linthresh=0.1)
        axes.set_xlabel(swept)
        axes.set_ylabel(figure)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()

    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, draw)


def plot_compared(results: Sequence[Result], path: Path) -> None:
    """Cold starts against mean wait, a point with confidence intervals for each policy."""

    def draw(axes: Axes) -> None:
        for result in results:
            cold, wait = result.intervals["cold"], result.intervals["wait_mean_s"]
            axes.errorbar(
                cold.mean,
                wait.mean,
                xerr=[[cold.mean - cold.low], [cold.high - cold.mean]],
                yerr=[[wait.mean - wait.low], [wait.high - wait.mean]],
                fmt="o",
                label=result.point.policy,
            )
        axes.set_xlabel("cold starts")
        axes.set_ylabel("mean wait in s")
        axes.set_yscale("log")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()

    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, draw)


def plot_fleet(hosts: Sequence[Span], jobs: Sequence[Job], path: Path, *, title: str) -> None:
    """Hosts that come and go, leases and waiting requests over time, as means of short steps."""
    leases, waits = [], []
    for job in jobs:
        if job.opened_s is not None and job.ended_s is not None:
            leases.append((job.opened_s, job.ended_s))
        until_s = job.ended_s if job.opened_s is None else job.opened_s
        if until_s is not None:
            waits.append((job.asked_s, until_s))
    last_s = max((until_s for _, until_s in (*hosts, *leases)), default=1.0)
    step_s = last_s / _FLEET_STEPS
    edges_s = steps(0.0, last_s, step_s)
    hours = [(begin_s + after_s) / 7200 for begin_s, after_s in pairwise(edges_s)]

    def draw(axes: Axes) -> None:
        for name, spans in (("waiting requests", waits), ("leases", leases), ("hosts", hosts)):
            sums_s = per_step_s(spans, edges_s)
            axes.plot(hours, [sum_s / step_s for sum_s in sums_s], label=name)
        axes.set_title(title)
        axes.set_xlabel("time in h")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()

    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, draw)


def _cdf(axes: Axes, jobs: Mapping[str, Sequence[Job]]) -> None:
    for policy, of_policy in jobs.items():
        values = sorted(
            job.ended_s - job.asked_s
            for job in of_policy
            if job.ended_s is not None and job.outcome == "done"
        )
        parts = [(number + 1) / len(values) for number in range(len(values))]
        axes.step(values, parts, where="post", label=policy)
    axes.set_xlabel("latency in s")
    axes.set_ylabel("part of the requests")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _queue(axes: Axes, jobs: Mapping[str, Sequence[Job]]) -> None:
    for policy, of_policy in jobs.items():
        points = queue_over_time(of_policy)
        axes.step([at_s for at_s, _ in points], [n for _, n in points], where="post", label=policy)
    axes.set_xlabel("time in s")
    axes.set_ylabel("waiting requests")
    axes.legend()


def _cold(axes: Axes, jobs: Mapping[str, Sequence[Job]]) -> None:
    for policy, of_policy in jobs.items():
        times, total = [0.0], [0]
        for job in sorted(of_policy, key=lambda job: job.opened_s or 0.0):
            if job.cold and job.opened_s is not None:
                times.append(job.opened_s)
                total.append(total[-1] + job.cold)
        axes.step(times, total, where="post", label=policy)
    axes.set_xlabel("time in s")
    axes.set_ylabel("cold starts so far")
    axes.legend()


def _utilisation(axes: Axes, jobs: Mapping[str, Sequence[Job]], devices: int) -> None:
    for policy, of_policy in jobs.items():
        used = [job for job in of_policy if job.opened_s is not None and job.ended_s is not None]
        last_s = max((job.ended_s or 0.0 for job in used), default=0.0)
        width_s = last_s / _BINS or 1.0
        busy = [0.0] * _BINS
        for job in used:
            _spread(busy, width_s, job)
        shown = [100 * value / (width_s * devices) for value in busy]
        axes.plot([width_s * (place + 0.5) for place in range(_BINS)], shown, label=policy)
    axes.set_xlabel("time in s")
    axes.set_ylabel("utilisation in %")
    axes.set_ylim(0, 105)
    axes.legend()


def _spread(busy: list[float], width_s: float, job: Job) -> None:
    """Add the device time of a job to the bins that it overlaps."""
    assert job.opened_s is not None
    assert job.ended_s is not None
    first, last = int(job.opened_s / width_s), int(job.ended_s / width_s)
    for place in range(first, min(last, len(busy) - 1) + 1):
        begin_s, end_s = place * width_s, (place + 1) * width_s
        overlap_s = min(end_s, job.ended_s) - max(begin_s, job.opened_s)
        busy[place] += max(0.0, overlap_s) * part_of(job)


def _gantt_of(jobs: Sequence[Job], devices: Sequence[str], policy: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        rows = {device: place for place, device in enumerate(devices)}
        workloads = list(dict.fromkeys(job.workload.name for job in jobs))
        colours = {name: f"C{place % 10}" for place, name in enumerate(workloads)}
        served = [job for job in jobs if job.opened_s is not None and job.ended_s is not None]
        for job in served[:GANTT_JOBS_MAX]:
            assert job.opened_s is not None
            for device in job.devices:
                where, colour = rows[device], colours[job.workload.name]
                axes.barh(where, job.execution_s, left=job.opened_s + job.loading_s, color=colour)
                if job.cold:
                    axes.barh(where, job.loading_s, left=job.opened_s, color=colour, alpha=0.35)
        axes.set_yticks(range(len(devices)), devices)
        axes.set_xlabel("time in s; pale: loading")
        axes.set_title(policy)
        for name in workloads[:10]:
            axes.barh(0, 0, color=colours[name], label=name)
        axes.legend(loc="upper right")

    return draw

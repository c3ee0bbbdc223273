"""Figures of a run from its jobs, and confidence intervals over seeds."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from corekit.ids import DeviceId
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.rates import count_over_time, rfast_max
from simulator.workloads.workflows import figures as workflow_figures

#: Tenants and workloads with figures of their own, at most; above it only all together.
GROUPS_MAX = 16
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its 95 % bootstrap confidence interval."""

    mean: float
    low: float
    high: float
    samples: int

    def __str__(self) -> str:
        """As text: `3.10 ±0.21`, half the width of the interval."""
        if self.samples < 2:
            return number_text(self.mean)
        return f"{number_text(self.mean)} ±{number_text((self.high - self.low) / 2)}"


def number_text(value: float) -> str:
    """A number with three significant digits or more, for tables; `∞` of a division by zero."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def interval(values: Sequence[float]) -> Interval:
    """The mean of some values and the interval of the means of their resamples."""
    mean = statistics.fmean(values) if values else 0.0
    if len(values) < 2:
        return Interval(mean, mean, mean, len(values))
    stream = random.Random(len(values))
    means = sorted(
        statistics.fmean(stream.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    low, high = (means[int(_RESAMPLES * q)] for q in (0.025, 0.975))
    return Interval(mean, low, high, len(values))


def quantile(ordered: Sequence[float], part: float) -> float:
    """A quantile of sorted values by the nearest rank; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)]


def figures(engine: Engine) -> dict[str, float]:
    """All figures of one run, by name; those of a group have its name after a dot."""
    run = engine.run_
    jobs = [job for job in engine.jobs if job.asked_s >= run.measure_from_s]
    found = {**_counts(jobs), **_times(jobs), **_rates(engine, jobs)}
    if run.workflows:
        found |= workflow_figures(engine.workflows.runs, run.measure_from_s, run.duration_s)
    found |= _held(jobs)
    if engine.fleet is not None:
        found |= engine.fleet.figures()
    found["evictions"] = float(sum(device.evictions for device in engine.devices.values()))
    found["decisions"] = float(engine.decisions)
    groups: tuple[tuple[str, Callable[[Job], str]], ...] = (
        ("workload", lambda job: job.workload.name),
        ("tenant", lambda job: job.tenant),
    )
    for label, key in groups:
        for name, members in sorted(_grouped(jobs, key).items()):
            waits = sorted(job.waited_s for job in members if job.opened_s is not None)
            found[f"wait_mean_s.{label}.{name}"] = _mean(waits)
            found[f"wait_max_s.{label}.{name}"] = waits[-1] if waits else 0.0
            found[f"cold.{label}.{name}"] = float(sum(job.cold for job in members))
    return found


def _grouped(jobs: Iterable[Job], key: Callable[[Job], str]) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return groups if 1 < len(groups) <= GROUPS_MAX else {}


def _counts(jobs: Sequence[Job]) -> dict[str, float]:
    served = [job for job in jobs if job.opened_s is not None]
    cold = sum(1 for job in served if job.cold)
    return {
        "requests": float(len(jobs)),
        "done": float(sum(job.outcome == "done" for job in jobs)),
        "unserved": float(len(jobs) - len(served)),
        "cold": float(sum(job.cold for job in served)),
        "hit_pct": 100.0 * (len(served) - cold) / len(served) if served else 0.0,
    }


def _times(jobs: Sequence[Job]) -> dict[str, float]:
    waits = sorted(job.waited_s for job in jobs if job.opened_s is not None)
    latencies = sorted(
        job.ended_s - job.asked_s
        for job in jobs
        if job.ended_s is not None and job.outcome == "done"
    )
    executions = sorted(job.execution_s for job in jobs if job.outcome == "done")
    found = {
        "wait_mean_s": _mean(waits),
        "wait_max_s": waits[-1] if waits else 0.0,
        "latency_mean_s": _mean(latencies),
    }
    for part in (50, 95, 99):
        found[f"wait_p{part}_s"] = quantile(waits, part / 100)
        found[f"latency_p{part}_s"] = quantile(latencies, part / 100)
        found[f"execution_p{part}_s"] = quantile(executions, part / 100)
    return found


def _rates(engine: Engine, jobs: Sequence[Job]) -> dict[str, float]:
    run, ends = engine.run_, sorted(job.ended_s for job in jobs if job.ended_s is not None)
    last_s = max(ends, default=0.0)
    until_s = last_s if run.drain else run.duration_s
    window_s = max(until_s - run.measure_from_s, 1e-9)
    inside = [end_s for end_s in ends if run.measure_from_s <= end_s <= until_s]
    loaded_until_s = min(run.duration_s, until_s)
    loaded_s = max(loaded_until_s - run.measure_from_s, 1e-9) * run.devices
    window = (run.measure_from_s, loaded_until_s)
    busy_s = _busy_s(engine.jobs, *window)
    if any(not part_of(job) for job in jobs if job.devices):
        busy_s += _left_over_s(engine.jobs, *window)
    return {
        "makespan_s": last_s,
        "throughput_per_s": len(inside) / window_s,
        "throughput_max_per_s": rfast_max(inside),
        "utilisation_pct": 100 * busy_s / loaded_s,
        "loading_pct": 100 * sum(job.loading_s * job.cold for job in jobs) / loaded_s,
        "queue_mean": sum(_waiting_s(job, until_s) for job in jobs) / window_s,
    }


def _held(jobs: Sequence[Job]) -> dict[str, float]:
    """The seconds of devices, each held from a booking to its end, and of functions."""
    held_s = sum(job.held_s * len(job.devices) for job in jobs)
    done = [job for job in jobs if job.outcome == "done"]
    execution_s = sum(job.execution_s * len(job.devices) for job in done)
    session_s = sum((job.loading_s + job.execution_s) * len(job.devices) for job in done)
    waited_s = sum(job.function_wait_s for job in jobs)
    return {
        "device_held_s": held_s,
        "device_idle_s": max(0.0, held_s - session_s),
        "busy_pct_of_held": 100.0 * execution_s / held_s if held_s else 0.0,
        "function_wait_s": waited_s,
        "function_s": waited_s + sum(job.loading_s + job.execution_s for job in done),
        "withdrawn": float(sum(job.withdrawn for job in jobs)),
    }


def _busy_s(jobs: Iterable[Job], from_s: float, until_s: float) -> float:
    """Device seconds in use within a window, by the part of a device that each job had."""
    total = 0.0
    for job in jobs:
        if job.opened_s is not None:
            end_s = until_s if job.ended_s is None else min(until_s, job.ended_s)
            total += max(0.0, end_s - max(from_s, job.opened_s)) * part_of(job)
    return total


def _left_over_s(jobs: Iterable[Job], from_s: float, until_s: float) -> float:
    """Device seconds of jobs without a guarantee: while one runs, all that guarantees leave."""
    changes: dict[DeviceId, list[tuple[float, int, float]]] = {}
    for job in (one for one in jobs if one.opened_s is not None):
        begin_s = max(from_s, job.opened_s or 0.0)
        end_s = until_s if job.ended_s is None else min(until_s, job.ended_s)
        part = part_of(job) / len(job.devices)
        for device in job.devices if end_s > begin_s else ():
            best_effort = int(not part)
            changes.setdefault(device, []).append((begin_s, best_effort, part))
            changes[device].append((end_s, -best_effort, -part))
    total = 0.0
    for listed in changes.values():
        running, guaranteed, last_s = 0, 0.0, from_s
        for at_s, began, part in sorted(listed):
            if running:
                total += (at_s - last_s) * max(0.0, 1.0 - guaranteed)
            running, guaranteed, last_s = running + began, guaranteed + part, at_s
    return total


def part_of(job: Job) -> float:
    """The devices that a job fills, by guaranteed compute."""
    part = 1.0 if job.workload.exclusive else job.workload.compute_pct / 100
    return part * len(job.devices)


def _waiting_s(job: Job, until_s: float) -> float:
    end_s = job.opened_s if job.opened_s is not None else job.ended_s
    return (until_s if end_s is None else end_s) - job.asked_s


def queue_over_time(jobs: Iterable[Job]) -> list[tuple[float, int]]:
    """The number of waiting requests after each change, by time."""
    listed = list(jobs)
    ends_s = [job.opened_s if job.opened_s is not None else job.ended_s for job in listed]
    return count_over_time(
        [job.asked_s for job in listed], [end_s for end_s in ends_s if end_s is not None]
    )


def over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Every figure over all seeds; a group that one seed lacks counts where it is."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: interval([run[name] for run in runs if name in run]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0

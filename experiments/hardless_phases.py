"""HARDLESS' phases through the whole system, on emulated devices that take the paper's times."""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.hardless.__main__ import phase_figures
from benchmarks.hardless.devices import TestSystem
from benchmarks.hardless.phases import Job, Phase, run_phases
from benchmarks.hardless.plots import pictures
from experiments.experiment import Evidence, Experiment, Found, Settings
from orchgpu.jobs.measures import latencies

#: Uploads per second in P0, P1 and P2: the paper states those of its example alone (10, 20, 20),
#: which would leave 13,600 jobs in the queue; these leave it time to empty.
RATES_PER_S = (1.5, 3.5, 3.5)
MINUTES, QUICK_MINUTES = (2.0, 10.0, 2.0), (0.1, 0.2, 0.05)
#: Factor of all times: the paper's 14 minutes take seven, for both runs fourteen.
SCALE = 0.5
COLD_MS = 5000.0


def run(settings: Settings) -> Found:
    minutes = QUICK_MINUTES if settings.quick else MINUTES
    phases = [
        Phase(length_s=60 * length, rate_per_s=rate)
        for length, rate in zip(minutes, RATES_PER_S, strict=True)
    ]
    runs: dict[str, list[Job]] = {}
    figures: dict[str, float] = {}
    for number, name in enumerate(("gpus", "all")):
        system = TestSystem(name=name, vpu=name == "all", cold_ms=COLD_MS, time_scale=SCALE)
        _, jobs = asyncio.run(run_phases(system, phases, 1, quiet=True))
        settings.advance((number + 1) / 2)
        runs[name] = jobs
        figures |= {one.metric: one.value for one in phase_figures(system, phases, jobs)}
        found = [latencies(job.moments)["RLat"] for job in jobs if job.succeeded]
        figures[f"rlat_mean_s_{name}"] = statistics.fmean(one for one in found if one is not None)
        figures[f"ceiling_{name}"] = system.ceiling_per_s
    figures["rfast_gain"] = figures["rfast_max_all"] - figures["rfast_max_gpus"]
    figures["rlat_ratio"] = figures["rlat_mean_s_all"] / figures["rlat_mean_s_gpus"]
    return Found(figures=figures, pictures=pictures(runs))


EXPERIMENT = Experiment(
    summary="HARDLESS' phases on two GPUs, and with a VPU", evidence=Evidence.EMULATED, run=run
)

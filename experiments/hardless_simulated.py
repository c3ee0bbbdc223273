"""HARDLESS' 2 + 10 + 2 minutes in the simulator, over seeds."""

from __future__ import annotations

from dataclasses import replace

from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import compared, run_of

POLICY = "warm_first"


def run(settings: Settings) -> Found:
    whole = run_of("hardless")
    gpus = replace(whole, hosts=tuple(host for host in whole.hosts if host.kind != "vpu"))
    figures = {}
    for number, (name, one) in enumerate((("gpus", gpus), ("all", whole))):
        found = compared(one, (POLICY,), settings.part(number, 2))[POLICY]
        figures[f"rfast_max_{name}"] = found["throughput_max_per_s"]
        figures[f"latency_mean_{name}"] = found["latency_mean_s"]
        figures[f"cold_{name}"] = found["cold"]
    gain = figures["rfast_max_all"].mean - figures["rfast_max_gpus"].mean
    return Found(figures={**figures, "rfast_gain": gain}, seeds=settings.seeds)


EXPERIMENT = Experiment(
    summary="HARDLESS' whole 14 minutes, simulated", evidence=Evidence.SIMULATED, run=run
)

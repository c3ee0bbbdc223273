"""HARDLESS' scan before take: two workloads in turn, with a policy that prefers warm slots and
without."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings

METRICS = ("cold_starts_warm_first", "cold_starts_fifo", "rate_warm_first", "rate_fifo")


def run(settings: Settings) -> Found:
    events = "24" if settings.quick else "120"
    found = measured("hardless", "--only", "switches", "--events", events)
    settings.advance(1.0)
    figures = found.named({name: name for name in METRICS})
    figures["rate_ratio"] = figures["rate_warm_first"] / figures["rate_fifo"]
    return Found(figures=figures)


EXPERIMENT = Experiment(
    summary="two workloads in turn, warm slots first and not", evidence=Evidence.EMULATED, run=run
)

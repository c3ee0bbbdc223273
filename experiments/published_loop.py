"""Seconds that a device is held for a job: ours beside a port of the published loop."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings


def run(settings: Settings) -> Found:
    jobs, theirs = ("3", "1") if settings.quick else ("10", "2")
    found = measured("release_latency", "--jobs", jobs, "--published-jobs", theirs)
    settings.advance(1.0)
    names = ("jobs_per_device_minute_ratio", "jobs_per_device_minute", "held_efficiency")
    return Found(figures=found.named({name: name for name in names}))


EXPERIMENT = Experiment(
    summary="our orchestrator beside the published loop", evidence=Evidence.MEASURED, run=run
)

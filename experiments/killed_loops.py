"""Jobs and devices when the orchestrator is killed: ours beside a port of the published loop."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings


def run(settings: Settings) -> Found:
    seconds = "20" if settings.quick else "180"
    found = measured("killed_loops", "--seconds", seconds)
    settings.advance(1.0)
    return Found(figures=found.values)


EXPERIMENT = Experiment(
    summary="our orchestrator and the published loop under kill -9",
    evidence=Evidence.MEASURED,
    run=run,
)

"""Reading a model from the file system of a shared sandbox, and from outside of it."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings


def run(settings: Settings) -> Found:
    found = measured("model_reads", "--runs", "1" if settings.quick else "5")
    settings.advance(1.0)
    return Found(figures=found.values)


EXPERIMENT = Experiment(
    summary="a model in a shared sandbox, and outside of it",
    evidence=Evidence.MEASURED,
    run=run,
)

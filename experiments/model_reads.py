"""Reading a model from the file system of a shared sandbox, and from outside of it."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings

WHOLE = ("--runs", "3")
QUICK = ("--runs", "1", "--mib", "50")


def run(settings: Settings) -> Found:
    found = measured("model_reads", *QUICK if settings.quick else WHOLE)
    settings.advance(1.0)
    return Found(figures=found.values)


EXPERIMENT = Experiment(
    summary="a model in a shared sandbox, and outside of it",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.QUICK,
)

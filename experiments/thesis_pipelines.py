"""Milliseconds of a step of a workflow, from the result before it to its start."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings


def run(settings: Settings) -> Found:
    chains = "1" if settings.quick else "6"
    values = measured("workflows", "--only", "chains", "--chains", chains).values
    settings.advance(1.0)
    #: Table 3.1 counts whole pipelines: an ensemble is three steps deep, a cascade at most three.
    return Found(figures={"hop_ms": values["hop_ms_p50"], "pipeline_ms": 3 * values["hop_ms_p50"]})


EXPERIMENT = Experiment(
    summary="a step of a workflow, from result to start",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.QUICK,
)

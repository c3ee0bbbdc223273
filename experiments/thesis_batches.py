"""Throughput of a model by the number of functions whose calls are joined into batches."""

from __future__ import annotations

from benchmarks.pictures import Curve, Picture
from benchmarks.remote_gpu.batching import FUNCTIONS
from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings


def run(settings: Settings) -> Found:
    values = measured("remote_gpu.batching", "--seconds", "1" if settings.quick else "3").values
    settings.advance(1.0)
    alone = [(n, values[f"results_{n}"]) for n in FUNCTIONS]
    joined = [(n, values[f"results_{n}_joined"]) for n in FUNCTIONS]
    picture = Picture(
        name="thesis-batches",
        title="Results per second of concurrent functions, on one CPU core",
        x="functions at once",
        y="results/s",
        curves=(
            Curve(name="each call alone", points=alone),
            Curve(name="joined into batches", points=joined),
        ),
    )
    largest = FUNCTIONS[-1]
    figures = {
        "gain_largest": values[f"results_{largest}_joined"] / values[f"results_{largest}"],
        "gain_over_one": values[f"results_{largest}_joined"] / values["results_1_joined"],
    }
    return Found(figures=figures, pictures=(picture,))


EXPERIMENT = Experiment(
    summary="throughput of joined calls",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.QUICK,
)

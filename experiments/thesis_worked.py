"""The thesis' worked example: four requests on two devices, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import run_of
from simulator.workloads.experiments import points_of, simulate
from simulator.workloads.jobs import Job

#: Start, model and device of each row that the thesis prints.
BALANCE = ((0, "resnet", 0), (1, "bert", 1), (6, "resnet", 0), (8, "resnet", 0))
PRINTED = {
    "rr": ((0, "resnet", 0), (1, "bert", 1), (6, "resnet", 0), (19, "resnet", 1)),
    "balance": BALANCE,
    "exclusive": BALANCE,
    "srtf": ((0, "resnet", 0), (2, "resnet", 1), (6, "resnet", 0), (8, "bert", 1)),
}
FIGURES = {"makespan_s": "total", "cold": "cold", "wait_mean_s": "wait"}


def run(settings: Settings) -> Found:
    figures: dict[str, float] = {}
    for number, (policy, printed) in enumerate(PRINTED.items()):
        named = f"{policy}:strict_head=yes" if policy == "srtf" else policy
        point = points_of(run_of("worked"), [named])[0]
        outcome, jobs = simulate(point.run, 1)
        rows = _rows(jobs)
        figures[f"rows.{policy}"] = sum(row in rows for row in printed)
        figures |= {f"{short}.{policy}": outcome.figures[name] for name, short in FIGURES.items()}
        settings.advance((number + 1) / len(PRINTED))
    return Found(figures=figures)


def _rows(jobs: Sequence[Job]) -> list[tuple[float | None, str, int]]:
    return [
        (job.granted_s, job.workload.name, int(str(job.devices[0]).rpartition(".")[2]))
        for job in jobs
    ]


EXPERIMENT = Experiment(
    summary="the worked example of the thesis, row by row", evidence=Evidence.SIMULATED, run=run
)

"""The thesis' Poisson load under its policies: cold starts and waits."""

from __future__ import annotations

from benchmarks.pictures import Bars, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import compared, named, run_of

#: The policies of chapter 6, by their names on the page. The thesis' Exclusive gives each model two
#: of the four devices, and lets a tenant steal; both readings are run.
POLICIES = {
    "rr": "rr",
    "rr:queues=device": "rr_device",
    "balance": "balance",
    "srtf": "srtf",
    "mlfq": "mlfq",
    "exclusive:take_max_pct=50,steal_pct=0,idle_s=100000": "exclusive",
    "exclusive:take_max_pct=50,steal_pause_s=15": "exclusive_steals",
}
#: Policies of this project beside them.
OURS = {"sticky": "sticky", "sticky:patience_s=10": "sticky_10", "fair_sticky": "fair_sticky"}
FIGURES = {
    "cold": "cold",
    "wait_mean_s": "wait",
    "wait_mean_s.workload.resnet": "wait_resnet",
    "wait_mean_s.workload.bert": "wait_bert",
}


def run(settings: Settings) -> Found:
    names = {**POLICIES, **OURS}
    found = compared(run_of("thesis"), tuple(names), settings)
    figures = named(found, FIGURES, names)
    cold = {short: figures[f"cold.{short}"].mean for short in names.values()}
    waits = {
        model: {short: figures[f"wait_{model}.{short}"].mean for short in names.values()}
        for model in ("resnet", "bert")
    }
    theirs = {short: 4.0 if short == "exclusive" else 8.0 for short in POLICIES.values()}
    del theirs["exclusive_steals"], theirs["rr_device"]
    pictures = (
        Picture(
            name="thesis-cold-starts",
            title="Cold starts, 1,000 steps on four devices at 80 %",
            x="policy",
            y="cold starts",
            bars=(
                Bars(name="thesis, Figure 6.4", values=theirs, theirs=True),
                Bars(name="ours", values=cold),
            ),
        ),
        Picture(
            name="thesis-waits",
            title="Mean time in the queue, 1,000 steps on four devices at 80 %",
            x="policy",
            y="steps",
            bars=tuple(Bars(name=model, values=values) for model, values in waits.items()),
            logarithmic_y=True,
        ),
    )
    return Found(figures=figures, pictures=pictures, seeds=settings.seeds)


EXPERIMENT = Experiment(
    summary="cold starts and waits of the thesis' policies", evidence=Evidence.SIMULATED, run=run
)

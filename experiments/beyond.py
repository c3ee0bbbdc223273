"""The papers' loads under this system's own policies, and with leases granted ahead."""

from __future__ import annotations

from benchmarks.pictures import Bars, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import compared, run_of
from simulator.workloads.experiments import with_parameters, with_start
from simulator.workloads.measures import Interval
from simulator.workloads.model import Timing

#: Loads of the papers, and samples of published traces.
LOADS = ("thesis", "tenants", "azure2019", "azure2021", "alibaba2023", "bursts")
POLICIES = ("fifo", "balance", "sticky", "fair_sticky")
#: Functions start as on AWS, events included (`docs/reference/local-cloud.md`, weather).
START = Timing(median_s=0.45, spread=0.4)
STARTED_LOADS = ("azure2019", "azure2021", "alibaba2023", "bursts")
STARTED_POLICY = "fair_sticky"


def run(settings: Settings) -> Found:
    figures: dict[str, float | Interval] = {}
    parts = len(LOADS) + len(STARTED_LOADS)
    waits: dict[str, dict[str, float]] = {policy: {} for policy in POLICIES}
    for number, load in enumerate(LOADS):
        found = compared(run_of(load), POLICIES, settings.part(number, parts))
        for policy, every in found.items():
            figures[f"wait.{load}.{policy}"] = every["wait_mean_s"]
            figures[f"cold.{load}.{policy}"] = every["cold"]
            waits[policy][load] = every["wait_mean_s"].mean
    for number, load in enumerate(STARTED_LOADS, len(LOADS)):
        started, part = with_start(run_of(load), START), settings.part(number, parts)
        forms = {"without": with_parameters(started, ["advance_s_max=0"]), "ahead": started}
        for place, (form, one) in enumerate(forms.items()):
            every = compared(one, (STARTED_POLICY,), part.part(place, 2))[STARTED_POLICY]
            figures[f"{form}_wait.{load}"] = every["wait_mean_s"]
            figures[f"{form}_p95.{load}"] = every["wait_p95_s"]
            figures[f"{form}_held_s.{load}"] = every["device_held_s"]
            figures[f"{form}_function_s.{load}"] = every["function_s"]
            figures[f"{form}_makespan_s.{load}"] = every["makespan_s"]
    return Found(figures=figures, pictures=_pictures(waits, figures), seeds=settings.seeds)


def _pictures(
    waits: dict[str, dict[str, float]], figures: dict[str, float | Interval]
) -> tuple[Picture, ...]:
    def of(form: str) -> dict[str, float]:
        found = {load: figures[f"{form}_p95.{load}"] for load in STARTED_LOADS}
        return {load: one.mean for load, one in found.items() if isinstance(one, Interval)}

    return (
        Picture(
            name="beyond-waits",
            title="Mean wait by policy",
            x="load",
            y="s",
            bars=tuple(Bars(name=policy, values=values) for policy, values in waits.items()),
            logarithmic_y=True,
        ),
        Picture(
            name="beyond-advance",
            title=f"95th percentile of the wait under {STARTED_POLICY}, functions start in 0.45 s",
            x="load",
            y="s",
            bars=(
                Bars(name="granted when free", values=of("without")),
                Bars(name="granted ahead", values=of("ahead")),
            ),
            logarithmic_y=True,
        ),
    )


EXPERIMENT = Experiment(
    summary="the papers' loads under our policies, and with leases ahead",
    evidence=Evidence.SIMULATED,
    run=run,
)

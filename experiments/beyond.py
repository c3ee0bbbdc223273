"""The papers' loads under this system's own policies, and with leases granted ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.pictures import Bars, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import compared, run_of
from simulator.workloads.experiments import with_parameters, with_start
from simulator.workloads.measures import Interval
from simulator.workloads.model import Timing

#: Loads of the papers, and samples of published traces.
LOADS = ("thesis", "tenants", "azure2019", "azure2021", "alibaba2023")
#: Their times are in files: nothing is drawn, so that one seed is all.
TRACES = frozenset({"azure2019", "azure2021", "alibaba2023"})
POLICIES = ("fifo", "balance", "sticky", "fair_sticky")
#: Functions start as on AWS, events included (`docs/reference/local-cloud.md`, weather).
START = Timing(median_s=0.45, spread=0.4)
STARTED_LOADS = ("azure2019", "azure2021", "alibaba2023", "bursts")
STARTED_POLICIES = ("fifo", "fair_sticky")
#: Figures with leases ahead against those without, by short names.
COMPARED = {
    "wait_p95_s": "p95",
    "makespan_s": "makespan",
    "device_held_s": "held",
    "function_s": "function",
}


def run(settings: Settings) -> Found:
    figures: dict[str, float | Interval] = {}
    parts = len(LOADS) + len(STARTED_LOADS)
    waits: dict[str, dict[str, float]] = {policy: {} for policy in POLICIES}
    for number, load in enumerate(LOADS):
        part = settings.part(number, parts)
        part = replace(part, seeds=1) if load in TRACES else part
        found = compared(run_of(load), POLICIES, part)
        for policy, every in found.items():
            figures[f"wait.{load}.{policy}"] = every["wait_mean_s"]
            figures[f"cold.{load}.{policy}"] = every["cold"]
            waits[policy][load] = every["wait_mean_s"].mean
    p95: dict[str, dict[str, float]] = {}
    for number, load in enumerate(STARTED_LOADS, len(LOADS)):
        for policy, forms in _started(load, settings.part(number, parts)).items():
            for name, short in COMPARED.items():
                without, ahead = forms["when free"][name], forms["ahead"][name]
                figures[f"{short}_ratio.{load}.{policy}"] = ahead.mean / max(without.mean, 1e-9)
            for form, every in forms.items():
                p95.setdefault(f"{policy}, {form}", {})[load] = every["wait_p95_s"].mean
    return Found(figures=figures, pictures=_pictures(waits, p95), seeds=settings.seeds)


def _started(load: str, settings: Settings) -> dict[str, dict[str, Mapping[str, Interval]]]:
    """The figures of each policy by form, where functions need time to start."""
    started = with_start(run_of(load), START)
    without = with_parameters(started, ["advance_s_max=0"])
    found: dict[str, dict[str, Mapping[str, Interval]]] = {}
    for place, (form, one) in enumerate((("when free", without), ("ahead", started))):
        for policy, every in compared(one, STARTED_POLICIES, settings.part(place, 2)).items():
            found.setdefault(policy, {})[form] = every
    return found


def _pictures(
    waits: Mapping[str, Mapping[str, float]], p95: Mapping[str, Mapping[str, float]]
) -> tuple[Picture, ...]:
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
            title="95th percentile of the wait, functions start in 0.45 s",
            x="load",
            y="s",
            bars=tuple(Bars(name=name, values=values) for name, values in p95.items()),
            logarithmic_y=True,
        ),
    )


EXPERIMENT = Experiment(
    summary="the papers' loads under our policies, and with leases ahead",
    evidence=Evidence.SIMULATED,
    run=run,
)

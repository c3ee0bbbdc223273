"""The thesis' sweeps: the wait over the occupancy and over the number of devices; what has no
effect on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.pictures import Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import curves, run_of, swept
from simulator.workloads.experiments import (
    with_clients,
    with_devices,
    with_execution,
    with_loading,
    with_occupancy,
)
from simulator.workloads.measures import Interval
from simulator.workloads.model import Run

POLICIES = ("rr", "rr:queues=device", "balance", "srtf", "mlfq", "exclusive", "sticky")
OCCUPANCIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
DEVICES = (1, 2, 3, 4, 6, 8, 16)
#: Changes without effect in a long run, by the thesis: factors of loading, of execution with the
#: occupancy kept (waits in execution times), and clients that share the same rate.
FACTORS = (0.5, 1.0, 2.0)
CLIENTS = (1, 2, 4)
LONG_S = 10_000.0
_WAIT = "wait_mean_s"

Swept = Mapping[str, Mapping[float, Mapping[str, Interval]]]


def run(settings: Settings) -> Found:
    by_occupancy = swept(
        run_of("thesis-3"), POLICIES, OCCUPANCIES, with_occupancy, settings.part(0, 3)
    )
    by_devices = swept(run_of("thesis"), POLICIES, DEVICES, _with_devices, settings.part(1, 3))
    figures: dict[str, float | Interval] = {}
    for policy in ("rr", "balance", "srtf"):
        for value in OCCUPANCIES:
            figures[f"occupancy_{value:g}.{policy}"] = by_occupancy[policy][value][_WAIT]
        for count in DEVICES:
            figures[f"devices_{count}.{policy}"] = by_devices[policy][count][_WAIT]
    figures["worst_is_rr_pct"] = _worst_pct(by_occupancy)
    figures["rises_pct"] = _rising_pct(by_occupancy)
    figures |= _effects(settings.part(2, 3))
    return Found(
        figures=figures, pictures=_pictures(by_occupancy, by_devices), seeds=settings.seeds
    )


def _effects(settings: Settings) -> dict[str, float]:
    """The largest change of the mean wait by what shall not change it, in percent."""
    steady = replace(run_of("thesis"), duration_s=LONG_S)
    changes: dict[str, tuple[Sequence[float], Callable[[Run, float], Run]]] = {
        "loading": (FACTORS, with_loading),
        "execution": (FACTORS, with_execution),
        "clients": (CLIENTS, _with_clients),
    }
    found = {}
    for number, (name, (values, change)) in enumerate(changes.items()):
        part = settings.part(number, len(changes))
        of_balance = swept(steady, ("balance",), values, change, part)["balance"]
        scale = {value: value if name == "execution" else 1.0 for value in values}
        waits = {value: one[_WAIT].mean / scale[value] for value, one in of_balance.items()}
        found[f"{name}_effect_pct"] = max(100 * abs(one / waits[1] - 1) for one in waits.values())
    return found


def _with_devices(run_: Run, count: float) -> Run:
    return with_devices(run_, int(count))


def _with_clients(run_: Run, count: float) -> Run:
    return with_clients(run_, int(count))


def _worst_pct(by_occupancy: Swept) -> float:
    """At how many of the occupancies `rr` has the longest wait."""
    worst = [
        max(by_occupancy, key=lambda policy: by_occupancy[policy][value][_WAIT].mean)
        for value in OCCUPANCIES
    ]
    return 100.0 * worst.count("rr") / len(worst)


def _rising_pct(by_occupancy: Swept) -> float:
    """Of how many policies the wait rises with each step of the occupancy."""
    rising = [
        all(
            every[low][_WAIT].mean <= every[high][_WAIT].mean
            for low, high in itertools.pairwise(OCCUPANCIES)
        )
        for every in by_occupancy.values()
    ]
    return 100.0 * sum(rising) / len(rising)


def _pictures(by_occupancy: Swept, by_devices: Swept) -> tuple[Picture, ...]:
    return (
        Picture(
            name="thesis-occupancy",
            title="Mean time in the queue, three devices",
            x="occupancy of the devices",
            y="steps",
            curves=curves(by_occupancy, _WAIT),
            logarithmic_y=True,
        ),
        Picture(
            name="thesis-devices",
            title="Mean time in the queue at 80 %",
            x="devices",
            y="steps",
            curves=curves(by_devices, _WAIT),
            logarithmic_y=True,
        ),
    )


EXPERIMENT = Experiment(
    summary="the thesis' sweeps over occupancy, devices and loading times",
    evidence=Evidence.SIMULATED,
    run=run,
)

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

POLICIES = ("rr", "balance", "srtf", "mlfq", "exclusive")
OCCUPANCIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
QUEUE_EACH = "rr:queues=device"
#: Every policy has the first counts; a run on many devices costs as much as all of these.
DEVICES, MANY_DEVICES = (1, 2, 4), (16,)
MANY_POLICIES = ("rr", "balance")
#: Changes without effect in a long run, by the thesis: factors of loading, of execution with the
#: occupancy kept (waits in execution times), and clients that share the same rate.
FACTORS = (0.5, 2.0)
CLIENTS = (4,)
LONG_S, WARM_S = 1_500.0, 300.0
_WAIT = "wait_mean_s"

Swept = Mapping[str, Mapping[float, Mapping[str, Interval]]]
Waits = Mapping[float, float]  #: mean wait by the changed value


def run(settings: Settings) -> Found:
    by_occupancy = swept(
        run_of("thesis-3"), POLICIES, OCCUPANCIES, with_occupancy, settings.part(0, 3)
    )
    by_devices = _by_devices(settings.part(1, 3))
    figures: dict[str, float | Interval] = {}
    for policy, by_value in by_occupancy.items():
        for value, every in by_value.items():
            figures[f"occupancy_{value:g}.{policy}"] = every[_WAIT]
    for policy, by_value in by_devices.items():
        for count, every in by_value.items():
            figures[f"devices_{count:g}.{policy}"] = every[_WAIT]
    figures["worst_is_rr_pct"] = _worst_pct(by_occupancy)
    figures["rises_pct"] = _rising_pct(by_occupancy)
    figures |= _effects(settings.part(2, 3))
    return Found(
        figures=figures, pictures=_pictures(by_occupancy, by_devices), seeds=settings.seeds
    )


def _by_devices(settings: Settings) -> Swept:
    run_, policies = run_of("thesis"), (*POLICIES, QUEUE_EACH)
    few = swept(run_, policies, DEVICES, _with_devices, settings.part(0, 2))
    many = swept(run_, MANY_POLICIES, MANY_DEVICES, _with_devices, settings.part(1, 2))
    return {policy: {**by_count, **many.get(policy, {})} for policy, by_count in few.items()}


def _effects(settings: Settings) -> dict[str, float]:
    """The largest change of the mean wait by what shall not change it, in percent."""
    steady = replace(run_of("thesis"), duration_s=LONG_S, measure_from_s=WARM_S)
    changes: dict[str, tuple[Sequence[float], Callable[[Run, float], Run]]] = {
        "loading": (FACTORS, with_loading),
        "execution": (FACTORS, _with_execution),
        "clients": (CLIENTS, _with_clients),
    }

    def waits_s(values: Sequence[float], change: Callable[[Run, float], Run], number: int) -> Waits:
        part = settings.part(number, 1 + len(changes))
        of_balance = swept(steady, ("balance",), values, change, part)["balance"]
        return {value: one[_WAIT].mean for value, one in of_balance.items()}

    unchanged_s = waits_s((1.0,), with_loading, 0)[1.0]
    found = {}
    for number, (name, (values, change)) in enumerate(changes.items(), 1):
        waits = waits_s(values, change, number)
        scale = {value: value if name == "execution" else 1.0 for value in values}
        found[f"{name}_effect_pct"] = max(
            100 * abs(one / scale[value] / unchanged_s - 1) for value, one in waits.items()
        )
    return found


def _with_execution(run_: Run, factor: float) -> Run:
    """The same requests in other units of time, but for their loading."""
    return replace(
        with_execution(run_, factor),
        duration_s=run_.duration_s * factor,
        measure_from_s=run_.measure_from_s * factor,
    )


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

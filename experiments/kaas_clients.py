"""KaaS' closed loop of clients with a model each, on four devices, with its raw data's times."""

from __future__ import annotations

import math
from dataclasses import replace

from benchmarks.pictures import Curve, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from experiments.simulated import run_of, swept
from simulator.workloads.experiments import with_clients
from simulator.workloads.measures import Interval
from simulator.workloads.model import ANY_DEVICE, Run, Timing

CLIENTS = (1, 2, 4, 5, 8, 16)
#: Measured from the end of the warming up on, where requests are warm: hundreds of them. Where each
#: is cold, there is one in a second, and the run has its whole length.
WARM_S = 10.0
#: Seconds of a warm request: of a device with several models, and of one with one; and requests per
#: second of four and of five clients of a device with one. (`properties.json` of kaasBenchmarks)
WORKLOADS = {
    "cgemm": (0.0477, 0.0465, 88.6, 1.47),
    "resnet50": (0.0302, 0.0261, 204.2, 1.54),
    "bert": (0.1514, 0.1469, 41.2, 0.60),
    "jacobi": (0.0829, 0.0623, 65.1, 1.56),
}
#: Of 16 clients there, requests per second of a device in turns over those of fixed parts of it:
#: the percentage of a device that one request fills. And the parts that a device has here.
FRACTIONS = {
    "cgemm": (100 * 88.3 / 146.5, 2),
    "resnet50": (100 * 170.3 / 199.8, 2),
    "bert": (100 * 38.1 / 61.8, 2),
    "jacobi": (100 * 47.0 / 201.3, 4),
}
_RATE = "throughput_per_s"
_DEVICES = 4


def run(settings: Settings) -> Found:
    figures: dict[str, float | Interval] = {}
    pictures = []
    for number, (name, (shared_s, exclusive_s, _, fifth_per_s)) in enumerate(WORKLOADS.items()):
        loading_s = _DEVICES / fifth_per_s - exclusive_s
        part = settings.part(number, len(WORKLOADS))
        both = (("exclusive", exclusive_s, part.part(0, 2)), ("shared", shared_s, part.part(1, 2)))
        rates = {
            form: _rates(_run(form, execution_s, loading_s), form, one)
            for form, execution_s, one in both
        }
        for form, by_clients in rates.items():
            for clients in (4, 5, 16):
                figures[f"{name}_{form}.{clients}"] = by_clients[clients]
        figures[f"fall.{name}"] = _fall(rates["exclusive"])
        figures[f"change_shared_pct.{name}"] = 100 * (1 / max(_fall(rates["shared"]), 1e-9) - 1)
        figures[f"fractional.{name}"] = _fractional(name, rates["shared"][16], part)
        pictures.append(_picture(name, rates))
    note = f"After a minute, warm requests are measured for {WARM_S:g} s and cold ones for 180 s."
    return Found(figures=figures, pictures=pictures, notes=(note,))


def _fall(by_clients: dict[float, Interval]) -> float:
    """Requests per second of four clients over those of five."""
    four, five = by_clients[4].mean, by_clients[5].mean
    return four / five if five else math.inf  # a run may end before the first request does


def _fractional(name: str, in_turns: Interval, settings: Settings) -> float:
    """The gain of 16 clients by fixed parts of each device."""
    fills_pct, parts = FRACTIONS[name]
    run_ = _run("shared", WORKLOADS[name][0], 0.0)
    parted = {
        key: replace(one, fills_pct=fills_pct, compute_pct=100 / parts)
        for key, one in run_.workloads.items()
    }
    found = swept(
        _warm(replace(run_, workloads=parted)),
        ("fifo",),
        (16,),
        _with_clients,
        replace(settings, seeds=1, advance=float),
    )
    return found["fifo"][16][_RATE].mean / in_turns.mean if in_turns.mean else math.inf


def _run(form: str, execution_s: float, loading_s: float) -> Run:
    base = run_of(f"kaas-{form}")
    timed = {
        name: replace(
            one,
            execution={ANY_DEVICE: Timing(median_s=execution_s)},
            loading={ANY_DEVICE: Timing(median_s=loading_s)},
        )
        for name, one in base.workloads.items()
    }
    return replace(base, workloads=timed)


def _warm(run_: Run) -> Run:
    return replace(run_, duration_s=run_.measure_from_s + WARM_S)


def _rates(run_: Run, form: str, settings: Settings) -> dict[float, Interval]:
    """Requests per second over clients. Nothing is drawn: one seed is all."""
    warm = [clients for clients in CLIENTS if form == "shared" or clients <= _DEVICES]
    cold = [clients for clients in CLIENTS if clients not in warm]
    found: dict[float, Interval] = {}
    for one, values, place in ((_warm(run_), warm, 0), (run_, cold, 1)):
        part = replace(settings.part(place, 2), seeds=1)
        every = swept(one, ("fifo",), values, _with_clients, part) if values else {"fifo": {}}
        found |= {clients: of[_RATE] for clients, of in every["fifo"].items()}
    settings.advance(1.0)
    return found


def _with_clients(run_: Run, count: float) -> Run:
    return with_clients(run_, int(count))


def _picture(name: str, rates: dict[str, dict[float, Interval]]) -> Picture:
    _, _, fourth, fifth = WORKLOADS[name]
    ours = [
        Curve(name=form, points=tuple((clients, one.mean) for clients, one in by_clients.items()))
        for form, by_clients in rates.items()
    ]
    theirs = Curve(name="exclusive, their data", points=((4, fourth), (5, fifth)), theirs=True)
    return Picture(
        name=f"kaas-{name}",
        title=f"{name}: requests per second on four devices",
        x="clients",
        y="requests/s",
        curves=(*ours, theirs),
        logarithmic_y=True,
    )


EXPERIMENT = Experiment(
    summary="KaaS' clients on devices with one model and with several",
    evidence=Evidence.SIMULATED,
    run=run,
)

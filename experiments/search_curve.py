"""The paper's queries of growing length, from upload to result, with and without a remote device.

Measured is the whole way through the local system, on a CPU device, and NCBI's `blastp` by itself
where it is installed. What a remote GPU would do is *emulated* from both: the measured way, and the
measured computing at the paper's speed-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.pictures import Curve, Picture
from benchmarks.remote_gpu.search_curve import LENGTHS
from experiments.benchmarked import Measured, measured
from experiments.cost import CPU_S, GPU_S
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings

SPEED_UP = CPU_S / GPU_S
#: Seconds of the longest query in the paper's Figure 5: alone, and with the remote device.
THEIRS = ((10_000, CPU_S), (10_000, GPU_S))


def run(settings: Settings) -> Found:
    found = measured("remote_gpu.search_curve", "--runs", "1" if settings.quick else "3")
    settings.advance(1.0)
    ways_s = {n: found.values[f"way_ms_{n}"] / 1e3 for n in LENGTHS}
    ours_s = {n: found.values[f"whole_s_{n}"] for n in LENGTHS}
    alone_s = {n: ours_s[n] - ways_s[n] for n in LENGTHS}
    remote_s = {n: ways_s[n] + alone_s[n] / SPEED_UP for n in LENGTHS}
    way_s = sorted(ways_s.values())[len(ways_s) // 2]
    figures = {
        "way_ms": 1e3 * way_s,
        "way_growth": ways_s[max(LENGTHS)] / ways_s[min(LENGTHS)],
        "alone_growth": alone_s[max(LENGTHS)] / alone_s[min(LENGTHS)],
        "crossover_ms": 1e3 * way_s / (1 - 1 / SPEED_UP),
        "remote_gain_longest": alone_s[max(LENGTHS)] / remote_s[max(LENGTHS)],
        "remote_loss_shortest": remote_s[min(LENGTHS)] / alone_s[min(LENGTHS)],
    }
    named = {
        "ours, measured on a CPU device": ours_s,
        "its way alone": ways_s,
        "the operation in place": alone_s,
        f"emulated: way + computing at {SPEED_UP:.2f}": remote_s,
        **_blastp(found),
    }
    picture = Picture(
        name="orchgpu-search-curve",
        title="From upload to result, by length of the query",
        x="residues",
        y="s",
        curves=(
            *(Curve(name=name, points=tuple(one.items())) for name, one in named.items()),
            Curve(name="the paper, longest query", points=THEIRS, theirs=True),
        ),
        logarithmic_x=True,
        logarithmic_y=True,
    )
    notes = () if _blastp(found) else ("`blastp` was not installed here: its curves are missing.",)
    return Found(figures=figures, pictures=(picture,), notes=notes)


def _blastp(found: Measured) -> Mapping[str, Mapping[int, float]]:
    """Seconds of blastp by length, for each number of threads that was measured."""
    curves: dict[str, dict[int, float]] = {}
    for metric, value in found.values.items():
        if metric.startswith("blastp_"):
            name, _, length = metric.partition("_s_")
            curves.setdefault(name.replace("_", " "), {})[int(length)] = value
    return curves


EXPERIMENT = Experiment(
    summary="queries of growing length, from upload to result",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.QUICK,
)

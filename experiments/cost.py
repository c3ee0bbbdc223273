"""The cost table of the paper on orchGPU, by `orchgpu cost`'s own arithmetic."""

from __future__ import annotations

from benchmarks.pictures import Curve, Picture
from experiments.experiment import Evidence, Experiment, Found, Settings
from orchgpu.report.cost import Comparison

#: Seconds of the longest query: on the function alone with one thread and with six, and with a
#: remote device; MiB of the function.
CPU_S, CPU_SIX_S, GPU_S, MEMORY_MIB = 368.0, 220.0, 118.0, 3072
SHARERS = (1, 2, 3, 4, 5, 6, 7, 8)


def run(settings: Settings) -> Found:
    one = Comparison(cpu_s=CPU_S, gpu_s=GPU_S, memory_mib=MEMORY_MIB)
    six = Comparison(cpu_s=CPU_SIX_S, gpu_s=GPU_S, memory_mib=MEMORY_MIB)
    sharers = one.break_even_sharers
    assert sharers is not None, "the device is faster"
    settings.advance(1.0)
    figures = {
        "cpu_usd": one.cpu_usd,
        "cpu_six_usd": six.cpu_usd,
        "gpu_usd": one.gpu_usd(),
        "speed_up": one.speed_up,
        "break_even_speed_up": one.break_even_speed_up(),
        "break_even_sharers": sharers,
        "three_sharers": one.gpu_usd(3) / one.cpu_usd,
    }
    curves = (
        Curve(name="remote device", points=tuple((n, one.gpu_usd(n)) for n in SHARERS)),
        Curve(name="function alone", points=tuple((n, one.cpu_usd) for n in SHARERS)),
        Curve(name="the paper's prints", points=((1, 0.0354), (1, 0.0184)), theirs=True),
    )
    picture = Picture(
        name="orchgpu-cost",
        title="Cost of the longest query",
        x="jobs that share the device",
        y="USD",
        curves=curves,
    )
    return Found(figures=figures, pictures=(picture,))


EXPERIMENT = Experiment(
    summary="what the longest query costs", evidence=Evidence.ARITHMETIC, run=run
)

"""KNIX' isolation and elasticity of shares, on a device that is a core of this machine."""

from __future__ import annotations

from benchmarks.pictures import Curve, Picture
from benchmarks.remote_gpu.sharing import TENANTS
from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings

METRICS = (
    *("share_error_points", "deviation_points_8", "spread_points_8", "swing_points_8"),
    *("small_gain_pct", "large_penalty_pct", "utilisation", "memory_swing_pct_8"),
)


def run(settings: Settings) -> Found:
    found = measured("remote_gpu.sharing", "--seconds", "2" if settings.quick else "20")
    settings.advance(1.0)
    times = {n: found.values[f"time_ratio_{n}"] for n in TENANTS[1:]}
    few, many = TENANTS[1], TENANTS[-1]
    figures = {
        **found.named({name: name for name in METRICS}),
        "time_few": times[few] / few,
        "time_many": times[many] / many,
    }
    picture = Picture(
        name="knix-times",
        title="Time of a tenant's work by the number of equal shares",
        x="tenants",
        y="× the time alone",
        curves=(
            Curve(name="measured", points=((1, 1.0), *times.items())),
            Curve(name="linear", points=tuple((n, float(n)) for n in TENANTS), theirs=True),
        ),
    )
    return Found(figures=figures, pictures=(picture,))


EXPERIMENT = Experiment(
    summary="isolation and elasticity of shares",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.NEVER,
)

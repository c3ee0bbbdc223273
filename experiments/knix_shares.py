"""KNIX' isolation and elasticity of shares, on a device that is a core of this machine."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings

METRICS = (
    *("share_error_points", "deviation_points_8", "spread_points_8"),
    *("small_gain_pct", "large_penalty_pct", "utilisation"),
)


def run(settings: Settings) -> Found:
    found = measured("remote_gpu.sharing", "--seconds", "10" if settings.quick else "45")
    settings.advance(1.0)
    return Found(figures=found.named({name: name for name in METRICS}))


EXPERIMENT = Experiment(
    summary="isolation and elasticity of shares", evidence=Evidence.MEASURED, run=run
)

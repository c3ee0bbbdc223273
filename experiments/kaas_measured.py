"""KaaS' closed loop through the real daemons, on CPU devices."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Evidence, Experiment, Found, Settings

METRICS = ("fall_exclusive", "change_shared_pct", "cold_4_exclusive", "cold_5_shared")


def run(settings: Settings) -> Found:
    found = measured("kaas", "--seconds", "5" if settings.quick else "30")
    settings.advance(1.0)
    return Found(figures=found.named({name: name for name in METRICS}))


EXPERIMENT = Experiment(
    summary="KaaS' clients through real daemons", evidence=Evidence.MEASURED, run=run
)

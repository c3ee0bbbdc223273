"""KaaS' closed loop through the real daemons, on CPU devices."""

from __future__ import annotations

from experiments.benchmarked import measured
from experiments.experiment import Beside, Evidence, Experiment, Found, Settings

METRICS = ("fall_exclusive", "change_shared_pct", "cold_4_exclusive", "cold_5_shared")


def run(settings: Settings) -> Found:
    length = ("--seconds", "2", "--layers", "4") if settings.quick else ("--seconds", "20")
    found = measured("kaas", *length)
    settings.advance(1.0)
    return Found(figures=found.named({name: name for name in METRICS}))


EXPERIMENT = Experiment(
    summary="KaaS' clients through real daemons",
    evidence=Evidence.MEASURED,
    run=run,
    beside=Beside.QUICK,
)

"""Time goes on, however near the next timer of a lease ahead is."""

from __future__ import annotations

from pathlib import Path

import simulator
from simulator.workloads.engine import Engine
from simulator.workloads.experiments import with_start
from simulator.workloads.model import Timing
from simulator.workloads.run_file import load_run

RUNS = Path(simulator.__file__).parent / "runs"
#: In this seed a lease ahead is once due within less than the resolution of the clock.
SEED = 25
TICKS_MAX = 1_000


def test_no_timer_rings_for_ever_at_one_time() -> None:
    run = load_run(RUNS / "azure2019.yaml")
    last_s, ticks = -1.0, 0

    def ticked(now_s: float) -> None:
        nonlocal last_s, ticks
        ticks = ticks + 1 if now_s == last_s else 0
        last_s = now_s
        assert ticks < TICKS_MAX, f"the time stays {now_s}"

    started = with_start(run, Timing(median_s=0.45, spread=0.4))
    engine = Engine(started, run.seed + SEED, "fifo", progress=ticked)
    engine.simulate()
    assert not engine.unfinished

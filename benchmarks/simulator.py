"""Decisions of the scheduler core in a simulated run, per second of processor time.

    decisions_per_s.POLICY   handled events / processor seconds of a run
    engine_ratio.POLICY      the same / that of the same events handled by a core alone

The thesis' load on four devices (`simulator/runs/thesis.yaml`), four times as long; in turns, the
median of the rounds. The second figure is the part that the engine leaves to the core: arrivals,
devices with warm workers and the end of jobs are the rest.

    python -m benchmarks.simulator [--json] [--rounds N] [--policies NAME,…]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import simulator
from benchmarks import report
from corekit.ids import IdSource
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.policy_registry import installed_policies
from simulator.workloads.engine import PATIENT, Engine
from simulator.workloads.model import Run
from simulator.workloads.run_file import load_run

RUN = Path(simulator.__file__).parent / "runs" / "thesis.yaml"
TARGET_PER_S = 20_000
LONGER = 4
SEED = 1


class Recorded(Engine):
    """An engine that keeps its events, to be handled again."""

    def __init__(self, run: Run, policy: str) -> None:
        self.events: list[tuple[type[Any], float, dict[str, Any]]] = []
        super().__init__(run, SEED, policy)

    def decide(self, event: type[Any], **fields: Any) -> list[do.Action]:
        self.events.append((event, self.now_s, fields))
        return super().decide(event, **fields)


def per_second(run: Run, policy: str) -> float:
    """Decisions of a whole run."""
    began_s = time.process_time()
    engine = Engine(run, SEED, policy)
    engine.simulate()
    return engine.decisions / (time.process_time() - began_s)


def alone_per_second(recorded: Recorded) -> float:
    """The same decisions without the engine."""
    machine = SchedulerMachine(PATIENT, IdSource(SEED), None, installed_policies())
    began_s = time.process_time()
    for event, at_s, fields in recorded.events:
        machine.handle(event(at_s=at_s, wall_s=1e6 + at_s, **fields))
    return len(recorded.events) / (time.process_time() - began_s)


def measured(policy: str, rounds: int) -> Iterator[report.Figure]:
    """The figures of one policy."""
    run = load_run(RUN)
    run = replace(run, duration_s=run.duration_s * LONGER)
    recorded = Recorded(run, policy)
    recorded.simulate()
    pairs = [(per_second(run, policy), alone_per_second(recorded)) for _ in range(rounds)]
    whole, alone = (statistics.median(values) for values in zip(*pairs, strict=True))
    yield report.Figure(f"decisions_per_s.{policy}", whole, "1/s", target=f">= {TARGET_PER_S}")
    yield report.Figure(f"engine_ratio.{policy}", whole / alone, "", "the core alone, 1/s", alone)


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policies", default="fifo,fair,backfill,balance,sticky,fair_sticky")
    options = parser.parse_args()
    figures = [
        figure
        for policy in options.policies.split(",")
        for figure in measured(policy, options.rounds)
    ]
    report.show("simulator", figures, as_json=options.json)


if __name__ == "__main__":
    main()

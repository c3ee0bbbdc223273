"""How long the scheduler's core takes to promise a run or to refuse it, alone.

    admission_p99_ms          of single steps, 1,000 devices, 10,000 bookings; target <= 3 ms
    admission_growth_ratio    p50 with all bookings / p50 with 100; target <= 5
    refusal_p99_ms            of steps that no free device can end in time, at the same size
    quote_p99_ms              of chains of four steps, at the same size
    graph_cold_ms_p50         8 steps × 4 models that were never seen before; target <= 50 ms
    graph_cached_ms_p50       the same graph again, with its frontier in the cache; target <= 2 ms
    decision_p99_ms           a request for a booked step and the end of its lease, at the same size

Devices are of four models, whole; of no step is one model faster and cheaper than another. Policy
`slo` with its defaults. Each event is timed by itself, in CPU time of its thread.

    python -m benchmarks.scheduler.admission [--json] [--bookings N] [--rounds N]
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks import report
from benchmarks.scheduler.decision import MODELS, Core, filled
from corekit.ids import AttemptId
from gpu_scheduler.core.queue.bookings import BOOK
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops

DEVICES = 1_000
FEW = 100
GRAPH = ((), *(((0,),) * 6), tuple(range(1, 7)))
CHAIN = ((), (0,), (1,), (2,))
SINGLE = ((),)
WHOLE = Request(compute_guarantee_pct=100, memory_mib=1024)


class Runs:
    """Runs with drawn times, of one core."""

    def __init__(self, core: Core) -> None:
        self.core, self.stream, self.number = core, random.Random(1), 0

    def steps(self, shape: Sequence[Sequence[int]]) -> tuple[PromisedStep, ...]:
        """The steps of one run."""
        self.number += 1
        names = [f"r{self.number}.{i}" for i in range(len(shape))]
        return tuple(
            PromisedStep(
                name=name,
                job=name,
                request=WHOLE,
                after=tuple(names[i] for i in own),
                times=self._times(),
            )
            for name, own in zip(names, shape, strict=True)
        )

    def _times(self) -> dict[str, StepTimes]:
        draw = self.stream.uniform
        seconds = sorted(draw(10.0, 60.0) for _ in MODELS)
        costs = sorted((draw(1.0, 10.0) for _ in MODELS), reverse=True)
        return {
            model: StepTimes(execution_s=one, cost_usd=cost)
            for (model, _), one, cost in zip(MODELS, seconds, costs, strict=True)
        }

    def admit(
        self, steps: tuple[PromisedStep, ...], latency_s: float, *, quote: bool = False
    ) -> tuple[answers.AdmitAnswer, float]:
        """The answer and its milliseconds."""
        run = steps[0].name.partition(".")[0]
        op = ops.Admit(run=run, steps=steps, slo=Slo(latency_s=latency_s), quote=quote)
        answer = self.core.ask(op)
        assert isinstance(answer, answers.AdmitAnswer), answer
        return answer, 1e3 * self.core.took_s[-1]

    def book(self, bookings: int) -> None:
        """Promise runs until that many steps are booked."""
        state = self.core.machine.state
        while len(state.memory.kind(BOOK).values) < bookings:
            answer, _ = self.admit(self.steps(SINGLE), 1e6)
            assert answer.outcome is answers.Outcome.GRANTED, answer.why


def p99(took_ms: Sequence[float]) -> float:
    """The 99 % quantile."""
    return sorted(took_ms)[len(took_ms) * 99 // 100]


def graphs(runs: Runs, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of quotes of new graphs, and of each once more."""
    cold: list[float] = []
    cached: list[float] = []
    for _ in range(rounds):
        steps = runs.steps(GRAPH)
        for times in (cold, cached):
            times.append(runs.admit(steps, 1e6, quote=True)[1])
    return cold, cached


def served(runs: Runs, rounds: int) -> list[float]:
    """Milliseconds of requests for booked steps and of the ends of their leases."""
    core, found = runs.core, []
    for _ in range(rounds):
        steps = runs.steps(SINGLE)
        answer, _ = runs.admit(steps, 1e6)
        job = answer.steps[0].job
        core.ask(ops.Reserve(attempt=AttemptId(job), request=WHOLE, wait=True))
        found.append(1e3 * core.took_s[-1])
        lease = core.machine.state.lease_of.get(AttemptId(job))
        end = ops.Withdraw(attempt=AttemptId(job)) if lease is None else ops.Release(lease=lease)
        core.ask(end)
        found.append(1e3 * core.took_s[-1])
        core.ask(ops.Waive(run=job.partition(".")[0]))
        found.append(1e3 * core.took_s[-1])
    return found


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--bookings", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    core = filled(0, 0, "slo", random.Random(1), 0)
    runs = Runs(core)
    core.join(DEVICES)
    rounds: int = options.rounds
    runs.book(FEW)
    few = [runs.admit(runs.steps(SINGLE), 1e6)[1] for _ in range(rounds)]
    cold, cached = graphs(runs, max(3, rounds // 30))
    runs.book(options.bookings - rounds)
    many = [runs.admit(runs.steps(SINGLE), 1e6)[1] for _ in range(rounds)]
    refused = [runs.admit(runs.steps(SINGLE), 61.0)[1] for _ in range(rounds)]
    chains = [runs.admit(runs.steps(CHAIN), 1e6, quote=True)[1] for _ in range(rounds)]
    decisions = served(runs, rounds)
    growth = statistics.median(many) / statistics.median(few)
    shown = [
        report.Figure("admission_p99_ms", p99(many), "ms", target="<= 3"),
        report.Figure("admission_p50_ms", statistics.median(many), "ms"),
        report.Figure(
            "admission_growth_ratio",
            growth,
            "",
            f"p50 ms, {FEW} bookings",
            statistics.median(few),
            ratio=growth,
            target="<= 5",
        ),
        report.Figure("refusal_p99_ms", p99(refused), "ms"),
        report.Figure("quote_p99_ms", p99(chains), "ms"),
        report.Figure("graph_cold_ms_p50", statistics.median(cold), "ms", target="<= 50"),
        report.Figure("graph_cached_ms_p50", statistics.median(cached), "ms", target="<= 2"),
        report.Figure("decision_p99_ms", p99(decisions), "ms"),
    ]
    report.show("scheduler.admission", shown, as_json=options.json)


if __name__ == "__main__":
    main()

"""Quotes against outcomes: how near the expected end of a request is to its real one.

    quoted_within_10_pct         percent of requests of the held-out part whose time from request to
                                 end is within ± 10 % of the estimate at the median
    quoted_within_10_pct.LOAD    the same of one load
    oracle_within_10_pct         the ceiling: percent of executions within ± 10 % of the one length
    oracle_within_10_pct.LOAD    of their function that fits most of them, chosen in hindsight, if
                                 none waited or loaded; what varies by itself, no quote can foresee
    quoted_of_oracle_pct         the first in percent of the ceiling
    predictable_pct              percent of requests whose function's executions vary by less than
                                 10 % (standard deviation by mean)
    ended_by_95_pct.LOAD         percent that ended by the estimate at the quantile 0.95
    quoted.LOAD                  requests of the held-out part that had a quote

Each request asks for a promise with an objective that it always meets, so that its estimate counts
with all that was promised before; times are learned from the first part of the load alone and from
what has ended since. Loads: samples of our own in the layout of published traces, which have no
sizes of inputs (executions vary by half their mean and more: no function of them is predictable),
and one whose executions vary by 2 %, where the question is fair. Policy `slo`, pick `earliest`.

    python -m benchmarks.quotes [--json] [--seed N] [--held-out PART]
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

import simulator
from benchmarks import report
from gpu_scheduler.promises import Estimate, PromisedStep, Slo
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AdmitAnswer, Outcome
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.model import Arrival, Run
from simulator.workloads.run_file import load_run, parse_run

RUNS = Path(simulator.__file__).parent / "runs"
TRACES = ("azure2021", "azure2019", "alibaba2023")
STEADY = """\
name: steady
duration: 20m
hosts: [{name: gpu, devices: 4, memory: 16GiB}]
workloads:
  small: {memory: 2GiB, execution: {median: 4, spread: 0.02}, loading: 3, compute: 100}
  large: {memory: 8GiB, execution: {median: 20, spread: 0.02}, loading: 9, compute: 100}
load:
- {kind: poisson, workload: small, rate: 0.3}
- {kind: poisson, workload: large, rate: 0.06}
"""
NEAR = 0.10
#: An objective that no request misses: it waits for its place in any case.
LENIENT_S = 1e6


@dataclass(frozen=True, slots=True)
class Quoted:
    """One request, with what was expected of it."""

    job: Job
    expected: tuple[Estimate, ...]  #: at the median, and at the quantile of the policy


class QuotingEngine(Engine):
    """A simulation in which each request asks for a promise first."""

    quoted: list[Quoted]

    def submit(self, arrival: Arrival) -> Job:
        """Ask for a promise of the request that comes next, then send it."""
        workload = self._workload_of(arrival)
        name = f"a{len(self.jobs)}"
        request = arrival.request or workload.request(arrival.tenant)
        expected: tuple[Estimate, ...] = ()
        if request.count == 1:
            step = PromisedStep(name="step", job=name, request=request)
            op = ops.Admit(run=name, steps=(step,), slo=Slo(latency_s=LENIENT_S))
            for action in self.ask_op(op):
                answer = getattr(action, "answer", None)
                if isinstance(answer, AdmitAnswer) and answer.outcome is Outcome.GRANTED:
                    expected = answer.estimates
        job = super().submit(arrival)
        self.quoted.append(Quoted(job, expected))
        return job


def simulated(run: Run, seed: int, held_out: float) -> list[Quoted]:
    """The quoted requests of the last part of a load that were served."""
    parameters = {**run.parameters, "policy.slo.pick": "earliest"}
    engine = QuotingEngine(replace(run, parameters=parameters), seed, "slo")
    engine.quoted = []
    engine.simulate()
    from_s = run.duration_s * (1.0 - held_out)
    return [one for one in engine.quoted if one.job.asked_s >= from_s and one.expected]


def took_s(job: Job) -> float:
    """From the request to the end of its work."""
    return 0.0 if job.ended_s is None else job.ended_s - job.asked_s


def near(found: list[Quoted]) -> float:
    """Percent within the tolerance of the estimate at the median."""
    hits = (
        abs(took_s(one.job) - one.expected[0].end_in_s) <= NEAR * one.expected[0].end_in_s
        for one in found
    )
    return 100.0 * statistics.fmean(hits)


def covered(found: list[Quoted]) -> float:
    """Percent that ended by the last estimate."""
    return 100.0 * statistics.fmean(
        took_s(one.job) <= one.expected[-1].end_in_s + 1e-6 for one in found
    )


def lengths_of(found: list[Quoted]) -> list[list[float]]:
    """The executions of each workload, ascending."""
    lengths: dict[str, list[float]] = {}
    for one in found:
        lengths.setdefault(one.job.workload.name, []).append(one.job.execution_s)
    return [sorted(those) for those in lengths.values()]


def oracle(found: list[Quoted]) -> float:
    """Percent of executions within the tolerance of the best length for their workload."""
    hits = sum(_most_near(those) for those in lengths_of(found))
    return 100.0 * hits / len(found)


def _most_near(lengths: list[float]) -> int:
    """The most of these ascending lengths that one quote could have within the tolerance."""
    widest = (1.0 + NEAR) / (1.0 - NEAR)
    return max(bisect_right(lengths, length * widest) - at for at, length in enumerate(lengths))


def predictable(found: list[Quoted]) -> float:
    """Percent of requests of workloads whose executions vary by less than the tolerance."""
    steady = sum(
        len(those)
        for those in lengths_of(found)
        if statistics.pstdev(those) < NEAR * statistics.fmean(those)
    )
    return 100.0 * steady / len(found)


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", type=float, default=0.5, help="the last part of each load")
    options = parser.parse_args()
    loads = {name: load_run(RUNS / f"{name}.yaml") for name in TRACES}
    loads["steady"] = parse_run(STEADY, "steady.yaml", RUNS)
    shown: list[report.Figure] = []
    every: list[Quoted] = []
    for name, run in loads.items():
        found = simulated(run, options.seed, options.held_out)
        shown.append(report.Figure(f"quoted.{name}", len(found), "requests"))
        if not found:
            continue
        every += found if name in TRACES else []
        shown += [
            report.Figure(f"quoted_within_10_pct.{name}", near(found), "%"),
            report.Figure(f"oracle_within_10_pct.{name}", oracle(found), "%"),
            report.Figure(f"predictable_pct.{name}", predictable(found), "%"),
            report.Figure(f"ended_by_95_pct.{name}", covered(found), "%"),
        ]
    within, ceiling = near(every), oracle(every)
    shown += [
        report.Figure("predictable_pct", predictable(every), "%"),
        report.Figure("oracle_within_10_pct", ceiling, "%"),
        report.Figure("quoted_of_oracle_pct", 100.0 * within / ceiling, "%"),
        report.Figure("quoted_within_10_pct", within, "%", target=">= 90"),
    ]
    report.show("quotes", shown, as_json=options.json)


if __name__ == "__main__":
    main()

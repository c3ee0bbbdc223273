"""Simulated runs of workflows: steps that request their devices when those before them have ended.

With objectives a run asks for a promise first, if the policy gives promises; a refused run requests
nothing. Other policies are asked for nothing and refuse no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.core import actions as do
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AdmitAnswer, Outcome
from simulator.workloads.model import (
    Arrival,
    HostSpec,
    Timing,
    Workflow,
    WorkflowStep,
    Workload,
    timing_on,
)

#: Times that differ by less are equal: they are sums in another order.
SAME_S = 1e-5


@dataclass(slots=True)
class SimRun:
    """One run of a workflow, and what came of it."""

    name: str
    workflow: Workflow
    arrival: Arrival
    asked_s: float
    outcome: str = "running"  #: running | refused | ended | done
    promised: bool = False
    cost_usd: float = 0.0  #: of the devices that its steps had
    ended_s: float | None = None
    ended: dict[str, None] = field(default_factory=dict)  #: steps

    @property
    def in_time(self) -> bool:
        """True when it ended within its objective of latency."""
        latency_s = self.arrival.latency_s
        if self.outcome != "done" or self.ended_s is None:
            return False
        return latency_s is None or self.ended_s - self.asked_s <= latency_s + SAME_S

    @property
    def in_budget(self) -> bool:
        """True when it ended within its objective of cost."""
        cost_usd = self.arrival.cost_usd
        return self.outcome == "done" and (cost_usd is None or self.cost_usd <= cost_usd + 1e-9)


#: Sends the request of a step: its name as an attempt, the arrival with its times, its workload.
Request = Callable[[str, Arrival, Workload], None]


class Workflows:
    """All runs of one simulation."""

    def __init__(
        self,
        workflows: Mapping[str, Workflow],
        ask: Callable[[ops.Admit], Sequence[do.Action]],
        request: Request,
        *,
        promises: bool,
    ) -> None:
        self.runs: list[SimRun] = []
        self._workflows, self._promises = workflows, promises
        self._ask, self._request = ask, request
        self._by_attempt: dict[str, tuple[SimRun, WorkflowStep]] = {}
        self._times = {
            name: {step.name: _times_of(step) for step in one.steps}
            for name, one in workflows.items()
        }

    def submit(self, arrival: Arrival, now_s: float) -> None:
        """Begin a run, unless its promise is refused."""
        workflow = self._workflows[str(arrival.workflow)]
        run = SimRun(f"r{len(self.runs)}", workflow, arrival, now_s)
        self.runs.append(run)
        if self._promises and not (arrival.latency_s is None and arrival.cost_usd is None):
            run.promised = self._admitted(run)
            if not run.promised:
                run.outcome, run.ended_s = "refused", now_s
                return
        self._begin(run, (step for step in workflow.steps if not step.after))

    def _admitted(self, run: SimRun) -> bool:
        times = self._times[run.workflow.name]
        steps = tuple(
            PromisedStep(
                name=step.name,
                job=f"{run.name}.{step.name}",
                request=step.workload.request(run.arrival.tenant),
                after=step.after,
                times=times[step.name],
            )
            for step in run.workflow.steps
        )
        slo = Slo(latency_s=run.arrival.latency_s, cost_usd=run.arrival.cost_usd)
        for action in self._ask(ops.Admit(run=run.name, steps=steps, slo=slo)):
            if isinstance(action, do.Reply) and isinstance(action.answer, AdmitAnswer):
                return action.answer.outcome is Outcome.GRANTED
        return False

    def _begin(self, run: SimRun, steps: Iterable[WorkflowStep]) -> None:
        for step in list(steps):
            attempt = f"{run.name}.{step.name}"
            self._by_attempt[attempt] = run, step
            self._request(attempt, run.arrival, step.workload)

    def step_ended(self, attempt: str, model: str, kind: str, now_s: float, *, done: bool) -> None:
        """Follow the end of a request; of another one than a step's nothing follows."""
        if attempt not in self._by_attempt:
            return
        run, step = self._by_attempt.pop(attempt)
        if not done:
            run.outcome, run.ended_s = "ended", now_s
            return
        run.ended[step.name] = None
        run.cost_usd += step.cost_on(model, kind)
        if len(run.ended) == len(run.workflow.steps):
            run.outcome, run.ended_s = "done", now_s
        ready = (
            one
            for one in run.workflow.steps
            if step.name in one.after and all(name in run.ended for name in one.after)
        )
        self._begin(run, ready)


def _times_of(step: WorkflowStep) -> Mapping[str, StepTimes]:
    workload = step.workload
    keys = dict.fromkeys((*workload.execution, *step.cost))
    return {
        key: StepTimes(
            execution_s=_median_s(workload.execution, key),
            loading_s=_median_s(workload.loading, key),
            batch_item_s=None if workload.batch is None else _median_s(workload.batch.item, key),
            cost_usd=step.cost_on(key, key),
        )
        for key in keys
        if timing_on(workload.execution, key, key).median_s > 0
    }


def _median_s(timings: Mapping[str, Timing], key: str) -> float:
    return timing_on(timings, key, key).median_s


def figures(runs: Sequence[SimRun], from_s: float, until_s: float) -> dict[str, float]:
    """Goodput and its complement, of the runs that were asked for since `from_s`."""
    measured = [run for run in runs if run.asked_s >= from_s]
    window_s = max(until_s - from_s, 1e-9)
    met = [run for run in measured if run.in_time and run.in_budget]
    promised = [run for run in measured if run.promised]
    return {
        "runs": float(len(measured)),
        "refused": float(sum(run.outcome == "refused" for run in measured)),
        "missed": float(sum(not (run.in_time and run.in_budget) for run in promised)),
        "goodput_per_s": len(met) / window_s,
        "goodput_pct": 100.0 * len(met) / len(measured) if measured else 0.0,
        "goodput_latency_per_s": sum(run.in_time for run in measured) / window_s,
        "goodput_cost_per_s": sum(run.in_budget for run in measured) / window_s,
    }


def whole_cluster_s(workflow: Workflow, hosts: Sequence[HostSpec]) -> float:
    """Device seconds of a run, if each step is spread over all devices that it has times for."""
    return sum(_spread_s(step, hosts) for step in workflow.steps)


def _spread_s(step: WorkflowStep, hosts: Sequence[HostSpec]) -> float:
    rate, devices = 0.0, 0
    for spec in hosts:
        number = spec.hosts * spec.devices
        seconds = timing_on(step.workload.execution, spec.model, spec.kind).median_s
        devices += number
        rate += number / seconds if seconds else 0.0
    return devices / rate if rate else 0.0

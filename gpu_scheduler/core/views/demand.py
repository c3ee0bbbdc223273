"""The ops of a fleet: `demand`, waiting requests by what they ask for, and the fleet's report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.tenants import Amount
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.queue.dispatch import held_back
from gpu_scheduler.core.state.request_class import RequestClass
from gpu_scheduler.core.state.request_group import RequestGroup
from gpu_scheduler.core.state.state import State
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import answers, ops

#: The expected time of a run of which nothing is known.
RUN_S_UNKNOWN = 60.0
#: Fields of a request that do not decide which devices it needs.
_PLAIN = Request()
_OTHER = (
    *("tenant", "workload", "warm_key", "priority", "preempts", "preemptible", "batch"),
    *("compute_limit_pct", "max_wait_s", "deadline_s", "advance"),
)


#: What `held_back` depends on: class and memory of a request, quota and holdings of its tenant.
_Rule = tuple[RequestClass, int, Quota, Amount | None]


@dataclass(slots=True)
class _Group:
    """Groups of the queue with equal requirements."""

    request: Request
    count: int = 0
    since_s: float = float("inf")
    work_s: float = 0.0
    #: Requests whose time on a model is learned, and the sum of these times.
    of_model: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, state: State, group: RequestGroup) -> None:
        count, runs_s = len(group.keys), _learned_s(state, group)
        run_s = statistics.median(runs_s.values()) if runs_s else _unknown_s(group.request)
        self.count += count
        self.work_s += count * run_s
        self.since_s = min(self.since_s, group.first[1])
        for model, learned_s in runs_s.items():
            known, total_s = self.of_model.get(model, (0, 0.0))
            self.of_model[model] = known + count, total_s + count * learned_s

    def view(self, wall_s: float) -> answers.DemandGroup:
        return answers.DemandGroup(
            request=self.request,
            count=self.count,
            oldest_s=max(0.0, wall_s - self.since_s),
            run_s=self.work_s / self.count,
            runs_s={
                model: total_s / known
                for model, (known, total_s) in self.of_model.items()
                if known == self.count
            },
        )


def reported(tx: QueueTransaction, event: on.Asked[ops.ReportFleet]) -> answers.Done:
    """Keep the pools of a fleet that starts hosts for the demand. Idempotent."""
    until_s = tx.at_s + tx.budget.fleet_report_s
    tx.state.fleets.put(event.session, event.op, tx.at_s, until_s)
    return answers.Done()


def demand(tx: QueueTransaction, event: on.Asked[ops.Demand]) -> answers.DemandAnswer:
    """The largest groups; requests that devices alone would not help are counted apart."""
    sums: dict[Request, _Group] = {}
    by_class: dict[tuple[RequestClass, int], _Group] = {}  # a request is compared once per class
    known: dict[_Rule, bool] = {}
    held = 0
    for group in tx.state.queue.groups():
        if _is_held_back(tx, group, known):
            held += len(group.keys)
            continue
        name = group.request_class, group.memory_mib
        found = by_class.get(name)
        if found is None:
            request = _plain(group.request)
            found = by_class[name] = sums.setdefault(request, _Group(request))
        found.add(tx.state, group)
    page = nlargest(event.op.limit, sums.values(), key=lambda one: one.count)
    return answers.DemandAnswer(
        groups=tuple(one.view(tx.wall_s) for one in page),
        left_out=sum(one.count for one in sums.values()) - sum(one.count for one in page),
        held_back=held,
    )


def _is_held_back(tx: QueueTransaction, group: RequestGroup, known: dict[_Rule, bool]) -> bool:
    """Whether a rule holds the group back; tenants that are equal before the rules share it."""
    state, tenant = tx.state, group.tenant
    quota, holds = state.parameters.quota(tenant), state.tenants.held.get(tenant)
    name = group.request_class, group.memory_mib, quota, holds
    verdict = known.get(name)
    if verdict is None:
        rule = held_back(tx, state.queue.entries[group.first[3]])
        verdict = known[name] = rule is not None
    return verdict


def _plain(request: Request) -> Request:
    return replace(request, **{name: getattr(_PLAIN, name) for name in _OTHER})


def _learned_s(state: State, group: RequestGroup) -> Mapping[str, float]:
    """The learned median time of a run by device model."""
    times = state.learned_times.of_workload(group.tenant, group.workload)
    if not times:
        return {}
    found = {model: one.execution_s(0.5) for model, one in times.items()}
    return {model: run_s for model, run_s in found.items() if run_s is not None}


def _unknown_s(request: Request) -> float:
    return RUN_S_UNKNOWN if request.lease_s is None else min(RUN_S_UNKNOWN, request.lease_s)

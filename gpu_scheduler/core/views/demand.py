"""The ops of a fleet: `demand`, waiting requests by what they ask for, and the fleet's report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.tenants import NOTHING, Amount, least_amount
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.queue.dispatch import held_back
from gpu_scheduler.core.state.request_class import RequestClass
from gpu_scheduler.core.state.request_group import RequestGroup
from gpu_scheduler.core.state.state import State
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import NO_QUOTA
from gpu_scheduler.protocol import answers, ops

#: The expected time of a run of which nothing is known.
RUN_S_UNKNOWN = 60.0
#: Fields of a request that do not decide which devices it needs.
_PLAIN = Request()
_OTHER = (
    *("tenant", "workload", "warm_key", "priority", "preempts", "preemptible", "batch"),
    *("compute_limit_pct", "max_wait_s", "deadline_s", "advance"),
)


#: Class and memory of a request: all of them ask for the same.
_Kind = tuple[RequestClass, int]


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


class _Rules:
    """The rules that hold groups back; what is left of a quota is computed once per tenant."""

    def __init__(self, tx: QueueTransaction) -> None:
        self._tx = tx
        self._left: dict[str, Amount | None] = {}  #: by tenant; None = it has no quota
        self._least: dict[_Kind, Amount] = {}
        self._held_back: dict[tuple[_Kind, Amount], bool] = {}
        self._all = not tx.state.has_room or len(tx.state.leases) >= tx.state.parameters.leases_max
        inventory = tx.state.inventory
        known = (*(entry.device for entry in inventory.devices.values()), *inventory.declared)
        self._largest_mib = max((device.memory_mib for device in known), default=0)

    def hold_back(self, group: RequestGroup, kind: _Kind) -> bool:
        """Whether a rule, and not a lack of devices, holds the group back; as `held_back`."""
        if self._all:
            return True
        left = self._left_to(group.tenant)
        if left is None:
            return False
        least = self._least.get(kind)
        if least is None:
            least = self._least[kind] = least_amount(group.request)
        if not least.fits(left):
            return True
        # not //: without a quota of memory that would be nan
        is_sized, each_mib = group.request.is_sized_by_device, left.memory_mib / least.devices
        if not is_sized or each_mib >= self._largest_mib:  # no device is too large for the rest
            return False
        if (kind, left) not in self._held_back:
            rule = held_back(self._tx, self._tx.state.queue.entries[group.first[3]])
            self._held_back[kind, left] = rule is not None
        return self._held_back[kind, left]

    def _left_to(self, tenant: str) -> Amount | None:
        if tenant not in self._left:
            state = self._tx.state
            quota, held = state.parameters.quota(tenant), state.tenants.held.get(tenant, NOTHING)
            self._left[tenant] = None if quota is NO_QUOTA else held.left_of(quota)
        return self._left[tenant]


def demand(tx: QueueTransaction, event: on.Asked[ops.Demand]) -> answers.DemandAnswer:
    """The largest groups; requests that devices alone would not help are counted apart."""
    sums: dict[Request, _Group] = {}
    by_class: dict[_Kind, _Group] = {}  # a request is compared once per class
    rules = _Rules(tx)
    held = 0
    for group in tx.state.queue.groups():
        name = group.request_class, group.memory_mib
        if rules.hold_back(group, name):
            held += len(group.keys)
            continue
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

"""Facts of the scheduler about functions that may run in Lambda or on a host."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpu_scheduler.data_names import first_missing, offered_of
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.ops import Op
from orchgpu.core.execution import HostFacts
from orchgpu.core.function import Function
from orchgpu.ports import AnswerT


class Asked(Protocol):
    """The scheduler, as far as it is asked here: a port of a replica, or a client."""

    async def ask(self, op: Op[AnswerT]) -> AnswerT:
        """Any op of the protocol, and its answer."""
        ...


async def host_facts(scheduler: Asked, functions: Collection[Function]) -> dict[str, HostFacts]:
    """By the name of each function with `execution: auto`. Raises AppError."""
    auto = [one for one in functions if one.execution == "auto"]
    if not auto:
        return {}
    inventory = await scheduler.ask(ops.Inventory())
    offered = [offered_of(host.programs) for host in inventory.hosts]
    learned = await _workloads(scheduler)
    facts = {}
    for one in auto:
        needed = () if one.host is None else one.host.programs
        facts[one.name] = HostFacts(
            offered=any(first_missing(needed, host) is None for host in offered),
            run_s=_run_s(one, learned),
        )
    return facts


async def _workloads(scheduler: Asked) -> list[answers.WorkloadView]:
    found: list[answers.WorkloadView] = []
    while True:
        page = await scheduler.ask(ops.Workloads(after=found[-1].id if found else ""))
        found += page.workloads
        if not page.more or not page.workloads:
            return found


def _run_s(function: Function, learned: Collection[answers.WorkloadView]) -> float | None:
    """Its learned time on the slowest model, with loading."""
    request = function.request
    times = [
        one.expected.execution_p95_s + (one.expected.loading_p95_s or 0.0)
        for one in learned
        if (one.tenant, one.workload) == (request.tenant, request.workload)
        and one.expected.execution_p95_s is not None
    ]
    return max(times, default=None)

"""The waiting requests by workload, for policies that decide.

A request class ignores the workload: it does not decide where a request fits. A `WorkloadGroup`
holds the requests of one tenant, one class, one memory size and one workload, so that a policy
compares a few groups instead of all waiting requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpu_scheduler.core.queue.request_class import QueueKey, RequestClass
from gpu_scheduler.protocol.changes import Waiting

GroupName = tuple[str, str | None, RequestClass, int]


@dataclass(eq=False, slots=True)
class WorkloadGroup:
    """Servable requests of one tenant, class, memory size and workload, in order of service."""

    tenant: str
    workload: str | None
    request_class: RequestClass
    memory_mib: int
    keys: list[QueueKey] = field(default_factory=list)  #: never empty

    @property
    def first(self) -> QueueKey:
        return self.keys[0]


class WorkloadIndex:
    """All workload groups."""

    def __init__(self) -> None:
        self.groups: dict[GroupName, WorkloadGroup] = {}

    def add(self, waiting: Waiting, request_class: RequestClass, key: QueueKey) -> None:
        """Add a servable request."""
        name = _name(waiting, request_class)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = WorkloadGroup(*name)
        insort(group.keys, key)

    def remove(self, waiting: Waiting, request_class: RequestClass, key: QueueKey) -> None:
        """Remove a request that was added."""
        name = _name(waiting, request_class)
        keys = self.groups[name].keys
        del keys[bisect_left(keys, key)]
        if not keys:
            del self.groups[name]


def _name(waiting: Waiting, request_class: RequestClass) -> GroupName:
    request = waiting.request
    return request.tenant, request.workload, request_class, request.memory_mib

"""The waiting requests by workload, for policies that decide.

A request class ignores the workload: it does not decide where a request fits. A `WorkloadGroup`
holds the requests of one tenant, one class, one memory size and one workload, so that a policy
compares a few groups instead of all waiting requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpu_scheduler.core.state.request_class import QueueKey, RequestClass
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


@dataclass(eq=False, slots=True)
class WorkloadQueue:
    """The groups of one tenant and workload, and the time that they are expected to take."""

    groups: dict[WorkloadGroup, None] = field(default_factory=dict)
    #: The sum of expected times, and the facts on which it depends; None after a change.
    expected: tuple[tuple[object, ...], float] | None = None


class FirstsOfClass:
    """The first requests of the workload groups of one request class, by memory."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  #: of memory, ascending
        self.firsts: dict[int, list[QueueKey]] = {}  #: by size, in order of service

    def add(self, memory_mib: int, key: QueueKey) -> None:
        """Add the first request of a group."""
        firsts = self.firsts.get(memory_mib)
        if firsts is None:
            firsts = self.firsts[memory_mib] = []
            insort(self.sizes, memory_mib)
        insort(firsts, key)

    def remove(self, memory_mib: int, key: QueueKey) -> None:
        """Remove a request that was added."""
        firsts = self.firsts[memory_mib]
        del firsts[bisect_left(firsts, key)]
        if not firsts:
            del self.firsts[memory_mib]
            del self.sizes[bisect_left(self.sizes, memory_mib)]


class WorkloadIndex:
    """All workload groups, with their first requests in order of service."""

    def __init__(self) -> None:
        self.groups: dict[GroupName, WorkloadGroup] = {}
        self.order: list[QueueKey] = []  #: first requests of all groups
        self.by_class: dict[RequestClass, FirstsOfClass] = {}
        self.by_first: dict[str, WorkloadGroup] = {}  #: attempt of the first request → group
        self.queues: dict[tuple[str, str | None], WorkloadQueue] = {}  #: by tenant and workload

    def add(self, waiting: Waiting, request_class: RequestClass, key: QueueKey) -> None:
        """Add a servable request."""
        name = _name(waiting, request_class)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = WorkloadGroup(*name)
        old = group.keys[0] if group.keys else None
        insort(group.keys, key)
        queue = self.queues.setdefault(name[:2], WorkloadQueue())
        queue.groups[group], queue.expected = None, None
        self._replace_first(group, old, group.keys[0])

    def remove(self, waiting: Waiting, request_class: RequestClass, key: QueueKey) -> None:
        """Remove a request that was added."""
        name = _name(waiting, request_class)
        group = self.groups[name]
        old = group.keys[0]
        del group.keys[bisect_left(group.keys, key)]
        self._replace_first(group, old, group.keys[0] if group.keys else None)
        queue = self.queues[name[:2]]
        queue.expected = None
        if not group.keys:
            del self.groups[name], queue.groups[group]
            if not queue.groups:
                del self.queues[name[:2]]

    def _replace_first(
        self, group: WorkloadGroup, old: QueueKey | None, new: QueueKey | None
    ) -> None:
        if old == new:
            return
        of_class = self.by_class.get(group.request_class)
        if of_class is None:
            of_class = self.by_class[group.request_class] = FirstsOfClass()
        if old is not None:
            del self.order[bisect_left(self.order, old)]
            del self.by_first[old[3]]
            of_class.remove(group.memory_mib, old)
        if new is not None:
            insort(self.order, new)
            self.by_first[new[3]] = group
            of_class.add(group.memory_mib, new)
        if not of_class.sizes:
            del self.by_class[group.request_class]


def _name(waiting: Waiting, request_class: RequestClass) -> GroupName:
    request = waiting.request
    return request.tenant, request.workload, request_class, request.memory_mib

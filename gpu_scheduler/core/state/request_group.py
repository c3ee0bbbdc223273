"""Groups of equal waiting requests, and their index by workload, for policies that decide.

A request class ignores the workload: it does not decide where a request fits. A policy that decides
compares a few groups instead of all waiting requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpu_scheduler.core.state.request_class import QueueKey, RequestClass
from gpu_scheduler.model import Request

GroupName = tuple[str, str | None, RequestClass, int]


@dataclass(eq=False, slots=True)
class RequestGroup:
    """Requests of one tenant, workload, class and memory size, in order of service."""

    tenant: str
    workload: str | None
    request_class: RequestClass
    memory_mib: int
    request: Request  #: one of these requests
    keys: list[QueueKey] = field(default_factory=list)  #: keys of servable requests
    members: int = 0  #: number of requests, including ineligible ones
    suspended: bool = False  #: see `WaitingQueue.suspend`

    @property
    def first(self) -> QueueKey:
        """The first servable request; there is one in every group of an index."""
        return self.keys[0]


@dataclass(eq=False, slots=True)
class WorkloadQueue:
    """The groups of one tenant and workload, and the time that they are expected to take."""

    groups: dict[RequestGroup, None] = field(default_factory=dict)
    #: The sum of expected times, and the facts on which it depends; None after a change.
    expected: tuple[tuple[object, ...], float] | None = None


class FirstsOfClass:
    """The first requests of the groups of one request class, by memory."""

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
    """All groups with a servable request, and these first requests in order of service."""

    def __init__(self) -> None:
        self.order: list[QueueKey] = []  #: first requests of all groups
        self.by_class: dict[RequestClass, FirstsOfClass] = {}
        self.by_first: dict[str, RequestGroup] = {}  #: attempt of the first request → group
        self.queues: dict[tuple[str, str | None], WorkloadQueue] = {}  #: by tenant and workload

    def change(self, group: RequestGroup, old: QueueKey | None, new: QueueKey | None) -> None:
        """Follow a group that got or lost a request; `old` and `new` are its first one."""
        name = group.tenant, group.workload
        queue = self.queues.setdefault(name, WorkloadQueue())
        queue.expected = None
        if new is not None:
            queue.groups[group] = None
        else:
            del queue.groups[group]
            if not queue.groups:
                del self.queues[name]
        if old != new:
            self._replace_first(group, old, new)

    def _replace_first(
        self, group: RequestGroup, old: QueueKey | None, new: QueueKey | None
    ) -> None:
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

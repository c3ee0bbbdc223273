"""The waiting requests in the order of service, in groups of equal requirements.

A `RequestGroup` holds the requests of one tenant and workload with equal requirements: when the
first request does not fit, none does. So a decision about 100,000 requests looks at a few groups,
and only at those that freed capacity may serve (`FirstByMemory`, ordering.py). A group is suspended
and keeps its place while its tenant's quota is used up: until the tenant releases something, or,
when no available device is small enough for the quota, until other devices are available.
Order: by `queue_key`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import chain

from corekit.ids import SessionId
from gpu_scheduler.core.state.request_class import (
    FirstByMemory,
    QueueKey,
    RequestClass,
    class_key,
    request_class_of,
)
from gpu_scheduler.core.state.request_group import GroupName, RequestGroup, WorkloadIndex
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.changes import Waiting

FirstByClass = dict[RequestClass, FirstByMemory]


class WaitingQueue:
    """The durable entries, and the order of those that may be served now."""

    def __init__(self, aging_s: float | None = None) -> None:
        self.entries: dict[str, Waiting] = {}
        self.accepting = 0  #: requests that take leases ahead
        self.by_session: dict[SessionId, dict[str, None]] = {}
        #: Requests whose grant was not accepted, until the next message of the session.
        self.unresponsive: dict[SessionId, dict[str, None]] = {}
        self.first_by_class: FirstByClass = {}  #: all groups that are not suspended
        self.by_tenant: dict[str, FirstByClass] = {}  #: groups by tenant
        #: Classes to evaluate on all devices, not only on freed ones.
        self.dirty: dict[RequestClass, None] = {}
        #: Of queued requests, by arrival. Replayed changes give the same ones, and a
        #: snapshot the same order (`in_order_of_arrival`).
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._aging_s = aging_s
        self.overtaken: dict[str, int] = {}  #: by attempt: current and former heads of the queue
        self._head: tuple[int, QueueKey | None] | None = None  #: by availability version
        self._order: list[QueueKey] = []  #: keys of all eligible requests, suspended or not
        self._group_of: dict[str, RequestGroup] = {}
        self._groups: dict[GroupName, RequestGroup] = {}
        self._classes: dict[tuple[object, ...], RequestClass] = {}
        self._preempting: dict[RequestGroup, None] = {}  #: groups whose requests may preempt
        self._suspended: dict[str, dict[RequestGroup, None]] = {}
        self._suspended_at: dict[RequestGroup, int] = {}  #: availability version, see `suspend`
        self._by_workload: WorkloadIndex | None = None  #: made for a policy that decides

    # ------------------------------------------------------------------ reading

    def queue_key(self, waiting: Waiting) -> QueueKey:
        """The order of service: waiting for `aging_s` equals one step of priority; without aging,
        priority comes first. Of requests of the same moment the first to arrive is served first.
        """
        since_s, priority = waiting.waiting_since_s, waiting.request.priority
        rank = -priority if self._aging_s is None else since_s - priority * self._aging_s
        return (rank, since_s, self._numbers.get(waiting.attempt, self._next), waiting.attempt)

    def in_order_of_arrival(self) -> list[Waiting]:
        """All requests; queued again in this order they have the same order of service."""
        return sorted(self.entries.values(), key=lambda waiting: self._numbers[waiting.attempt])

    def servable(self) -> Iterator[Waiting]:
        """The requests in the order of service, without ineligible ones."""
        for key in self._order:
            yield self.entries[key[3]]

    def class_of(self, waiting: Waiting) -> RequestClass:
        """The class of a queued request."""
        return self._group_of[waiting.attempt].request_class

    def by_workload(self) -> WorkloadIndex:
        """The servable requests by workload."""
        if self._by_workload is None:
            self._by_workload = WorkloadIndex()
            for key in self._order:
                group = self._group_of[key[3]]
                if key == group.keys[0]:
                    self._by_workload.change(group, None, key)
        return self._by_workload

    def forget_workloads(self) -> None:
        """Drop the index of workloads: the policy in force does not read it."""
        self._by_workload = None

    def group_heads(self) -> list[Waiting]:
        """The first request of every group, in order of service."""
        return [
            self.entries[key[3]]
            for key in sorted(group.keys[0] for group in self._groups.values() if group.keys)
        ]

    def groups(self) -> Iterator[RequestGroup]:
        """All groups with a servable request."""
        return (group for group in self._groups.values() if group.keys)

    def preempting(self, limit: int) -> list[Waiting]:
        """The first requests that may preempt, in order of service."""
        if not self._preempting:
            return []
        may = (group.keys[:limit] for group in self._preempting)
        return [self.entries[key[3]] for key in nsmallest(limit, chain.from_iterable(may))]

    def head(
        self, availability_version: int, available_mib: Callable[[Request], int]
    ) -> Waiting | None:
        """The first request that is not suspended and that available devices could serve.

        `available_mib`: the most memory that the devices for a request have (`capacity`).
        """
        if not self.first_by_class:
            return None
        if self._head is None or self._head[0] != availability_version:
            self._head = availability_version, self._first_within(available_mib)
        key = self._head[1]
        return None if key is None else self.entries[key[3]]

    def _first_within(self, available_mib: Callable[[Request], int]) -> QueueKey | None:
        first = min(by_memory.minimum for by_memory in self.first_by_class.values())
        group = self._group_of[first[3]]
        if group.memory_mib <= available_mib(group.request_class.request):
            return first  # nearly always
        firsts = (
            by_memory.first(available_mib(request_class.request))
            for request_class, by_memory in self.first_by_class.items()
        )
        return min((key for key in firsts if key is not None), default=None)

    def position(self, waiting: Waiting) -> int | None:
        """The position, also of a request not queued yet; 1 = next, None = ineligible."""
        if self.is_ineligible(waiting.attempt):
            return None
        return 1 + bisect_left(self._order, self.queue_key(waiting))

    def is_ineligible(self, attempt: str) -> bool:
        waiting = self.entries.get(attempt)
        if waiting is None:
            return False
        return waiting.session is None or self.is_unresponsive(waiting)

    def is_unresponsive(self, waiting: Waiting) -> bool:
        """True when the grant was not accepted and the session has been silent since."""
        return waiting.session is not None and waiting.attempt in self.unresponsive.get(
            waiting.session, ()
        )

    def in_order(self, limit: int | None = None) -> list[Waiting]:
        """The first requests in the order of service, then the ineligible ones."""
        served = [self.entries[key[3]] for key in self._order[:limit]]
        if limit is not None and len(served) >= limit:
            return served
        ineligible = [w for w in self.entries.values() if self.is_ineligible(w.attempt)]
        return [*served, *sorted(ineligible, key=self.queue_key)][:limit]

    def by_group(self) -> Iterator[tuple[Request, list[Waiting]]]:
        """All entries of a tenant with equal requirements, including ineligible ones."""
        members: dict[tuple[str, RequestClass, int], list[Waiting]] = {}
        for attempt, group in self._group_of.items():
            of_tenant = group.tenant, group.request_class, group.memory_mib
            members.setdefault(of_tenant, []).append(self.entries[attempt])
        for waiting in members.values():
            yield waiting[0].request, waiting

    # ------------------------------------------------------------------ changing

    def put(self, waiting: Waiting) -> None:
        """Queue a request, or replace a queued one, which keeps its number."""
        number = self._numbers.get(waiting.attempt, self._next)
        self.drop(waiting.attempt)
        self._numbers[waiting.attempt] = number
        self._next = max(self._next, number + 1)
        self.entries[waiting.attempt] = waiting
        self.accepting += waiting.request.advance is not None
        group = self._group_of[waiting.attempt] = self._group_for(waiting)
        group.members += 1
        if waiting.session is not None:
            self.by_session.setdefault(waiting.session, {})[waiting.attempt] = None
            self._add_key(waiting)

    def drop(self, attempt: str) -> None:
        """Remove a request; idempotent."""
        waiting = self.entries.get(attempt)
        if waiting is None:
            return
        if not self.is_ineligible(attempt):
            self._remove_key(waiting)
        if waiting.session is not None:
            _take_out(self.by_session, waiting.session, attempt)
            if self.is_unresponsive(waiting):
                _take_out(self.unresponsive, waiting.session, attempt)
        self.overtaken.pop(attempt, None)
        group = self._group_of.pop(attempt)
        group.members -= 1
        if not group.members:
            self._drop_group(group)
        del self.entries[attempt], self._numbers[attempt]
        self.accepting -= waiting.request.advance is not None

    def mark_unresponsive(self, attempt: str) -> None:
        """Exclude a request whose grant was not accepted, until its session responds."""
        waiting = self.entries[attempt]
        assert waiting.session is not None, "only a session can fail to accept a grant"
        self._remove_key(waiting)
        self.unresponsive.setdefault(waiting.session, {})[attempt] = None

    def mark_responsive(self, session: SessionId) -> None:
        """Restore the unresponsive requests of a session at their keys."""
        for attempt in self.unresponsive.pop(session, ()):
            self._add_key(self.entries[attempt])
            self.mark_dirty(attempt)

    def mark_dirty(self, attempt: str) -> None:
        """Evaluate the class of this request on all devices."""
        self.dirty[self._group_of[attempt].request_class] = None

    def mark_all_dirty(self) -> None:
        """Evaluate all classes on all devices: after a restart, or a change of parameters."""
        self.dirty = dict.fromkeys(self._classes.values())

    def reorder(self, aging_s: float | None) -> None:
        """Sort all requests again after a change of `aging_s`."""
        if aging_s == self._aging_s:
            return
        served = [self.entries[key[3]] for key in self._order]
        self._aging_s, self._by_workload = aging_s, None
        self._order = sorted(self.queue_key(waiting) for waiting in served)
        self.first_by_class, self.by_tenant, self._head = {}, {}, None
        for group in self._groups.values():
            group.keys.clear()
        for key in self._order:
            self._group_of[key[3]].keys.append(key)
        for group in self._groups.values():
            if group.keys and not group.suspended:
                self._update_index(group, None, group.keys[0])

    # ------------------------------------------------------------------ quotas

    def suspend(self, attempt: str, availability_version: int | None = None) -> None:
        """Exclude the group of this request until `resume`.

        With `availability_version`: no available device is small enough; the group is resumed
        when the availability changes.
        """
        group = self._group_of[attempt]
        if not group.suspended:
            self._update_index(group, group.keys[0] if group.keys else None, None)
            group.suspended = True
            self._suspended.setdefault(group.tenant, {})[group] = None
            if availability_version is not None:
                self._suspended_at[group] = availability_version

    def suspended_before(self, availability_version: int) -> list[RequestGroup]:
        """Groups that were suspended under another availability."""
        return [group for group, then in self._suspended_at.items() if then != availability_version]

    def suspended(self, tenant: str) -> list[RequestGroup]:
        """Groups of a tenant that are suspended."""
        return list(self._suspended.get(tenant, ()))

    def suspended_tenants(self) -> list[str]:
        return list(self._suspended)

    def resume(self, group: RequestGroup) -> None:
        """Include a suspended group again, and evaluate its class on all devices."""
        self._clear_suspension(group)
        self._update_index(group, None, group.keys[0] if group.keys else None)
        self.dirty[group.request_class] = None

    def _clear_suspension(self, group: RequestGroup) -> None:
        group.suspended = False
        self._suspended_at.pop(group, None)
        of_tenant = self._suspended[group.tenant]
        del of_tenant[group]
        if not of_tenant:
            del self._suspended[group.tenant]

    def mark_sized_by_device_dirty(self, tenant: str) -> None:
        """Evaluate requests of a tenant again: its quota may allow larger devices now."""
        for request_class in self.by_tenant.get(tenant, ()):
            if request_class.request.is_sized_by_device:
                self.dirty[request_class] = None

    # ------------------------------------------------------------------ groups

    def _group_for(self, waiting: Waiting) -> RequestGroup:
        class_name = class_key(waiting)
        request_class = self._classes.get(class_name)
        if request_class is None:
            request_class = self._classes[class_name] = request_class_of(waiting)
        request = waiting.request
        name = (request.tenant, request.workload, request_class, request.memory_mib)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = RequestGroup(*name, request)
            request_class.groups += 1
            if request.preempts:
                self._preempting[group] = None
        return group

    def _drop_group(self, group: RequestGroup) -> None:
        if group.suspended:
            self._clear_suspension(group)
        self._preempting.pop(group, None)
        request_class = group.request_class
        del self._groups[group.tenant, group.workload, request_class, group.memory_mib]
        request_class.groups -= 1
        if not request_class.groups:
            self.dirty.pop(request_class, None)
            del self._classes[request_class.key]

    def _add_key(self, waiting: Waiting) -> None:
        group, key = self._group_of[waiting.attempt], self.queue_key(waiting)
        insort(self._order, key)
        old = group.keys[0] if group.keys else None
        insort(group.keys, key)
        self._changed(group, old, group.keys[0])

    def _remove_key(self, waiting: Waiting) -> None:
        group, key = self._group_of[waiting.attempt], self.queue_key(waiting)
        del self._order[bisect_left(self._order, key)]
        old = group.keys[0]
        del group.keys[bisect_left(group.keys, key)]
        self._changed(group, old, group.keys[0] if group.keys else None)

    def _changed(self, group: RequestGroup, old: QueueKey | None, new: QueueKey | None) -> None:
        """Update the indexes after a group got or lost a request; `old`, `new`: its first one."""
        if self._by_workload is not None:
            self._by_workload.change(group, old, new)
        if not group.suspended:
            self._update_index(group, old, new)

    def _update_index(
        self, group: RequestGroup, old: QueueKey | None, new: QueueKey | None
    ) -> None:
        if old == new:
            return
        self._head = None
        of_tenant = self.by_tenant.setdefault(group.tenant, {})
        for first_by_class in (self.first_by_class, of_tenant):
            by_memory = first_by_class.get(group.request_class)
            if by_memory is None:
                by_memory = first_by_class[group.request_class] = FirstByMemory()
            by_memory.replace_first(group.memory_mib, old, new)
            if not by_memory:
                del first_by_class[group.request_class]
        if not of_tenant:
            del self.by_tenant[group.tenant]


def _take_out(groups: dict[SessionId, dict[str, None]], session: SessionId, attempt: str) -> None:
    of_tenant = groups[session]
    del of_tenant[attempt]
    if not of_tenant:
        del groups[session]

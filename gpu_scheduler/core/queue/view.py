"""The view of a policy: requests, devices, leases, its parameters and its memory.

Everything is read-only. A view is made for one question; requests of equal requirements are
evaluated once in it. Steps of a method: `waiting`, `groups` and `fitting` one for each item that
is used; `place` and `fits` a few; `after` two for each device that is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.inventory.available import Rank, rank_of
from gpu_scheduler.core.inventory.devices import fits, is_feasible, unavailable_reason
from gpu_scheduler.core.placement.eviction import resident_key, taken, usable
from gpu_scheduler.core.placement.placement import fitting, place
from gpu_scheduler.core.state.policy_memory import MemoryKind
from gpu_scheduler.core.state.request_class import QueueKey, RequestClass
from gpu_scheduler.core.state.request_group import RequestGroup, WorkloadIndex
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.core.state.waiting_queue import WaitingQueue
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import NO_QUOTA
from gpu_scheduler.protocol.changes import Scalar, Waiting

EXPECTED = 0.5  #: the quantile of a learned time that stands for the next one
#: Most fitting devices that `next_free` compares.
SAMPLE_MAX = 256
_DRAW_BITS = 53  #: of a number of the stream: all that a float between 0 and 1 has


#: Parameters of a policy by name.
Values = Mapping[str, str | float | bool]


class PlacementKey(NamedTuple):
    """The part of a request that decides about its placement."""

    request_class: RequestClass
    memory_mib: int
    memory_max_mib: int | None
    resident: str | None  #: key of its workload, if a device has a warm worker of it


@dataclass(slots=True)
class View:
    """The input of every question to a policy."""

    state: State
    budget: Budget
    at_s: float  #: monotonic
    wall_s: float  #: seconds since 1970
    values: Values  #: parameters of the policy, as they were set or by default
    drawn: int = 0  #: numbers drawn by this view
    _keys: dict[str, PlacementKey | None] = field(default_factory=dict)  #: by attempt
    _placed: dict[PlacementKey, tuple[DeviceId, ...] | None] = field(default_factory=dict)
    _sampled: dict[tuple[PlacementKey, int], tuple[DeviceId, ...]] = field(default_factory=dict)

    # ------------------------------------------------------------------ requests

    def waiting(self) -> Iterator[Waiting]:
        """The requests that no quota holds back, in the order of the queue."""
        return (one for one in self.state.queue.servable() if self.is_allowed(one))

    def groups(self) -> Iterator[RequestGroup]:
        """The same by tenant, workload, requirements and memory: the oldest group first."""
        index = self.state.queue.by_workload()
        groups = (index.by_first[key[3]] for key in index.order)
        if not self.state.parameters.quotas:
            return groups
        return (group for group in groups if self.is_allowed(self.first(group)))

    def groups_of(self, tenant: str, workload: str | None) -> Iterator[RequestGroup]:
        """The groups of a tenant and workload that no quota holds back."""
        queue = self.state.queue.by_workload().queues.get((tenant, workload))
        groups = () if queue is None else queue.groups
        if self.state.parameters.quota(tenant) is NO_QUOTA:
            return iter(groups)
        return (group for group in groups if self.is_allowed(self.first(group)))

    def queued_s(self, tenant: str, workload: str | None, unknown_s: float) -> float:
        """The sum of the expected times of the requests of a tenant and workload.

        `unknown_s`: the time of a request without an expected one.
        """
        queue = self.state.queue.by_workload().queues.get((tenant, workload))
        if queue is None:
            return 0.0
        learned = self.state.learned_times.of_workload(tenant, workload)
        facts = (learned, self.state.inventory.availability_version, unknown_s)
        limited = self.state.parameters.quota(tenant) is not NO_QUOTA
        known = None if limited else queue.expected
        if known is None or known[0][0] is not learned or known[0][1:] != facts[1:]:
            groups = sorted(self.groups_of(tenant, workload), key=attrgetter("first"))
            known = queue.expected = facts, sum(self._expected_s(one, unknown_s) for one in groups)
        return known[1]

    def _expected_s(self, group: RequestGroup, unknown_s: float) -> float:
        """The sum of the expected times of a group: that of its first request for each."""
        expected_s = self.expected_s(self.first(group).request)
        return (unknown_s if expected_s is None else expected_s) * len(group.keys)

    def fitting_groups(self) -> Iterator[RequestGroup]:
        """The groups whose first request fits now, the oldest group first.

        Groups that fit no device cost nothing: of the sizes of one class, the first that does not
        fit ends the search.
        """
        index, preemptions = self.state.queue.by_workload(), self.state.preemptions
        own = sorted(index.by_first[one].first for one in preemptions if one in index.by_first)
        unlimited = not self.state.parameters.quotas and not preemptions
        last = None
        for key in merge(own, *self._fitting_firsts(index)):
            if key == last:
                continue
            last, waiting = key, self.state.queue.entries[key[3]]
            if unlimited or (self.is_allowed(waiting) and self._fits_alone(waiting)):
                yield index.by_first[key[3]]

    def _fitting_firsts(self, index: WorkloadIndex) -> Iterator[list[QueueKey]]:
        for request_class, of_class in index.by_class.items():
            for memory_mib in of_class.sizes:
                firsts = of_class.firsts[memory_mib]
                if not self._some_fits(self.state.queue.entries[firsts[0][3]], request_class):
                    break  # nor do larger ones
                yield firsts

    def _some_fits(self, waiting: Waiting, request_class: RequestClass) -> bool:
        """True when devices fit a request that has none of its own, and no quota."""
        request = waiting.request
        if request.warm_key is not None:
            return place(request, self.state.inventory) is not None
        return self._placed_as(request, self._placement_key(request, request_class)) is not None

    def _fits_alone(self, waiting: Waiting) -> bool:
        """True when a request fits whose class fits: within the sizes that its quota allows."""
        limited = self.state.parameters.quota(waiting.request.tenant) is not NO_QUOTA
        if not limited and waiting.attempt not in self.state.preemptions:
            return True
        return self.place(waiting) is not None

    def overdue(self, limit_s: float) -> Waiting | None:
        """The first request of the first group that waited for this long, in queue order."""
        order, at_s = self.state.queue.by_workload().order, self.wall_s
        late = (key for key in order if max(0.0, at_s - key[1]) >= limit_s)
        firsts = (self.state.queue.entries[key[3]] for key in late)
        return next((one for one in firsts if self.is_allowed(one)), None)

    def first(self, group: RequestGroup) -> Waiting:
        """The first request of a group."""
        return self.state.queue.entries[group.first[3]]

    def is_waiting(self, attempt: str) -> bool:
        """True when a request of this name is in the queue."""
        return attempt in self.state.queue.entries

    def waits_s(self, waiting: Waiting) -> float:
        """The time for which a request has waited."""
        return max(0.0, self.wall_s - waiting.waiting_since_s)

    def weight(self, tenant: str) -> float:
        """The weight of a tenant in fair shares."""
        return self.state.parameters.weight(tenant)

    def is_allowed(self, waiting: Waiting) -> bool:
        """True when no quota holds back a request."""
        return within_quota(self.state, waiting.request)

    # ------------------------------------------------------------------ devices

    def placement_key(self, waiting: Waiting) -> PlacementKey | None:
        """The part of a request that decides about its devices; None = it has devices of its own.

        Requests with equal keys have the same places and the same fitting devices.
        """
        if waiting.attempt not in self._keys:
            own = waiting.request.warm_key is not None or waiting.attempt in self.state.preemptions
            self._keys[waiting.attempt] = None if own else self._shared_key(waiting)
        return self._keys[waiting.attempt]

    def _shared_key(self, waiting: Waiting) -> PlacementKey:
        return self._placement_key(self.clamped(waiting), self.state.queue.class_of(waiting))

    def _placement_key(self, asked: Request, request_class: RequestClass) -> PlacementKey:
        key = resident_key(asked) if self.is_loaded(asked) else None
        return PlacementKey(request_class, asked.memory_mib, asked.memory_max_mib, key)

    def clamped(self, waiting: Waiting) -> Request:
        """The request without devices that are too large for what is left of its quota."""
        return clamped_to_quota(self.state, waiting.request)

    def place(self, waiting: Waiting) -> tuple[DeviceId, ...] | None:
        """The devices of the usual placement; None when the request does not fit now."""
        key = self.placement_key(waiting)
        if key is None:
            return place(self.clamped(waiting), self.state.inventory, waiting.attempt)
        if key in self._placed:
            return self._placed[key]
        return self._placed_as(self.clamped(waiting), key)

    def _placed_as(self, asked: Request, key: PlacementKey) -> tuple[DeviceId, ...] | None:
        if key not in self._placed:
            self._placed[key] = place(asked, self.state.inventory)
        return self._placed[key]

    def fitting(self, waiting: Waiting) -> Iterator[DeviceId]:
        """The devices that fit one device of a request now, those of its first preference."""
        asked = self.clamped(waiting)
        return fitting(asked, self.state.inventory, waiting.attempt)

    def sample(self, waiting: Waiting, most: int = SAMPLE_MAX) -> tuple[DeviceId, ...]:
        """The first of the fitting devices, `most` of them."""
        key = self.placement_key(waiting)
        if key is None:
            return tuple(islice(self.fitting(waiting), most))
        if (key, most) not in self._sampled:
            self._sampled[key, most] = tuple(islice(self.fitting(waiting), most))
        return self._sampled[key, most]

    def next_free(self, waiting: Waiting, last: str) -> DeviceId:
        """The fitting device that follows the device `last` in the cyclic order.

        Of more than `SAMPLE_MAX` fitting devices, some are compared.
        """
        after = self.rank(DeviceId(last)) if self.is_known(last) else ("", -1, "")
        ranks = map(self.rank, self.sample(waiting))
        return DeviceId(min(ranks, key=lambda rank: (rank <= after, rank))[2])

    def fits(self, waiting: Waiting, device: DeviceId) -> bool:
        """True when one device of the request fits this device now."""
        asked, state_of = self.clamped(waiting), self.state.inventory
        return fits(asked, state_of.state_of(device), waiting.attempt) is None

    def serves(self, waiting: Waiting, device: DeviceId) -> bool:
        """True when this device, free, would fit: it is available and as the request asks."""
        asked = self.clamped(waiting)
        device_state = self.state.inventory.state_of(device)
        available = unavailable_reason(device_state) is None
        return available and is_feasible(asked, device_state.device_class)

    def is_known(self, device: str) -> bool:
        """True while the device is in the inventory."""
        return device in self.state.inventory.devices

    def rank(self, device: DeviceId) -> Rank:
        """The place of a known device in the cyclic order: host, index, id."""
        return rank_of(self.state.inventory, device)

    def after(self, rank: Rank | None) -> Iterator[DeviceId]:
        """Every available device once, in cyclic order, from the one after `rank`."""
        return self.state.device_order.after(self.state.inventory, rank)

    def name(self, device: DeviceId) -> str:
        """The device as people name it: host and index."""
        entry = self.state.inventory.devices[device]
        return f"{entry.host}/{entry.device.index}"

    # ------------------------------------------------------------------ leases

    def leases(self, device: DeviceId) -> Iterator[LeaseEntry]:
        """The live leases that hold a share of a device."""
        leases = self.state.leases
        return (leases[lease] for lease in self.state.inventory.devices[device].shares)

    # ------------------------------------------------------------------ workloads

    def is_loaded(self, request: Request) -> bool:
        """True when any device has a warm worker of the workload of the request."""
        key = resident_key(request)
        return key is not None and self.state.inventory.residents.with_workload(key) is not None

    def is_warm(self, request: Request, device: DeviceId) -> bool:
        """True when the device has a warm worker that the request can use."""
        return usable(request, self.state.inventory, device) is not None

    def workers(self, request: Request) -> int:
        """The number of devices that have loaded the workload of the request: warm or in use."""
        key = resident_key(request)
        if key is None:
            return 0
        warm = self.state.inventory.residents.with_workload(key)
        idle = 0 if warm is None else sum(len(group.devices) for group in warm.groups.values())
        return idle + self.state.shares_of.get((request.tenant, request.workload or ""), 0)

    def eviction_cost(self, waiting: Waiting, device: DeviceId) -> tuple[float, int, Rank]:
        """A measure for cold starts: time to load again what is evicted; residents; rank."""
        inventory = self.state.inventory
        residents, rank = inventory.residents.of(device), rank_of(inventory, device)
        if not residents:
            return 0.0, 0, rank
        return taken(waiting.request, inventory, device).loading_s, len(residents), rank

    def expected_s(self, request: Request) -> float | None:
        """The expected length of a lease; None = unknown.

        The learned execution time on the first preferred model that has one, else as stated.
        """
        learned = self.state.learned_times.of_workload(request.tenant, request.workload)
        if not learned:
            return request.lease_s
        for groups in self.state.inventory.index.ranked(request):
            for group in groups:
                times = learned.get(group.device_class.model)
                if times is not None and (execution_s := times.execution_s(EXPECTED)) is not None:
                    return execution_s
        return request.lease_s

    # ------------------------------------------------------------------ own state

    @property
    def memory(self) -> Mapping[str, Scalar]:
        """The values that the policy remembers."""
        return self.state.memory.values

    def remembered(self, prefix: str) -> MemoryKind:
        """The remembered values whose names begin with `prefix`, which ends with the first `/`."""
        return self.state.memory.kind(prefix)

    def unknown_devices(self, prefix: str) -> list[DeviceId]:
        """The devices by which values of this kind are named and which are in no inventory."""
        kind, version = self.remembered(prefix), self.state.inventory.availability_version
        if kind.known_at == version:
            return []
        unknown = [DeviceId(name) for name in kind.values if not self.is_known(name)]
        if not unknown:
            kind.known_at = version
        return unknown

    def recalled(self, name: str) -> str:
        """A remembered text; empty when there is none."""
        found = self.memory.get(name, "")
        return found if isinstance(found, str) else ""

    def recalled_number(self, name: str, otherwise: float = 0.0) -> float:
        """A remembered number."""
        value = self.memory.get(name, otherwise)
        return otherwise if isinstance(value, str) else float(value)

    def draw(self) -> float:
        """The next number of the seeded stream, at least 0 and below 1.

        Numbers that were drawn before a `Pause` are drawn again by the next decision.
        """
        memory = self.state.memory
        position = memory.draws + self.drawn
        self.drawn += 1
        digest = hashlib.sha256(f"{memory.seed}/{position}".encode()).digest()
        return (int.from_bytes(digest[:8], "big") >> (64 - _DRAW_BITS)) / (1 << _DRAW_BITS)

    def number(self, name: str) -> float:
        """A parameter that is a number."""
        return float(self.values[name])


@contextmanager
def including(queue: WaitingQueue, waiting: Waiting) -> Iterator[None]:
    """Queue a request that is not waiting, for one question to the policy."""
    if waiting.attempt in queue.entries:
        yield
        return
    queue.put(waiting)
    try:
        yield
    finally:
        queue.drop(AttemptId(waiting.attempt))

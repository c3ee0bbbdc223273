"""The view of a deciding policy: requests, devices, leases, its parameters and its memory.

Everything is read-only. A view is made for one question; requests of equal requirements are
evaluated once in it. Steps of a method: `waiting`, `groups` and `fitting` one for each item that
is used; `place` and `fits` a few; `after` two for each device that is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.leases import forecast
from gpu_scheduler.core.placement import fits as feasibility
from gpu_scheduler.core.placement.device_order import Rank, rank_of
from gpu_scheduler.core.placement.eviction import resident_key, taken, usable
from gpu_scheduler.core.placement.placement import fitting, place
from gpu_scheduler.core.queue.policy import DecidingPolicy, values_of
from gpu_scheduler.core.queue.queue import WaitingQueue
from gpu_scheduler.core.queue.workload_group import WorkloadGroup
from gpu_scheduler.core.state import LeaseEntry, StateView
from gpu_scheduler.model import Request, Resident
from gpu_scheduler.protocol.changes import Scalar, Waiting

EXPECTED = 0.5  #: the quantile of a learned time that stands for the next one
#: Most fitting devices that `next_free` compares.
SAMPLE_MAX = 256
_DRAW_BITS = 53  #: of a number of the stream: all that a float between 0 and 1 has


class Times(NamedTuple):
    """Learned times of a workload on a device model."""

    execution_s: float | None  #: None: not known yet
    loading_s: float | None


class View:
    """The input of `DecidingPolicy.decide` and `DecidingPolicy.held`."""

    def __init__(
        self, policy: DecidingPolicy, state: StateView, budget: Budget, at_s: float, wall_s: float
    ) -> None:
        self.at_s, self.wall_s = at_s, wall_s  #: monotonic; seconds since 1970
        self.drawn = 0  #: numbers drawn by this view
        #: Parameters of the policy, as they were set or by default.
        self.values = values_of(state.parameters.policy, policy, state.parameters)
        self._state, self._budget = state, budget
        self._placed: dict[tuple[object, ...], tuple[DeviceId, ...] | None] = {}

    # ------------------------------------------------------------------ requests

    def waiting(self) -> Iterator[Waiting]:
        """The requests that no quota holds back, in the order of the queue."""
        return (one for one in self._state.queue.servable() if self._allowed(one))

    def groups(self) -> list[WorkloadGroup]:
        """The same by tenant, workload, requirements and memory: the oldest group first."""
        groups = self._state.queue.workload_groups()
        return [group for group in groups if self._allowed(self.first(group))]

    def first(self, group: WorkloadGroup) -> Waiting:
        """The first request of a group."""
        return self._state.queue.entries[group.first[2]]

    def is_waiting(self, attempt: str) -> bool:
        """True when a request of this name is in the queue."""
        return attempt in self._state.queue.entries

    def request(self, attempt: str) -> Waiting | None:
        """The waiting request of this name."""
        return self._state.queue.entries.get(attempt)

    def waits_s(self, waiting: Waiting) -> float:
        """The time for which a request has waited."""
        return max(0.0, self.wall_s - waiting.waiting_since_s)

    def weight(self, tenant: str) -> float:
        """The weight of a tenant in fair shares."""
        return self._state.parameters.weight(tenant)

    def _allowed(self, waiting: Waiting) -> bool:
        return within_quota(self._state, waiting.request)

    # ------------------------------------------------------------------ devices

    def place(self, waiting: Waiting) -> tuple[DeviceId, ...] | None:
        """The devices of the usual placement; None when the request does not fit now."""
        asked = clamped_to_quota(self._state, waiting.request)
        request_class = self._state.queue.class_of(waiting)
        name = (request_class, asked.memory_mib, asked.memory_max_mib, asked.workload, asked.tenant)
        own = asked.warm_key is not None or waiting.attempt in self._state.preemptions
        if own:
            return place(asked, self._state.inventory, waiting.attempt)
        if name not in self._placed:
            self._placed[name] = place(asked, self._state.inventory, waiting.attempt)
        return self._placed[name]

    def fitting(self, waiting: Waiting) -> Iterator[DeviceId]:
        """The devices that fit one device of a request now, those of its first preference."""
        asked = clamped_to_quota(self._state, waiting.request)
        return fitting(asked, self._state.inventory, waiting.attempt)

    def next_free(self, waiting: Waiting, last: str) -> DeviceId:
        """The fitting device that follows the device `last` in the cyclic order.

        Of more than `SAMPLE_MAX` fitting devices, some are compared.
        """
        after = self.rank(DeviceId(last)) if self.is_known(last) else ("", -1, "")
        ranks = map(self.rank, islice(self.fitting(waiting), SAMPLE_MAX))
        return DeviceId(min(ranks, key=lambda rank: (rank <= after, rank))[2])

    def fits(self, waiting: Waiting, device: DeviceId) -> bool:
        """True when one device of the request fits this device now."""
        asked, state_of = clamped_to_quota(self._state, waiting.request), self._state.inventory
        return feasibility.fits(asked, state_of.state_of(device), waiting.attempt) is None

    def serves(self, waiting: Waiting, device: DeviceId) -> bool:
        """True when this device, free, would fit: it is available and as the request asks."""
        asked = clamped_to_quota(self._state, waiting.request)
        device_state = self._state.inventory.state_of(device)
        available = feasibility.unavailable_reason(device_state) is None
        return available and feasibility.is_feasible(asked, device_state)

    def is_known(self, device: str) -> bool:
        """True while the device is in the inventory."""
        return device in self._state.inventory.devices

    def rank(self, device: DeviceId) -> Rank:
        """The place of a known device in the cyclic order: host, index, id."""
        return rank_of(self._state.inventory, device)

    def after(self, rank: Rank | None) -> Iterator[DeviceId]:
        """Every available device once, in cyclic order, from the one after `rank`."""
        return self._state.device_order.after(self._state.inventory, rank)

    def name(self, device: DeviceId) -> str:
        """The device as people name it: host and index."""
        entry = self._state.inventory.devices[device]
        return f"{entry.host}/{entry.device.index}"

    def utilisation_pct(self, device: DeviceId) -> int | None:
        """The last reported utilisation; None = its host reports none."""
        usage = self._state.inventory.devices[device].usage
        return None if usage is None else usage.utilisation_pct

    # ------------------------------------------------------------------ leases

    def leases(self, device: DeviceId) -> Iterator[LeaseEntry]:
        """The live leases that hold a share of a device."""
        leases = self._state.leases
        return (leases[lease] for lease in self._state.inventory.devices[device].shares)

    def ends_by_s(self, lease: LeaseEntry) -> float | None:
        """The latest end of a lease (monotonic) by its stated length; None = not stated."""
        return forecast.ends_by_s(lease, self._budget)

    def free_s(self, waiting: Waiting, device: DeviceId) -> float | None:
        """The time when the device fits the request (monotonic); 0 = now, None = unknown."""
        return forecast.free_for_s(self._state, self._budget, device, waiting.request)

    # ------------------------------------------------------------------ workloads

    def residents(self, device: DeviceId) -> tuple[Resident, ...]:
        """The warm workers of a device that no lease uses."""
        return tuple(self._state.inventory.residents.of(device).values())

    def is_warm(self, request: Request, device: DeviceId) -> bool:
        """True when the device has a warm worker that the request can use."""
        return usable(request, self._state.inventory, device) is not None

    def workers(self, request: Request) -> int:
        """The number of devices that have loaded the workload of the request: warm or in use."""
        key = resident_key(request)
        if key is None:
            return 0
        warm = self._state.inventory.residents.with_workload(key)
        idle = 0 if warm is None else sum(len(group.devices) for group in warm.groups.values())
        return idle + self._state.shares_of.get((request.tenant, request.workload or ""), 0)

    def reloading_s(self, waiting: Waiting, device: DeviceId) -> float:
        """The time to load again what a grant on this device evicts; 0 = it evicts nothing."""
        return taken(waiting.request, self._state.inventory, device).loading_s

    def times(self, tenant: str, workload: str | None, model: str) -> Times | None:
        """The learned times of a workload on a device model; None = never seen."""
        found = self._state.learned_times.of(tenant, workload, model)
        if found is None:
            return None
        return Times(found.execution_s(EXPECTED), found.loading_s(EXPECTED))

    def model(self, device: DeviceId) -> str:
        """The model of a known device."""
        return self._state.inventory.devices[device].device.model

    def expected_s(self, request: Request) -> float | None:
        """The expected length of a lease; None = unknown.

        The learned execution time on the first preferred model that has one, else as stated.
        """
        for groups in self._state.inventory.index.ranked(request):
            for group in groups:
                model = group.device_class.model
                times = self.times(request.tenant, request.workload, model)
                if times is not None and times.execution_s is not None:
                    return times.execution_s
        return request.lease_s

    # ------------------------------------------------------------------ own state

    @property
    def memory(self) -> Mapping[str, Scalar]:
        """The values that the policy remembers."""
        return self._state.memory.values

    def recalled(self, name: str) -> str:
        """A remembered text; empty when there is none."""
        found = self.memory.get(name, "")
        return found if isinstance(found, str) else ""

    def draw(self) -> float:
        """The next number of the seeded stream, at least 0 and below 1.

        Numbers that were drawn before a `Pause` are drawn again by the next decision.
        """
        memory = self._state.memory
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

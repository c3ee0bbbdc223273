"""The base of policies that only order requests: an index of what may fit makes the choice.

After every event, no servable request is left waiting. So only a change can make one servable:
freed capacity (available.py), or a request class that is dirty because one of its requests came
back or a quota has room again. In each such class, the first request that may fit is evaluated.
A newcomer needs no search in the queue. This is the one exception to "a policy sees the queue": it
keeps a decision below 1 ms with 100,000 waiting requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.leases.lengths import may_last_s
from gpu_scheduler.core.placement.head_reservation import reservable_for_head
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.queue.policy import Choice, Declaration, Pause, Policy, Remembered
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.core.state.request_class import FirstByMemory, QueueKey, RequestClass
from gpu_scheduler.core.state.waiting_queue import FirstByClass
from gpu_scheduler.model import MEMORY_MIB_MAX, LeaseLifetime
from gpu_scheduler.protocol.changes import Waiting

_PAUSE = Pause()
_NOTHING: Remembered = {}


class _Servable(NamedTuple):
    """A request that can be served, with its place in the queue."""

    key: QueueKey
    choice: Choice


class OrderingPolicy(Policy):
    """A base for policies that only order: first come, first served unless `order` differs.

    The head is overtaken `bypass_max` times at most; then the devices nearest to being free for it
    are reserved. Under every policy that keeps `reserve`, no request starves while priorities age.
    """

    orders = True
    wait_bound = "(k + 1) × (bypass_max + 2) × L, with k requests before it, no lease longer than L"
    starves = ""
    decision_cost = (
        "less than 1 ms with 10,000 devices and 100,000 waiting requests, 99 % of the time"
    )

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - whatever its order is
        return Declaration(True, self.wait_bound, self.starves, self.decision_cost)

    def order(self, view: View) -> Iterator[FirstByClass]:
        """Sets of waiting requests; the first that holds a request that fits is served."""
        yield view.state.queue.first_by_class

    def reserve(self, view: View, head: Waiting) -> tuple[DeviceId, ...]:
        """Devices to reserve for the head of the queue; empty while it may be overtaken."""
        if view.state.head_reservation.overtaken < view.state.parameters.bypass_max:
            return ()
        return reservable_for_head(view.clamped(head), view.state.inventory)

    def backfill_until_s(self, view: View) -> float | None:  # noqa: ARG002 - no backfill
        """Start of the head (monotonic): a lease that ends before then may use its devices."""
        return None

    def decide(self, view: View) -> Choice | Pause:
        """The next request to serve in the order of the policy."""
        state, queue, freed_capacity = view.state, view.state.queue, view.state.freed_capacity
        if state.inventory.freed or freed_capacity.device_states:
            freed_capacity.take_in(state.inventory)
        if not freed_capacity.device_states and not queue.dirty:
            return _PAUSE
        if (choice := _for_head(view)) is not None:
            return choice
        until_s = _backfill_until_s(view, self)
        first = _first(view, queue.first_by_class, until_s)
        if first is None:
            state.clear_freed()
            return _PAUSE
        for candidates in self.order(view):
            all_classes = candidates is queue.first_by_class
            best = first if all_classes else _first(view, candidates, until_s)
            if best is not None:
                return best.choice
        return first.choice

    def newcomer(self, view: View, waiting: Waiting) -> Choice | None:
        # nothing in the queue can be served, so every free device may serve it
        reservation, head = waiting.attempt, view.state.head_reservation.attempt
        until_s = None if head is None else _backfill_until_s(view, self)
        if head is not None and until_s is not None:
            may_use = _ends_by(view, waiting.lease_s, waiting.hold, until_s)
            reservation = head if may_use else reservation
        asked = clamped_to_quota(view.state, waiting.request)
        devices = place(asked, view.state.inventory, reservation)
        if devices is None:
            return None
        return Choice(waiting.attempt, devices, _NOTHING, reservation)

    def preempting(
        self,
        view: View,
        waiting: Waiting,
        freed: tuple[DeviceId, ...],  # noqa: ARG002
    ) -> tuple[DeviceId, ...] | None:
        return place(view.clamped(waiting), view.state.inventory, waiting.attempt)


def _for_head(view: View) -> Choice | None:
    """The head of the queue, when the devices that are reserved for it are free."""
    head_reservation = view.state.head_reservation
    if not head_reservation.devices or head_reservation.attempt is None:
        return None
    waiting = view.state.queue.entries[head_reservation.attempt]
    devices = place(view.clamped(waiting), view.state.inventory, waiting.attempt)
    return None if devices is None else Choice(waiting.attempt, devices)


def _first(view: View, first_by_class: FirstByClass, until_s: float | None) -> _Servable | None:
    best: _Servable | None = None
    for request_class, max_mib, reservation in _candidates(view, first_by_class, until_s):
        by_memory = first_by_class.get(request_class)
        if by_memory and (best is None or by_memory.minimum < best.key):
            best = _first_of_class(view, by_memory, max_mib, reservation, best) or best
    return best


def _candidates(
    view: View, first_by_class: FirstByClass, until_s: float | None
) -> Iterator[tuple[RequestClass, int, str | None]]:
    """Classes that may be served, with the most memory and the usable reservation."""
    state = view.state
    reservation: str | None = None
    for request_class in list(first_by_class):
        if until_s is not None:
            may_use = _ends_by(view, request_class.length_s, request_class.hold, until_s)
            reservation = state.head_reservation.attempt if may_use else None
        if request_class in state.queue.dirty:
            yield request_class, MEMORY_MIB_MAX, reservation
            continue
        max_mib = -1
        for device_state in state.freed_capacity.device_states:
            max_mib = max(max_mib, request_class.max_mib(device_state, reservation))
        if max_mib >= 0:
            yield request_class, max_mib, reservation


def _backfill_until_s(view: View, policy: OrderingPolicy) -> float | None:
    """The end of backfill on the devices reserved for the head; None = no backfill."""
    return policy.backfill_until_s(view) if view.state.head_reservation.devices else None


def _ends_by(view: View, length_s: float | None, hold: LeaseLifetime, until_s: float) -> bool:
    """True when a lease of this length, granted now, ends by `until_s`."""
    lasts_s = may_last_s(length_s, hold, view.budget)
    return lasts_s is not None and view.at_s + lasts_s <= until_s


def _first_of_class(
    view: View,
    by_memory: FirstByMemory,
    max_mib: int,
    reservation: str | None,
    before: _Servable | None,
) -> _Servable | None:
    """The first request of one class that can be served and precedes another one.

    A request that fits no device proves that no request of the class with as much memory fits; a
    request that fits only devices too large for its quota proves nothing about others.
    """
    state, queue = view.state, view.state.queue
    skipped: QueueKey | None = None
    while (first := by_memory.first(max_mib, after=skipped)) is not None:
        if before is not None and first >= before.key:
            return None
        waiting = queue.entries[first[3]]
        request, whose = waiting.request, reservation or waiting.attempt
        if not within_quota(state, request):
            queue.suspend(waiting.attempt)
            continue
        asked = clamped_to_quota(state, request)
        devices = place(asked, state.inventory, whose)
        if devices is not None:
            choice = Choice(waiting.attempt, devices, _NOTHING, whose)
            return _Servable(first, choice)
        if asked is request or place(request, state.inventory, whose) is None:
            max_mib = request.memory_mib - 1
        else:
            skipped = first
    return None

"""The search for the next request to serve; it skips requests that cannot be served.

After every event, no servable request is left waiting. So only a change can make one servable:
freed capacity (freed_capacity.py), or a request class that is dirty because one of its requests
came back or a quota has room again. In each such class, the first request that may fit is
evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from corekit.values import Value
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.leases.forecast import may_last_s
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.core.queue.request_class import (
    MEMORY_MIB_MAX,
    FirstByMemory,
    QueueKey,
    RequestClass,
)
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import LeaseLifetime
from gpu_scheduler.protocol.changes import PolicyRemembered, Waiting


class Proposal(Value):
    """One request and the devices for it."""

    key: QueueKey
    waiting: Waiting
    devices: tuple[DeviceId, ...]
    reservation: str  #: attempt whose reserved devices the request may use: its own or the head's
    remembered: PolicyRemembered | None = None  #: by the policy, with this grant


def next_proposal(tx: Transaction) -> Proposal | None:
    """The next request to serve in the order of the policy; None when none can be served."""
    state, queue, freed_capacity = tx.state, tx.state.queue, tx.state.freed_capacity
    if state.inventory.freed or freed_capacity.device_states:
        freed_capacity.take_in(state.inventory)
    for attempt in state.preemptions:
        if (proposal := _for_reservation(tx, attempt)) is not None:
            return proposal
    if not freed_capacity.device_states and not queue.dirty:
        return None
    found = _for_head(tx)
    if found is not None:
        return found
    found = _first(tx, queue.first_by_class)
    if found is None:
        state.clear_freed()
        return None
    assert state.ordering is not None, "a deciding policy is asked by decide.py"
    for candidates in state.ordering.order(tx):
        proposal = found if candidates is queue.first_by_class else _first(tx, candidates)
        if proposal is not None:
            return proposal
    return found


def newcomer_proposal(tx: Transaction, waiting: Waiting) -> Proposal | None:
    """Devices for a request that is not in the queue; None when it does not fit."""
    state = tx.state
    reservation, head = waiting.attempt, state.head_reservation.attempt
    until_s = None if head is None else _backfill_until_s(tx)
    if head is not None and until_s is not None:
        may_use = _ends_by(tx, waiting.lease_s, waiting.hold, until_s)
        reservation = head if may_use else reservation
    devices = place(clamped_to_quota(state, waiting.request), state.inventory, reservation)
    if devices is None:
        return None
    key = state.queue.queue_key(waiting)
    return Proposal(key=key, waiting=waiting, devices=devices, reservation=reservation)


def _for_head(tx: Transaction) -> Proposal | None:
    """The head of the queue, when the devices that are reserved for it are free."""
    head_reservation = tx.state.head_reservation
    if not head_reservation.devices or head_reservation.attempt is None:
        return None
    return _for_reservation(tx, head_reservation.attempt)


def _for_reservation(tx: Transaction, attempt: str) -> Proposal | None:
    """A request for which devices are reserved, when enough are free for it."""
    queue = tx.state.queue
    waiting = queue.entries[attempt]
    asked = clamped_to_quota(tx.state, waiting.request)
    devices = place(asked, tx.state.inventory, waiting.attempt)
    if devices is None:
        return None
    key = queue.queue_key(waiting)
    return Proposal(key=key, waiting=waiting, devices=devices, reservation=waiting.attempt)


def _first(tx: Transaction, first_by_class: FirstByClass) -> Proposal | None:
    """The first request of these groups that can be served."""
    best: Proposal | None = None
    for request_class, max_mib, reservation in _candidates(tx, first_by_class):
        by_memory = first_by_class.get(request_class)
        if by_memory and (best is None or by_memory.minimum < best.key):
            best = _first_of_class(tx, by_memory, max_mib, reservation, best) or best
    return best


def _candidates(
    tx: Transaction, first_by_class: FirstByClass
) -> Iterator[tuple[RequestClass, int, str | None]]:
    """Classes that may be served, with the most memory and the usable reservation."""
    state, until_s = tx.state, _backfill_until_s(tx)
    reservation: str | None = None
    for request_class in list(first_by_class):
        if until_s is not None:
            may_use = _ends_by(tx, request_class.length_s, request_class.hold, until_s)
            reservation = state.head_reservation.attempt if may_use else None
        if request_class in state.queue.dirty:
            yield request_class, MEMORY_MIB_MAX, reservation
            continue
        max_mib = -1
        for device_state in state.freed_capacity.device_states:
            max_mib = max(max_mib, request_class.max_mib(device_state, reservation))
        if max_mib >= 0:
            yield request_class, max_mib, reservation


def _backfill_until_s(tx: Transaction) -> float | None:
    """The end of backfill on the devices reserved for the head; None = no backfill."""
    state = tx.state
    if state.ordering is None or not state.head_reservation.devices:
        return None
    return state.ordering.backfill_until_s(tx)


def _ends_by(tx: Transaction, length_s: float | None, hold: LeaseLifetime, until_s: float) -> bool:
    """True when a lease of this length, granted now, ends by `until_s`."""
    lasts_s = may_last_s(length_s, hold, tx.budget)
    return lasts_s is not None and tx.at_s + lasts_s <= until_s


def _first_of_class(
    tx: Transaction,
    by_memory: FirstByMemory,
    max_mib: int,
    reservation: str | None,
    before: Proposal | None,
) -> Proposal | None:
    """The first request of one class that can be served and precedes another proposal.

    A request that fits no device proves that no request of the class with as much memory fits; a
    request that fits only devices too large for its quota proves nothing about others.
    """
    state, queue = tx.state, tx.state.queue
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
            return Proposal(key=first, waiting=waiting, devices=devices, reservation=whose)
        if asked is request or place(request, state.inventory, whose) is None:
            max_mib = request.memory_mib - 1
        else:
            skipped = first
    return None

"""Finding whom to serve, without looking at those who cannot be.

After every event nothing waits that could be served. So only what changed since can serve anybody:
freed_capacity (freed_capacity.py), and kins that are dirty because a request of theirs came back or a quota has
room again. For each of them one request is searched at, the first in order that it may hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from corekit.values import Value
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.leases.forecast import may_last_s
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.policies import POLICIES
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.core.queue.request_class import (
    MEMORY_MIB_MAX,
    FirstByMemory,
    QueueKey,
    RequestClass,
)
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.protocol.changes import Waiting


class Proposal(Value):
    """One request and the devices it should have."""

    place: QueueKey
    waiting: Waiting
    devices: tuple[DeviceId, ...]
    reservation: (
        str  #: attempt whose kept devices it may have: its own, or the head's that lends them
    )


def next_proposal(tx: Transaction) -> Proposal | None:
    """Whom to serve next by the policy's order; None when nobody can be served."""
    state, queue, freed_capacity = tx.state, tx.state.queue, tx.state.freed_capacity
    freed_capacity.take_in(state.inventory)
    if not freed_capacity.device_states and not queue.dirty:
        return None
    found = _for_head(tx)
    if found is not None:
        return found
    found = _first(tx, queue.first_by_class)
    if found is None:
        state.clear_freed()
        return None
    for first_by_class in POLICIES[state.parameters.policy].first_by_class(tx):
        theirs = found if first_by_class is queue.first_by_class else _first(tx, first_by_class)
        if theirs is not None:
            return theirs
    return found


def newcomer_proposal(tx: Transaction, waiting: Waiting) -> Proposal | None:
    """Devices for a request that is not in the queue, when its tenant may have them."""
    state = tx.state
    reservation, head = waiting.attempt, state.head_reservation.attempt
    if head is not None:
        lasts_s = may_last_s(waiting.lease_s, waiting.hold, tx.budget)
        reservation = head if _ends_by(tx, lasts_s, _backfill_until_s(tx)) else reservation
    devices = place(clamped_to_quota(state, waiting.request), state.inventory, reservation)
    if devices is None:
        return None
    place_ = state.queue.queue_key(waiting)
    return Proposal(place=place_, waiting=waiting, devices=devices, reservation=reservation)


def _for_head(tx: Transaction) -> Proposal | None:
    """Whom devices are kept for goes first of all once they are free."""
    head_reservation, queue = tx.state.head_reservation, tx.state.queue
    if not head_reservation.kept or head_reservation.attempt is None:
        return None
    waiting = queue.entries[head_reservation.attempt]
    asked = clamped_to_quota(tx.state, waiting.request)
    devices = place(asked, tx.state.inventory, waiting.attempt)
    if devices is None:
        return None
    place_ = queue.queue_key(waiting)
    return Proposal(place=place_, waiting=waiting, devices=devices, reservation=waiting.attempt)


def _first(tx: Transaction, first_by_class: FirstByClass) -> Proposal | None:
    """The first in order of these first_by_class that can be served."""
    best: Proposal | None = None
    for request_class, max_mib, reservation in _candidates(tx, first_by_class):
        by_memory = first_by_class.get(request_class)
        if by_memory and (best is None or by_memory.least < best.place):
            best = _first_of_class(tx, by_memory, max_mib, reservation, best) or best
    return best


def _candidates(
    tx: Transaction, first_by_class: FirstByClass
) -> Iterator[tuple[RequestClass, int, str | None]]:
    """Kins that may be served, up to which memory, and with whose kept devices."""
    state, until_s = tx.state, _backfill_until_s(tx)
    for request_class in list(first_by_class):
        lasts_s = may_last_s(request_class.length_s, request_class.hold, tx.budget)
        reservation = state.head_reservation.attempt if _ends_by(tx, lasts_s, until_s) else None
        if request_class in state.queue.dirty:
            yield request_class, MEMORY_MIB_MAX, reservation
            continue
        max_mib = max(
            (
                request_class.max_mib(device_state, reservation)
                for device_state in state.freed_capacity.device_states
            ),
            default=-1,
        )
        if max_mib >= 0:
            yield request_class, max_mib, reservation


def _backfill_until_s(tx: Transaction) -> float | None:
    """Until when the policy lends what is kept for the head; None = not at all."""
    state = tx.state
    return (
        POLICIES[state.parameters.policy].lend_until_s(tx) if state.head_reservation.kept else None
    )


def _ends_by(tx: Transaction, lasts_s: float | None, until_s: float | None) -> bool:
    """Would a lease that is granted now be over by then?"""
    return until_s is not None and lasts_s is not None and tx.at_s + lasts_s <= until_s


def _first_of_class(
    tx: Transaction,
    by_memory: FirstByMemory,
    max_mib: int,
    reservation: str | None,
    before: Proposal | None,
) -> Proposal | None:
    """The first of one request_class that can be served, if it comes before another one.

    Who finds no devices shows that nobody of the request_class does who wants as much; who finds only devices
    too large for its quota shows nothing of others.
    """
    state, queue = tx.state, tx.state.queue
    passed: QueueKey | None = None
    while (first := by_memory.first(max_mib, after=passed)) is not None:
        if before is not None and first >= before.place:
            return None
        waiting = queue.entries[first[2]]
        request, whose = waiting.request, reservation or waiting.attempt
        if not within_quota(state, request):
            queue.suspend(waiting.attempt)
            continue
        asked = clamped_to_quota(state, request)
        devices = place(asked, state.inventory, whose)
        if devices is not None:
            return Proposal(place=first, waiting=waiting, devices=devices, reservation=whose)
        if asked is request or place(request, state.inventory, whose) is None:
            max_mib = request.memory_mib - 1
        else:
            passed = first
    return None

"""The forecast of the latest ends of leases, and of the start of the head of the queue.

Only stated lengths count (`Request.lease_s`, the length of a deadline lease): they are enforced, so
a forecast from them is an upper bound. Without a stated length there is no forecast.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.budget import Budget
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.core.inventory.inventory import DeviceEntry
from gpu_scheduler.core.placement.fits import fits
from gpu_scheduler.core.state import LeaseEntry, StateView
from gpu_scheduler.model import LeaseLifetime, LeaseState, Request


def may_last_s(length_s: float | None, hold: LeaseLifetime, budget: Budget) -> float | None:
    """The longest time from grant to end; None = unknown. Lengths count from the first session."""
    if length_s is None:
        return None
    if hold is LeaseLifetime.DEADLINE:
        return budget.accept_s + length_s
    return budget.accept_s + budget.reserved_ttl_s + budget.connect_by_s + length_s


def ends_by_s(entry: LeaseEntry, budget: Budget) -> float | None:
    """Latest end of a lease (monotonic), unless it is renewed; None = unknown."""
    if entry.lease_s is None or entry.deadline_s is None:
        return None
    if entry.lease.state is not LeaseState.RESERVED:
        return entry.deadline_s
    begins_s = entry.deadline_s
    if entry.lease.hold is LeaseLifetime.SESSION:
        begins_s += 0.0 if entry.accepted else budget.reserved_ttl_s
        begins_s += 0.0 if entry.staged else budget.connect_by_s
    return begins_s + entry.lease_s


def start_of_head_s(view: StateView, budget: Budget) -> float | None:
    """The time when all devices reserved for the head are free (monotonic); None = unknown."""
    waiting = view.queue.entries.get(view.head_reservation.attempt or "")
    if waiting is None:
        return None
    start_s = 0.0
    for device in view.head_reservation.devices:
        free_s = free_for_s(view, budget, device, waiting.request)
        if free_s is None:
            return None
        start_s = max(start_s, free_s)
    return start_s


def free_for_s(view: StateView, budget: Budget, device: DeviceId, request: Request) -> float | None:
    """The time when enough leases on a device have ended (monotonic); 0 = now, None = unknown."""
    entry = view.inventory.devices.get(device)
    if entry is None:
        return None  # removed; another device will be reserved
    if fits_without(entry, request, {}):
        return 0.0
    ends = ((ends_by_s(view.leases[lease], budget), lease) for lease in entry.shares)
    gone: dict[LeaseId, None] = {}
    for end_s, lease in sorted((end_s, lease) for end_s, lease in ends if end_s is not None):
        gone[lease] = None
        if fits_without(entry, request, gone):
            return end_s
    return None


def fits_without(entry: DeviceEntry, request: Request, gone: Mapping[LeaseId, None]) -> bool:
    """True when the request would fit the device, reserved or not, without these leases."""
    device_state = entry.device_state
    assert device_state is not None, "every known device is indexed"
    ended = [entry.shares[lease] for lease in gone]
    left = device_state._replace(
        free_mib=device_state.free_mib + sum(share.memory_mib for share in ended),
        free_permille=device_state.free_permille
        + sum(share.compute_guarantee_permille for share in ended),
        exclusive=device_state.exclusive and not ended,
        shared=device_state.shared and len(ended) < len(entry.shares),
    )
    return fits(request, left, device_state.reserved_for) is None

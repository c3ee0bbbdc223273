"""Late binding of shares: a booked lease without a session gives way to one ahead with a session.

The device is never held for an absent function while another one waits at its host.
"""

from __future__ import annotations

from collections.abc import Iterable

from corekit.ids import LeaseId
from gpu_scheduler.core.inventory.devices import fits
from gpu_scheduler.core.inventory.inventory import DeviceEntry, HostEntry
from gpu_scheduler.core.leases.leases import end
from gpu_scheduler.core.leases.lengths import fits_without
from gpu_scheduler.core.queue.advance import book_one, in_order, unbook, within_own_quota
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.model import EndReason, Health, HostState, LeaseState


def knocked(tx: QueueTransaction, entry: LeaseEntry) -> None:
    """A session waits for the shares of a lease ahead; a lease without a session gives way."""
    entry.knocked = True
    if not entry.ahead:
        return
    device = tx.state.inventory.devices[entry.lease.shares[0].device]
    for lease in device.shares:
        other = tx.state.leases[lease]
        fitting = _gives_way(other) and fits_without(device, entry.request, {lease: None})
        if fitting and _quota_allows(tx.state, other, entry):
            _swap(tx, other, entry)
            return


def left(tx: QueueTransaction, entry: LeaseEntry) -> None:
    """No session waits any more for a lease; if it is booked, it gives way to one that is ahead."""
    if not entry.knocked:
        return
    entry.knocked = False
    if not _gives_way(entry):
        return
    for other in in_order(tx.state, entry.lease.shares[0].device):
        if other.knocked and not entry.ahead:
            knocked(tx, other)


def waiting_at(tx: QueueTransaction, host: HostEntry, waiting: Iterable[LeaseId]) -> None:
    """Take over which sessions wait or are open at a host, as its hello has them: that is not
    durable. Those with shares come first, so that none of them gives way to one without."""
    leases = dict.fromkeys(waiting)
    there = (tx.state.leases[one] for one in host.leases)
    entries = sorted(there, key=lambda e: (e.ahead, e.lease.fence))
    for entry in entries:
        if entry.lease.id not in leases:
            left(tx, entry)
    for entry in entries:
        if entry.lease.id in leases:
            knocked(tx, entry)


def reclaim(tx: QueueTransaction, entry: LeaseEntry) -> bool:
    """Give an open session the shares that a lease without a session got meanwhile.

    False: they are another's for good, or the quota is used up; the lease is withdrawn.
    """
    device = tx.state.inventory.devices[entry.lease.shares[0].device]
    for lease in [one for one in (*entry.lease.after, *device.shares) if one in device.shares]:
        if _has_room(device, entry):
            break
        other = tx.state.leases[lease]
        reserved = other.lease.state is LeaseState.RESERVED and len(other.lease.shares) == 1
        if reserved and other.request.advance is not None and not other.ahead:
            unbook(tx, other, entry.lease.id)
    if not _has_room(device, entry) or not within_own_quota(tx.state, entry):
        end(tx, entry, EndReason.WITHDRAWN, "another lease has its shares")
        return False
    book_one(tx, entry)
    return True


def _has_room(device: DeviceEntry, entry: LeaseEntry) -> bool:
    """True when the shares of a lease are free, whether or not its device takes new leases."""
    now = device.device_state
    assert now is not None, "every known device is indexed"
    usable = now._replace(host_state=HostState.UP, health=Health.OK, reserved_for=None)
    return fits(entry.request, usable) is None


def _swap(tx: QueueTransaction, other: LeaseEntry, entry: LeaseEntry) -> None:
    unbook(tx, other, entry.lease.id)
    book_one(tx, entry)


def _quota_allows(state: State, other: LeaseEntry, entry: LeaseEntry) -> bool:
    """True when the tenant of `entry` may hold its shares once `other` has given up its own."""
    if other.lease.tenant != entry.lease.tenant:
        return within_own_quota(state, entry)
    held = state.tenants.held[entry.lease.tenant].plus(other.amount, -1)
    return held.plus(entry.amount).within(state.parameters.quota(entry.lease.tenant))


def _gives_way(entry: LeaseEntry) -> bool:
    """True for a staged lease without a session, whose request accepts to wait."""
    staged = entry.staged or (entry.lease.holder is None and entry.accepted)
    staged = staged and entry.lease.state is LeaseState.RESERVED
    whole = len(entry.lease.shares) == 1 and entry.preempted_for is None
    return staged and whole and not entry.knocked and entry.request.advance is not None

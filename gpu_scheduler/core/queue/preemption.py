"""Preemption: a request that may preempt ends leases that agreed to it, never others.

A waiting request with `preempts` that fits nowhere takes the device where the fewest leases must
end, then those that lose the least work. Only leases with `preemptible` and a lower priority end.
A running one gets `preempt_grace_s`: its hosts pass the notice on to its session, and the function
sends SIGTERM to the script. Meanwhile its device is reserved for the request. Quotas hold as ever.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import NamedTuple

from corekit.ids import AttemptId, DeviceId, LeaseId
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.inventory.devices import unavailable_reason
from gpu_scheduler.core.inventory.inventory import DeviceEntry
from gpu_scheduler.core.leases.leases import end, preempted_why
from gpu_scheduler.core.leases.lengths import Expected, fits_without, usable
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import EndReason, LeaseState, Placement, Request
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: The most waiting requests for which one event searches victims, the first ones in the queue.
REQUESTS_MAX = 8
#: The most devices that are compared for one request, those nearest to being free first.
DEVICES_MAX = 512


class Victims(NamedTuple):
    """The leases that must end before a request fits one device; fewer and newer ones are less."""

    number: int  #: without those that are ending already
    lost_s: float  #: the time that they have run
    device: DeviceId
    leases: tuple[LeaseId, ...]


def maintain(tx: Transaction) -> None:
    """Cancel the preemptions whose request was served, left, or cannot use its devices."""
    if not tx.state.preemptions:  # nearly always
        return
    for attempt, devices in list(tx.state.preemptions.items()):
        if not _is_needed(tx, attempt, devices):
            del tx.state.preemptions[attempt]
            _reserve(tx, devices, None, of=attempt)


def _is_needed(tx: Transaction, attempt: AttemptId, devices: tuple[DeviceId, ...]) -> bool:
    waiting, inventory = tx.state.queue.entries.get(attempt), tx.state.inventory
    if waiting is None or tx.state.queue.is_ineligible(attempt):
        return False
    usable_now = (
        device in inventory.devices and unavailable_reason(inventory.state_of(device)) is None
        for device in devices
    )
    return within_quota(tx.state, waiting.request) and all(usable_now)


def begin(tx: Transaction) -> bool:
    """Begin a preemption for each of the first waiting requests that may preempt and can.

    Returns True when one began: leases may have ended at once.
    """
    began, under_way = False, tx.state.preemptions
    for waiting in tx.state.queue.preempting(REQUESTS_MAX + len(under_way)):
        found = [] if waiting.attempt in under_way else _cheapest(tx, waiting)
        if found:
            _preempt(tx, waiting, found)
            began = True
    return began


def expected(tx: Transaction, waiting: to.Waiting) -> Expected | None:
    """The latest time at which preemption has freed the devices of a request; None = it does not.

    The preemption is under way, or would begin if the request waited now.
    """
    if not waiting.request.preempts:
        return None
    under_way = tx.state.preemptions.get(waiting.attempt)
    if under_way is None:
        leases = [lease for one in _cheapest(tx, waiting) for lease in one.leases]
    else:
        known = (tx.state.inventory.devices.get(device) for device in under_way)
        shared = (lease for entry in known if entry is not None for lease in entry.shares)
        leases = [one for one in shared if tx.state.leases[one].preempted_for is not None]
    ending = [tx.state.leases[lease] for lease in dict.fromkeys(leases)]
    if not ending:
        return None
    few = "1 preemptible lease of lower priority ends for it"
    many = f"{len(ending)} preemptible leases of lower priority end for it"
    at_s = max(_ends_by_s(tx, one) for one in ending)
    return Expected(at_s, few if len(ending) == 1 else many)


def _ends_by_s(tx: Transaction, entry: LeaseEntry) -> float:
    """The latest end of a lease that is preempted, or would be (monotonic)."""
    deadline_s = math.inf if entry.deadline_s is None else entry.deadline_s
    if entry.preempted_for is not None:
        return deadline_s
    if entry.lease.state is LeaseState.RESERVED:
        return tx.at_s
    return min(deadline_s, tx.at_s + tx.state.parameters.preempt_grace_s)


def _cheapest(tx: Transaction, waiting: to.Waiting) -> list[Victims]:
    """The cheapest devices for a request; empty when too few can be freed for it."""
    state, request = tx.state, waiting.request
    if not within_quota(state, request):
        return []
    asked = clamped_to_quota(state, request)
    candidates: dict[str, list[Victims]] = {}
    for device in islice(usable(asked, state.inventory, waiting.attempt), DEVICES_MAX):
        entry = state.inventory.devices[device]
        victims = _victims(tx, entry, asked)
        if victims is not None:
            on_one_host = request.placement is Placement.SAME_HOST
            candidates.setdefault(entry.host if on_one_host else "", []).append(victims)
    choices = [
        sorted(found)[: request.count]
        for found in candidates.values()
        if len(found) >= request.count
    ]
    return min(choices, key=lambda found: [one[:2] for one in found], default=[])


def _victims(tx: Transaction, entry: DeviceEntry, request: Request) -> Victims | None:
    """The leases that must end before the request fits a device; None = it cannot be freed."""
    agreed = [lease for lease in entry.shares if _agreed(tx.state.leases[lease], request)]
    gone: dict[LeaseId, None] = {}
    if not fits_without(entry, request, gone):
        for lease in sorted(agreed, key=lambda lease: _cost(tx, lease, entry)):
            gone[lease] = None
            if fits_without(entry, request, gone):
                break
        else:
            return None
    for lease in reversed(list(gone)):  # the costliest may be needless beside a larger one
        rest = {other: None for other in gone if other != lease}
        if fits_without(entry, request, rest):
            gone = rest
    running = [lease for lease in gone if tx.state.leases[lease].preempted_for is None]
    lost_s = sum(_ran_s(tx, tx.state.leases[lease]) for lease in running)
    return Victims(len(running), lost_s, entry.device.id, tuple(gone))


def _agreed(entry: LeaseEntry, request: Request) -> bool:
    """True when a lease agreed to be ended for requests of a higher priority, and this is one."""
    return entry.request.preemptible and entry.request.priority < request.priority


def _cost(tx: Transaction, lease: LeaseId, entry: DeviceEntry) -> tuple[bool, int, float]:
    """The order in which leases are ended: those that end anyway, large ones, new ones."""
    victim = tx.state.leases[lease]
    begins = victim.preempted_for is None
    return begins, -entry.shares[lease].memory_mib if begins else 0, _ran_s(tx, victim)


def _ran_s(tx: Transaction, entry: LeaseEntry) -> float:
    return 0.0 if entry.active_s is None else max(0.0, tx.wall_s - entry.active_s)


def _preempt(tx: Transaction, waiting: to.Waiting, found: list[Victims]) -> None:
    state, attempt = tx.state, waiting.attempt
    if state.head_reservation.attempt == attempt:  # these devices take the place of those
        _reserve(tx, state.head_reservation.devices, None, of=attempt)
        state.head_reservation.devices = ()
    devices = tuple(one.device for one in found)
    state.preemptions[attempt] = devices
    _reserve(tx, devices, attempt, of=attempt)
    for lease in dict.fromkeys(lease for one in found for lease in one.leases):
        entry = state.leases.get(lease)
        if entry is not None and entry.preempted_for is None:
            preempt(tx, entry, attempt, state.parameters.preempt_grace_s)


def preempt(tx: Transaction, entry: LeaseEntry, attempt: AttemptId, grace_s: float) -> None:
    """End a lease: at once before its session opened, else after the grace time.

    `attempt`: the request for which it ends, or `DRAINED`.
    """
    tx.emit(to.LeasePreempted(lease=entry.lease.id, attempt=attempt))
    if entry.lease.state is LeaseState.RESERVED or grace_s <= 0:
        end(tx, entry, EndReason.PREEMPTED, preempted_why(tx.state, entry))
        return
    if entry.deadline_s is None or entry.deadline_s > tx.at_s + grace_s:
        tx.set_deadline(entry, grace_s)
    tx.push_to_hosts(entry, host_ops.Preempt(lease=entry.lease.id, grace_s=grace_s))


def _reserve(
    tx: Transaction, devices: tuple[DeviceId, ...], attempt: AttemptId | None, *, of: AttemptId
) -> None:
    """Change the reservation of those devices that no other request has reserved."""
    known = (tx.state.inventory.devices.get(device) for device in devices)
    own = [e.device.id for e in known if e is not None and e.reserved_for in (None, of)]
    tx.state.inventory.reserve(own, attempt)
    tx.capacity_freed = tx.capacity_freed or attempt is None

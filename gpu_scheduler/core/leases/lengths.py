"""The lengths of leases: what a request may ask for, the forecast of ends, and expected starts.

Only stated lengths count (`Request.lease_s`, the length of a deadline lease): they are enforced, so
a forecast from them is an upper bound. Without a stated length there is no forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from corekit.budget import Budget
from corekit.errors import invalid
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.core.inventory.devices import fits
from gpu_scheduler.core.inventory.inventory import DeviceEntry, Inventory
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.model import LeaseLifetime, LeaseState, Placement, Request
from gpu_scheduler.parameters import Parameters

#: The most devices considered, those nearest to being free first.
DEVICES_MAX = 512


def check_length(
    parameters: Parameters, hold: LeaseLifetime, length_s: float | None, elapsed_s: float = 0.0
) -> None:
    """Raise INVALID for a deadline lease that may not last this long from now.

    Bounds on waiting depend on these lengths, so the `elapsed_s` since its start counts.
    """
    if hold is not LeaseLifetime.DEADLINE:
        return
    if length_s is None:
        raise invalid("hold deadline needs lease_s, the seconds until the lease ends")
    most_s = parameters.lease_s_max
    if not (length_s > 0 and elapsed_s + length_s <= most_s):
        in_all = f", of which {elapsed_s:.0f} s have elapsed" if elapsed_s else ""
        bound = f"more than 0 and at most {most_s:g} (parameter lease_s_max){in_all}"
        raise invalid(f"lease_s {length_s:g} must be {bound}")


# ---------------------------------------------------------------------- forecast


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


def start_of_head_s(view: State, budget: Budget) -> float | None:
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


def free_for_s(view: State, budget: Budget, device: DeviceId, request: Request) -> float | None:
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
            return _after_those_ahead_s(view, budget, device, end_s)
    return None


def _after_those_ahead_s(
    view: State, budget: Budget, device: DeviceId, free_s: float
) -> float | None:
    """The time when the leases that were granted ahead have had the device too; None = unknown."""
    for lease in view.ahead.get(device, ()):
        entry = view.leases[lease]
        length_s = may_last_s(entry.lease_s, entry.lease.hold, budget)
        if length_s is None:
            return None
        free_s += length_s
    return free_s


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


# ---------------------------------------------------------------------- expected starts


class Expected(NamedTuple):
    """An expected time with its basis, or the reason why it is unknown."""

    at_s: float | None  #: monotonic; None = unknown
    why: str


def expected(request: Request, view: State, budget: Budget, attempt: str | None = None) -> Expected:
    """The latest time at which `request.count` devices are free for the request."""
    hosts: dict[HostId, list[float]] = {}
    seen, unknown = 0, 0
    for device in islice(usable(request, view.inventory, attempt), DEVICES_MAX):
        seen += 1
        free_s = free_for_s(view, budget, device, request)
        if free_s is None:
            unknown += 1
        else:
            hosts.setdefault(view.inventory.devices[device].host, []).append(free_s)
    times = _together_s(request, list(hosts.values()))
    if times:
        return Expected(min(times), "blocking leases expire by then")
    return Expected(None, _unknown(request, seen, unknown))


def _together_s(request: Request, hosts: list[list[float]]) -> list[float]:
    """The time at which each choice of hosts has enough free devices."""
    if request.placement is not Placement.SAME_HOST:
        hosts = [[free_s for line in hosts for free_s in line]]
    return [sorted(line)[request.count - 1] for line in hosts if len(line) >= request.count]


def usable(request: Request, inventory: Inventory, attempt: str | None) -> Iterator[DeviceId]:
    """Feasible devices that are available and not reserved for another request."""
    for groups in inventory.index.ranked(request):
        for group in groups:
            for row in group.rows.values():
                yield from row.freest(0)
            yield from group.reserved_for(attempt)
            yield from group.exclusive


def _unknown(request: Request, usable: int, unknown: int) -> str:
    if usable < request.count:
        some = f"only {usable}" if usable else "none"
        return f"{some} of the feasible devices are up, healthy and not reserved for others"
    if unknown:
        return f"{unknown} of {usable} feasible devices have leases without a stated length"
    return "no single host has enough feasible devices"

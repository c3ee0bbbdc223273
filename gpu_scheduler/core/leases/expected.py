"""The expected time at which enough devices are free for a request.

Devices become free as their leases reach their stated lengths (`forecast.py`). Requests earlier in
the queue may take them first: the queue position counts those.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.leases.forecast import free_for_s
from gpu_scheduler.core.state import StateView
from gpu_scheduler.model import Placement, Request

#: The most devices considered, those nearest to being free first.
DEVICES_MAX = 512


class Expected(NamedTuple):
    """An expected time with its basis, or the reason why it is unknown."""

    at_s: float | None  #: monotonic; None = unknown
    why: str


def expected(
    request: Request, view: StateView, budget: Budget, attempt: str | None = None
) -> Expected:
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
            yield from group.reserved.get(attempt, ()) if attempt is not None else ()
            yield from group.exclusive


def _unknown(request: Request, usable: int, unknown: int) -> str:
    if usable < request.count:
        some = f"only {usable}" if usable else "none"
        return f"{some} of the feasible devices are up, healthy and not reserved for others"
    if unknown:
        return f"{unknown} of {usable} feasible devices have leases without a stated length"
    return "no single host has enough feasible devices"

"""When enough devices are expected to be free for a request, and what that rests on.

Devices come free as the leases on them reach their stated lengths (`forecast.py`); nothing is
guessed. Who is before it in the queue may take them first: the position says how many those are.
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

#: Devices searched at, those nearest to free first: what is found among them is soon enough to tell.
DEVICES_MAX = 512


class Expected(NamedTuple):
    """An answer, or why there is none."""

    at_s: float | None  #: monotonic; None = not known
    why: str


def expected(
    request: Request, view: StateView, budget: Budget, attempt: str | None = None
) -> Expected:
    """When `request.count` devices are free for it at the latest."""
    hosts: dict[HostId, list[float]] = {}
    usable, unknown = 0, 0
    for device in islice(_usable(request, view.inventory, attempt), DEVICES_MAX):
        usable += 1
        free_s = free_for_s(view, budget, device, request)
        if free_s is None:
            unknown += 1
        else:
            hosts.setdefault(view.inventory.devices[device].host, []).append(free_s)
    times = _together_s(request, list(hosts.values()))
    if times:
        return Expected(min(times), "the leases in its way have reached their stated lengths then")
    return Expected(None, _unknown(request, usable, unknown))


def _together_s(request: Request, hosts: list[list[float]]) -> list[float]:
    """When each choice of hosts has enough devices free."""
    if request.placement is not Placement.SAME_HOST:
        hosts = [[free_s for line in hosts for free_s in line]]
    return [sorted(line)[request.count - 1] for line in hosts if len(line) >= request.count]


def _usable(request: Request, inventory: Inventory, attempt: str | None) -> Iterator[DeviceId]:
    """Devices that could serve it, up and healthy, kept for nobody else."""
    for groups in inventory.index.ranked(request):
        for group in groups:
            for row in group.rows.values():
                yield from row.freest(0)
            yield from group.kept.get(attempt, ()) if attempt is not None else ()
            yield from group.lent


def _unknown(request: Request, usable: int, unknown: int) -> str:
    if usable < request.count:
        away = f"only {usable}" if usable else "none"
        return f"{away} of the devices that could serve it are up, healthy and not kept for others"
    if unknown:
        return f"{unknown} of {usable} devices that could serve it are lent for no stated length"
    return "no one host has enough devices that could serve it"

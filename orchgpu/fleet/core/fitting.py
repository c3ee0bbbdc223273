"""The number of requests of one kind that a host of an offer serves at the same time."""

from __future__ import annotations

import math

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.fleets import could_serve
from gpu_scheduler.model import Device, Placement, Request, Sharing
from orchgpu.fleet.core.model import Demand, Offer

#: Part of a device that a request without any guarantee is assumed to use.
LEAST_PART = 0.125


def lanes(request: Request, offer: Offer) -> float:
    """Requests that one host serves together; below 1 for one that needs several hosts, 0 = none.

    Feasibility is that of the scheduler. Middlewares, data and programs of a host that has not
    come are unknown, and assumed.
    """
    if not _feasible(request, offer):
        return 0.0
    together = max(1, math.floor(1.0 / _part(request, offer) + 1e-9))
    if request.count <= offer.devices:
        return float(offer.devices // request.count * together)
    if request.placement is Placement.SAME_HOST:
        return 0.0
    return together / math.ceil(request.count / offer.devices)


def _feasible(request: Request, offer: Offer) -> bool:
    device = Device(
        id=DeviceId(offer.name),
        index=0,
        kind=offer.kind,
        model=offer.model,
        memory_mib=offer.memory_mib,
    )
    return bool(request.count) and could_serve(request, device)


def _part(request: Request, offer: Offer) -> float:
    """The part of a device that one request takes."""
    if request.sharing is Sharing.EXCLUSIVE:
        return 1.0
    memory = request.memory_on_mib(offer.memory_mib) / offer.memory_mib
    return min(1.0, max(LEAST_PART, memory, request.compute_guarantee_pct / 100))


def host_seconds(demand: Demand, offer: Offer, horizon_s: float) -> float:
    """Seconds of one host that the whole demand takes; 0 = the offer cannot serve it.

    A run longer than the horizon counts with the horizon: more hosts than requests would be idle.
    """
    at_once = lanes(demand.request, offer)
    if not at_once:
        return 0.0
    run_s = demand.runs_s.get(offer.model, demand.run_s)
    return demand.count * min(max(run_s, 0.0) + 1e-3, horizon_s) / at_once

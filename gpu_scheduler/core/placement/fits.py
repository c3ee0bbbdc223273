"""Feasibility of a request on one device, in one function for all uses.

Placement, grants, explanations, infeasibility and the checkers use `fits`; the index of devices
(`index.py`) saves calls with equal results.
"""

from __future__ import annotations

from corekit.ids import HostId
from corekit.units import plain_percent
from gpu_scheduler.core.inventory.devices import (
    COMPUTE_PCT_MAX,
    DeviceState,
    permanent_mismatch,
    unavailable_reason,
)
from gpu_scheduler.model import Device, Request, Share, Sharing
from gpu_scheduler.verdicts import NoFit


def fits(request: Request, device_state: DeviceState, attempt: str | None = None) -> NoFit | None:
    """The first reason why a device in this state cannot serve `request` now; None when it can.

    Permanent reasons come first (see `permanent_mismatch`), then temporary ones.
    """
    return (
        permanent_mismatch(request, device_state)
        or unavailable_reason(device_state)
        or _not_now(request, device_state)
        or (NoFit.RESERVED_FOR_HEAD if device_state.reserved_for not in (None, attempt) else None)
    )


def _not_now(request: Request, device_state: DeviceState) -> NoFit | None:
    if device_state.exclusive:
        return NoFit.EXCLUSIVE_TAKEN
    if request.sharing is Sharing.EXCLUSIVE:
        return NoFit.SHARED_TAKEN if device_state.shared else None
    whole_mib = device_state.memory_mib
    asked_mib = request.memory_on_mib(whole_mib) if request.memory_pct else request.memory_mib
    if asked_mib > device_state.free_mib:
        return NoFit.MEMORY
    if 10 * request.compute_guarantee_pct > device_state.free_permille:  # exact for tenths
        return NoFit.COMPUTE
    return None


def share_of(request: Request, device: Device, host: str) -> Share:
    """The share of `device` for `request`; an exclusive one is the whole device."""
    exclusive = request.sharing is Sharing.EXCLUSIVE
    return Share(
        host=HostId(host),
        device=device.id,
        index=device.index,
        kind=device.kind,
        model=device.model,
        memory_mib=device.memory_mib if exclusive else request.memory_on_mib(device.memory_mib),
        compute_guarantee_pct=COMPUTE_PCT_MAX
        if exclusive
        else plain_percent(request.compute_guarantee_pct),
        compute_limit_pct=COMPUTE_PCT_MAX
        if exclusive
        else plain_percent(request.compute_limit_pct),
        exclusive=exclusive,
        driver=device.driver,
    )

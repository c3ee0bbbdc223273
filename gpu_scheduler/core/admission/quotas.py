"""What a tenant's quota has room for: how much more, and which devices.

An exclusive device counts with all its memory, so a quota of memory also says how large it may be:
none of a request's is larger than an even part of what is left. Then whatever devices are found,
their sum is within the quota, and who would take too large a one gets the next that is not.
"""

from __future__ import annotations

from corekit.values import replace
from gpu_scheduler.core.admission.tenants import NOTHING, least_amount
from gpu_scheduler.core.state import StateView
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.parameters import NO_QUOTA, Quota


def within_quota(state: StateView, request: Request) -> bool:
    """May its tenant hold that much more? At least that; `clamped_to_quota` sees to the rest."""
    quota = state.parameters.quota(request.tenant)
    return quota is NO_QUOTA or state.tenants.allows(request.tenant, least_amount(request), quota)


def clamped_to_quota(state: StateView, request: Request) -> Request:
    """The same without devices that are too large for what is left of its tenant's quota."""
    quota = state.parameters.quota(request.tenant)
    if quota is NO_QUOTA:
        return request
    held = state.tenants.held.get(request.tenant, NOTHING)
    return _limited(request, quota, int(held.memory_mib))


def allowed(state: StateView, request: Request) -> Request:
    """`clamped_to_quota`, while there is room for it at all: what to ask the devices for an answer."""
    return clamped_to_quota(state, request) if within_quota(state, request) else request


def held_text(state: StateView, tenant: str) -> str:
    """What a tenant holds of all that a quota may limit: `4 devices, 8192 MiB, 400 %`."""
    held = state.tenants.held.get(tenant, NOTHING)
    return f"{held.devices:.0f} devices, {held.memory_mib:.0f} MiB, {held.compute_pct:.0f} %"


def remaining_text(state: StateView, request: Request) -> str:
    """What a quota of memory has left: `60000 MiB, 30000 MiB for each of 2 devices`."""
    quota = state.parameters.quota(request.tenant)
    held = state.tenants.held.get(request.tenant, NOTHING)
    left_mib = (quota.memory_mib or 0) - int(held.memory_mib)
    if request.count == 1:
        return f"{left_mib} MiB"
    return f"{left_mib} MiB, {left_mib // request.count} MiB for each of {request.count} devices"


def clamped_to_whole_quota(request: Request, quota: Quota) -> Request:
    """The same without devices that are too large even while its tenant holds nothing."""
    return _limited(request, quota, 0)


def _limited(request: Request, quota: Quota, held_mib: int) -> Request:
    if quota.memory_mib is None or request.sharing is not Sharing.EXCLUSIVE:
        return request
    # at least what it asks of each: whether that is within the quota is not decided here
    max_mib = max((quota.memory_mib - held_mib) // request.count, request.memory_mib)
    if request.memory_max_mib is not None and request.memory_max_mib <= max_mib:
        return request
    return replace(request, memory_max_mib=max_mib)

"""The rest of a tenant's quota: the amount, and the largest devices that it allows.

An exclusive device counts with its whole memory, and a share in percent of the memory with more on
a larger device, so a quota of memory also bounds the size of the devices: none counts with more
than an equal part of what is left. Then any choice of devices is within the quota, and a request
gets a smaller device instead of one that is too large.
"""

from __future__ import annotations

from corekit.units import WHOLE_PERMILLE, permille_of
from corekit.values import replace
from gpu_scheduler.core.admission.tenants import NOTHING, Accounts, least_amount
from gpu_scheduler.model import MEMORY_MIB_MAX, Request
from gpu_scheduler.parameters import NO_QUOTA, Quota


def within_quota(accounts: Accounts, request: Request) -> bool:
    """True when the least amount of the request is within the quota of its tenant."""
    quota = accounts.parameters.quota(request.tenant)
    return quota is NO_QUOTA or accounts.tenants.allows(
        request.tenant, least_amount(request), quota
    )


def clamped_to_quota(accounts: Accounts, request: Request) -> Request:
    """The request without devices that are too large for what is left of the quota."""
    quota = accounts.parameters.quota(request.tenant)
    if quota is NO_QUOTA:
        return request
    held = accounts.tenants.held.get(request.tenant, NOTHING)
    return _limited(request, quota, int(held.memory_mib))


def request_to_explain(accounts: Accounts, request: Request) -> Request:
    """The request that an explanation is about: clamped while the quota has room for it."""
    return clamped_to_quota(accounts, request) if within_quota(accounts, request) else request


def held_text(accounts: Accounts, tenant: str) -> str:
    """The holdings of a tenant as text: `4 devices, 8192 MiB, 400 %`."""
    held = accounts.tenants.held.get(tenant, NOTHING)
    return (
        f"{held.devices:.0f} devices, {held.memory_mib:.0f} MiB, {held.compute_permille / 10:g} %"
    )


def remaining_text(accounts: Accounts, request: Request) -> str:
    """The rest of a quota of memory as text: `60000 MiB, 30000 MiB for each of 2 devices`."""
    quota = accounts.parameters.quota(request.tenant)
    held = accounts.tenants.held.get(request.tenant, NOTHING)
    left_mib = (quota.memory_mib or 0) - int(held.memory_mib)
    if request.count == 1:
        return f"{left_mib} MiB"
    return f"{left_mib} MiB, {left_mib // request.count} MiB for each of {request.count} devices"


def clamped_to_whole_quota(request: Request, quota: Quota) -> Request:
    """The request without devices that are larger than the whole quota allows."""
    return _limited(request, quota, 0)


def _largest_mib(permille: int, share_mib: int) -> int:
    """The size of the largest device of which this part is not more than `share_mib`."""
    return min(MEMORY_MIB_MAX, max(0, ((share_mib + 1) * WHOLE_PERMILLE - 1) // permille))


def _limited(request: Request, quota: Quota, held_mib: int) -> Request:
    if quota.memory_mib is None or not request.is_sized_by_device:
        return request
    left_mib = (quota.memory_mib - held_mib) // request.count
    if request.memory_pct:
        max_mib = _largest_mib(permille_of(request.memory_pct), left_mib)
    else:  # at least the requested memory: `within_quota` decides about that
        max_mib = max(left_mib, request.memory_mib)
    if request.memory_max_mib is not None and request.memory_max_mib <= max_mib:
        return request
    return replace(request, memory_max_mib=max_mib)

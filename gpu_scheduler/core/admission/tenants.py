"""Usage accounting of tenants, for quotas and for fair share.

The share of a tenant is its dominant share: its largest part of any one resource (devices, memory,
compute), divided by its weight. Live leases count in full. Past use counts as amount × time held,
halved every `usage_half_life_s`, divided by the mean lifetime of that half-life: a tenant that has
held an amount for long has the same share as one that holds it now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from corekit.units import permille_of
from gpu_scheduler.core.admission.rates import Rates
from gpu_scheduler.core.admission.usage_counts import UsageCounts
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX
from gpu_scheduler.model import Device, Request, Share, Sharing
from gpu_scheduler.parameters import NO_QUOTA, Parameters, Quota

#: The most tenants with past use; beyond this, the tenant with the least is evicted.
REMEMBERED_MAX = 10_000


class Amount(NamedTuple):
    """An amount of the three resources; in past use, multiplied by seconds."""

    devices: float = 0
    memory_mib: float = 0
    compute_permille: float = 0  #: tenths of a percent, so that sums are exact

    def plus(self, other: Amount, times: float = 1) -> Amount:
        devices, memory_mib, compute_permille = other
        return Amount(
            self.devices + times * devices,
            self.memory_mib + times * memory_mib,
            self.compute_permille + times * compute_permille,
        )

    def times(self, factor: float) -> Amount:
        return Amount(
            self.devices * factor, self.memory_mib * factor, self.compute_permille * factor
        )

    def within(self, quota: Quota) -> bool:
        return (
            (quota.devices is None or self.devices <= quota.devices)
            and (quota.memory_mib is None or self.memory_mib <= quota.memory_mib)
            and (
                quota.compute_pct is None or self.compute_permille <= permille_of(quota.compute_pct)
            )
        )

    def left_of(self, quota: Quota) -> Amount:
        """The amount that one who holds this may hold in addition."""
        compute_permille = None if quota.compute_pct is None else permille_of(quota.compute_pct)
        return Amount(
            math.inf if quota.devices is None else quota.devices - self.devices,
            math.inf if quota.memory_mib is None else quota.memory_mib - self.memory_mib,
            math.inf if compute_permille is None else compute_permille - self.compute_permille,
        )

    def fits(self, left: Amount) -> bool:
        """True when no resource of this amount exceeds that one."""
        return (
            self.devices <= left.devices
            and self.memory_mib <= left.memory_mib
            and self.compute_permille <= left.compute_permille
        )

    def in_percent(self) -> tuple[float, float, float]:
        """Past use as `TenantUsed` has it: compute in percent."""
        return self.devices, self.memory_mib, self.compute_permille / 10


def amount_of_percent(devices: float, memory_mib: float, compute_pct: float) -> Amount:
    """An amount of past use from the form of `TenantUsed`."""
    return Amount(devices, memory_mib, 10 * compute_pct)


NOTHING = Amount()


def amount_of(shares: Iterable[Share]) -> Amount:
    """The amount of these shares; an exclusive share is a whole device."""
    devices = memory_mib = compute_permille = 0
    for share in shares:
        devices += 1
        memory_mib += share.memory_mib
        compute_permille += share.compute_guarantee_permille
    return Amount(devices, memory_mib, compute_permille)


def least_amount(request: Request) -> Amount:
    """The least amount of a lease for the request; an exclusive device may be larger."""
    exclusive = request.sharing is Sharing.EXCLUSIVE
    compute_permille = COMPUTE_PERMILLE_MAX if exclusive else request.compute_guarantee_permille
    return Amount(
        request.count, request.count * request.memory_mib, request.count * compute_permille
    )


def capacity_of(devices: Iterable[Device]) -> Amount:
    """The total amount of these devices."""
    memory = [device.memory_mib for device in devices]
    return Amount(len(memory), sum(memory), COMPUTE_PERMILLE_MAX * len(memory))


class Used(NamedTuple):
    """Past use of a tenant in amounts × seconds, decayed up to `as_of_s`."""

    amount: Amount
    as_of_s: float  #: wall clock

    def at(self, wall_s: float, half_life_s: float) -> Amount:
        gone_s = max(0.0, wall_s - self.as_of_s)
        return self.amount.times(0.5 ** (gone_s / half_life_s))


@dataclass(slots=True)
class Tenants:
    """The accounting of all tenants. Derived from leases; only `used` is itself durable."""

    capacity: Amount = NOTHING  #: total of all known devices
    held: dict[str, Amount] = field(default_factory=dict)
    used: dict[str, Used] = field(default_factory=dict)
    freed: dict[str, None] = field(default_factory=dict)  #: tenants with releases; not durable

    def resize(self, before: Amount, after: Amount) -> None:
        """Replace the capacity of a host in the total."""
        self.capacity = self.capacity.plus(before, -1).plus(after)

    def add(self, tenant: str, amount: Amount) -> None:
        """Add a new lease."""
        held = self.held.get(tenant)
        self.held[tenant] = amount if held is None else held.plus(amount)

    def release(self, tenant: str, amount: Amount) -> None:
        """Subtract the shares of a lease that were freed."""
        left = self.held[tenant].plus(amount, -1)
        if left.devices:
            self.held[tenant] = left
        else:
            del self.held[tenant]
        self.freed[tenant] = None

    def charge(
        self, tenant: str, amount: Amount, for_s: float, wall_s: float, half_life_s: float
    ) -> None:
        """Add to the past use of a tenant."""
        before = self.used.get(tenant)
        past = NOTHING if before is None else before.at(wall_s, half_life_s)
        self.used[tenant] = Used(past.plus(amount, for_s), wall_s)
        if len(self.used) > REMEMBERED_MAX:
            del self.used[min(self.used, key=lambda name: self.used[name].amount)]

    def allows(self, tenant: str, amount: Amount, quota: Quota) -> bool:
        """True when the tenant may hold this amount in addition."""
        if quota is NO_QUOTA:
            return True
        return self.held.get(tenant, NOTHING).plus(amount).within(quota)

    def share(self, tenant: str, wall_s: float, parameters: Parameters) -> float:
        """The weighted dominant share; 1 = the whole of one resource, for a weight of 1."""
        devices, memory_mib, compute_permille = self.held.get(tenant, NOTHING)
        used = self.used.get(tenant)
        if used is not None:  # once per tenant and decision: no `Amount` is created for it
            half_life_s = parameters.usage_half_life_s
            gone_s = max(0.0, wall_s - used.as_of_s)
            per_mean_life = 0.5 ** (gone_s / half_life_s) * math.log(2) / half_life_s
            devices += used.amount.devices * per_mean_life
            memory_mib += used.amount.memory_mib * per_mean_life
            compute_permille += used.amount.compute_permille * per_mean_life
        all_ = self.capacity
        dominant = max(
            devices / max(1.0, all_.devices),
            memory_mib / max(1.0, all_.memory_mib),
            compute_permille / max(1.0, all_.compute_permille),
        )
        return dominant / parameters.weight(tenant)


@dataclass(slots=True)
class Accounts:
    """The part of the state that quotas and limits depend on."""

    parameters: Parameters = field(init=False)  #: in force: the configured ones with overrides
    tenants: Tenants = field(default_factory=Tenants)
    usage_counts: UsageCounts = field(default_factory=UsageCounts)
    rates: Rates = field(default_factory=Rates)  #: not durable

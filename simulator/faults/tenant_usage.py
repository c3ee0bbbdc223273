"""Usage accounting of tenants from the journal's entries alone, independent of the core's."""

from __future__ import annotations

from collections.abc import Iterable

from corekit.units import percent_of
from gpu_scheduler.model import LeaseState, Share
from gpu_scheduler.parameters import DEFAULT, Parameters, overridden
from gpu_scheduler.policy_parameters import Given
from gpu_scheduler.protocol import changes as to


class TenantUsage:
    """The shares of each tenant, and the grants that exceed its quota."""

    def __init__(self, configured: Parameters | None = None) -> None:
        self._configured = configured or Parameters()
        self._overrides: dict[str, Given] = {}
        self._parameters = self._configured
        self._held: dict[str, tuple[str, tuple[Share, ...]]] = {}  #: lease → tenant, shares
        self._ahead: dict[str, tuple[str, tuple[Share, ...]]] = {}  #: the same, granted ahead

    def note(self, entry: to.Entry) -> list[str]:
        """Apply one entry; a sentence for every quota that a grant in it exceeds."""
        return [broken for part in entry.parts for broken in self._note(part)]

    def _note(self, part: to.Part) -> Iterable[str]:
        match part:
            case to.LeaseGranted(lease=lease) if lease.after:
                self._ahead[lease.id] = (lease.tenant, lease.shares)
            case to.LeaseGranted(lease=lease):
                self._held[lease.id] = (lease.tenant, lease.shares)
                return self._broken(lease.tenant)
            case to.LeaseBooked(lease=name, after=()):
                self._held[name] = self._ahead.pop(name)
                return self._broken(self._held[name][0])
            case to.LeaseBooked(lease=name):
                self._ahead[name] = self._held.pop(name)
            case to.LeaseChanged(state=LeaseState.ENDING | LeaseState.ENDED):
                self._held.pop(part.lease, None)
                self._ahead.pop(part.lease, None)
            case to.ParameterSet(name=name, value=value):
                self._overrides.pop(name, None)
                if value != DEFAULT:
                    self._overrides[name] = value
                self._parameters = overridden(self._configured, self._overrides)
            case _:
                pass
        return ()

    def _broken(self, tenant: str) -> Iterable[str]:
        shares = [share for owner, held in self._held.values() if owner == tenant for share in held]
        quota = self._parameters.quota(tenant)
        held = {
            "devices": len(shares),
            "memory_mib": sum(share.memory_mib for share in shares),
            "compute_pct": percent_of(sum(share.compute_guarantee_permille for share in shares)),
        }
        for what, amount in held.items():
            limit = getattr(quota, what)
            if limit is not None and amount > limit:
                yield f"tenant {tenant} was granted {amount} {what} of {limit}"

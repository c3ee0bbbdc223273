"""HostControl of a host that is only watched: it has no sessions and no processes to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, EndReason, Resident
from gpu_scheduler.monitor.health import DeviceFault
from gpu_scheduler.protocol.host import Install, WarmLimits

logger = logging.getLogger(__name__)


class WatchedHost:
    """Tracks the leases of the host; a lease with a length ends by this host's own clock."""

    def __init__(self) -> None:
        self._leases: dict[LeaseId, Install] = {}
        self._ends_at_s: dict[LeaseId, float] = {}

    def installed(self) -> tuple[LeaseId, ...]:
        self._expire()
        return tuple(self._leases)

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Nothing to do: this program runs no workers."""

    def leased(self) -> Collection[DeviceId]:
        self._expire()
        return {share.device for lease in self._leases.values() for share in lease.shares}

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        """None: this program runs no processes."""
        return {}

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        """None: this program runs no workers."""
        return {}

    def warm_limits(self, limits: WarmLimits) -> None:
        """Nothing to do: there are no warm workers."""

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None:
        """Nothing to do: there are no warm workers."""

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        self._leases, self._ends_at_s = {}, {}
        for install in installs:
            self.install(install)
        logger.debug("full state", extra={"event": "full_state", "epoch": epoch})

    def install(self, install: Install) -> None:
        self._leases[install.lease] = install
        if install.cap_s is not None:
            self._ends_at_s[install.lease] = asyncio.get_running_loop().time() + install.cap_s
        logger.debug("installed", extra={"event": "installed", "lease": install.lease})

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        del fence
        self._forget(lease)
        logger.debug("ended", extra={"event": "ended", "lease": lease, "reason": reason.value})

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """Nothing to do: no sessions open here."""

    def preempt(self, lease: LeaseId, grace_s: float) -> None:
        """Nothing to do: no session can get the notice here."""

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Nothing to do: no limit is enforced here."""

    def link_changed(self, connected: bool) -> None:
        logger.info("scheduler reachable" if connected else "scheduler not reachable")

    def _expire(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for lease in [lease for lease, at_s in self._ends_at_s.items() if at_s <= now_s]:
            logger.info("lease expired", extra={"event": "expired", "lease": lease})
            self._forget(lease)

    def _forget(self, lease: LeaseId) -> None:
        self._leases.pop(lease, None)
        self._ends_at_s.pop(lease, None)

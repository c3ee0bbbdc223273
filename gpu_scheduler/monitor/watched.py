"""HostControl of a host that is only watched: it opens no doors and has nothing to cut."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Device, EndReason
from gpu_scheduler.monitor.health import Fault
from gpu_scheduler.protocol.host import Install

logger = logging.getLogger(__name__)


class WatchedHost:
    """Remembers what is lent; a lease with a length is over by this host's own clock."""

    def __init__(self) -> None:
        self._leases: dict[LeaseId, Install] = {}
        self._ends_at_s: dict[LeaseId, float] = {}

    def installed(self) -> tuple[LeaseId, ...]:
        self._expire()
        return tuple(self._leases)

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Nothing here is divided by us."""

    def leased(self) -> Collection[DeviceId]:
        self._expire()
        return {share.device for lease in self._leases.values() for share in lease.shares}

    def faults(self) -> Mapping[DeviceId, Fault]:
        """No process here is ours."""
        return {}

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        self._leases, self._ends_at_s = {}, {}
        for install in installs:
            self.install(install)
        logger.debug("full state", extra={"event": "full_state", "epoch": epoch})

    def install(self, install: Install) -> None:
        self._leases[install.lease] = install
        if install.cap_s is not None:
            self._ends_at_s[install.lease] = asyncio.get_running_loop().time() + install.cap_s
        logger.debug("lent", extra={"event": "lent", "lease": install.lease})

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        del fence
        self._forget(lease)
        logger.debug("over", extra={"event": "over", "lease": lease, "reason": reason.value})

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """Nobody connects through us."""

    def resize(self, lease: LeaseId, compute_limit_pct: int) -> None:
        """Nobody is held to a limit by us."""

    def link_changed(self, connected: bool) -> None:
        logger.info("scheduler reachable" if connected else "scheduler not reachable")

    def _expire(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for lease in [lease for lease, at_s in self._ends_at_s.items() if at_s <= now_s]:
            logger.info("its length is over", extra={"event": "expired", "lease": lease})
            self._forget(lease)

    def _forget(self, lease: LeaseId) -> None:
        self._leases.pop(lease, None)
        self._ends_at_s.pop(lease, None)

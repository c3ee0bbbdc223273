"""The daemon of a GPU host, as the scheduler calls it: implements `HostControl`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, EndReason, Resident
from gpu_scheduler.monitor.health import DeviceFault
from gpu_scheduler.protocol.host import Install, WarmLimits
from remote_gpu.host.parts import Parts
from remote_gpu.host.reports.sessions import NoLink

logger = logging.getLogger(__name__)


class HostDaemon:
    """The calls of the scheduler on the leases of this host; lives in the event loop."""

    def __init__(self, parts: Parts, registered: Callable[[], None] = lambda: None) -> None:
        """`registered`: called each time that the scheduler has registered this host."""
        self.parts = parts
        self.leases = parts.leases
        self.table = parts.leases.table
        self._outside = parts.outside
        self._registered = registered

    def installed(self) -> tuple[LeaseId, ...]:
        return self.leases.installed()

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Set the devices that may be lent, and end leases that use too much of a card's memory."""
        self.table.lend({device.id: device.memory_mib for device in devices})
        owners = self.parts.workers.owners() | self._outside.relays.owners()
        self.leases.apply(self.parts.excess.steps(owners))

    def leased(self) -> Collection[DeviceId]:
        """Devices that leases or warm workers occupy, until their processes are gone."""
        held = (entry.install.shares for entry in self.table if entry.occupying)
        return {share.device for shares in held for share in shares} | {*self.table.warm.devices()}

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        """Devices with a process that cannot be killed, with memory that is not freed, or with a
        check that failed."""
        return {**self.parts.endings.faults(), **self._outside.cards.faults()}

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        return self.table.warm.residents()

    def warm_limits(self, limits: WarmLimits) -> None:
        self.parts.warm.limit(limits)

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None:
        self.parts.warm.keep_warm(floors)

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """Replace the installed leases by the scheduler's list, after a (re)connect."""
        logger.debug("full state", extra={"installs": len(installs), "epoch": epoch})
        now_s = self.leases.expire()
        self.leases.apply(self.table.full_state(installs, now_s))
        for install in installs:
            self._installed(install)
        self.leases.wake()  # an install without a step may be what a session waits for

    def install(self, install: Install) -> None:
        """Install a lease; book a lease ahead, or take its booking back; or change the remaining
        time of an installed one."""
        now_s = self.leases.expire()
        self.leases.apply(self.table.install(install, now_s))
        self._installed(install)
        self.leases.wake()

    def _installed(self, install: Install) -> None:
        entry = self.table.find(install.lease)
        if entry is None:
            return
        self.parts.data.needed(install)
        if not entry.held_by_session:
            self.parts.workers.set_time(entry)
        if entry.waits:
            self.parts.warm.room_needed(install)

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        """End a lease, kill its processes, then report `cut`; an unknown lease is cut already."""
        del fence  # ids of leases are unique
        self.leases.apply(self.table.end(lease, reason, "ended by the scheduler", reported=False))

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """Set the time by which the first session must open."""
        self.table.staged(lease, connect_by_s, self.leases.now_s())
        self.leases.wake()

    def preempt(self, lease: LeaseId, grace_s: float) -> None:
        """Send the notice to the lease's session; the scheduler ends the lease after `grace_s`."""
        logger.info("preempted", extra={"event": "preempted", "lease": lease, "grace_s": grace_s})
        self.parts.gateway.session_preempted(lease, grace_s)

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another elastic limit for its shares."""
        self.table.resize(lease, compute_limit_pct)
        self._outside.turns.resize(lease, compute_limit_pct)

    def link_changed(self, connected: bool) -> None:
        """Log the change: leases continue without the scheduler, until their own deadlines."""
        logger.info("scheduler reachable" if connected else "scheduler not reachable")
        if connected:
            self._registered()

    async def close(self) -> None:
        """End every lease, because this host's program is stopping."""
        for lease in self.installed():
            self.leases.end(lease, EndReason.HOST_LOST, "the host's program is stopping")
        self.parts.warm.evict_all()
        cut_s = self.parts.budget.worker_cut_s  # processes that are left die with the spawner
        if not await self.leases.until(lambda: not any(e.occupying for e in self.table), cut_s):
            logger.error("workers do not end", extra={"leases": self.installed()})
        self.parts.ports.close_all()
        self._outside.scheduler.link = NoLink()

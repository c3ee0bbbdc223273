"""Memory in use on a card after a lease's processes have ended, as reported by its driver.

A CPU's memory is free when the process has ended. A card's driver frees memory some time later, or,
when it is broken, not at all: until then, the next lease must not be placed there.
"""

from __future__ import annotations

from typing import Protocol

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import DeviceKind
from gpu_scheduler.monitor.health import HELD_MIB_MIN
from remote_gpu.host.leases import LeaseTable

#: Between two readings of a card that is not clean yet: a driver needs some milliseconds.
LOOK_S = 0.1


class MemoryProbe(Protocol):
    """Reads a device's memory in use."""

    async def used_mib(self, device: DeviceId) -> int | None:
        """MiB in use by all processes, 0 on a lost device; None when its driver reports none."""
        ...


async def held_memory(probe: MemoryProbe, table: LeaseTable, lease: LeaseId) -> dict[DeviceId, str]:
    """Cards of a lease on which more is in use than the other leases account for, with the reason.

    A card without a figure is not clean. Each process on a card needs some memory for itself in
    addition to its lease's: `HELD_MIB_MIN`.
    """
    found: dict[DeviceId, str] = {}
    for device in table.devices_of(lease, DeviceKind.CUDA):
        used_mib = await probe.used_mib(device)
        if used_mib is None:
            found[device] = f"its driver reports no memory in use after the end of lease {lease}"
            continue
        others = [s for e in table if e.occupying and e.lease != lease for s in e.install.shares]
        there = [share.memory_mib for share in others if share.device == device]
        allowed_mib = sum(there) + HELD_MIB_MIN * (len(there) + 1)
        if used_mib >= allowed_mib:
            found[device] = f"{used_mib} MiB in use after the end of lease {lease}"
    return found

"""What is left on a card when a lease's processes are gone, by the figures of its driver.

Memory of a CPU is back with the end of its process. A card's driver gives memory back some time
after it, or, when it is broken, never: until it has, the next lease must not be placed there.
"""

from __future__ import annotations

from typing import Protocol

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import DeviceKind
from gpu_scheduler.monitor.health import HELD_MIB_MIN
from remote_gpu.host.leases import LeaseTable

#: Between two looks at a card that is not clean yet: a driver needs some milliseconds.
LOOK_S = 0.1


class MemoryProbe(Protocol):
    """Who can look at a device's memory now."""

    async def used_mib(self, device: DeviceId) -> int | None:
        """In use by anybody, 0 on one that is lost; None while its driver does not tell."""
        ...


async def held_memory(probe: MemoryProbe, table: LeaseTable, lease: LeaseId) -> dict[DeviceId, str]:
    """Cards of a lease on which more is in use than the other leases there account for, and why.

    A driver that does not tell has not said that its card is clean. Each process on a card needs
    some memory for itself beside its lease's: `HELD_MIB_MIN`.
    """
    found: dict[DeviceId, str] = {}
    for device in table.devices_of(lease, DeviceKind.CUDA):
        used_mib = await probe.used_mib(device)
        if used_mib is None:
            found[device] = f"its driver does not tell what lease {lease} left in use"
            continue
        others = [s for e in table if e.occupying and e.lease != lease for s in e.install.shares]
        there = [share.memory_mib for share in others if share.device == device]
        allowed_mib = sum(there) + HELD_MIB_MIN * (len(there) + 1)
        if used_mib >= allowed_mib:
            found[device] = f"{used_mib} MiB in use after the end of lease {lease}"
    return found

"""Memory in use on a card after processes have ended, as reported by its driver.

A CPU's memory is free when the process has ended. A card's driver frees memory some time later, or,
when it is broken, not at all: until then, the next lease must not be placed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corekit.ids import DeviceId
from gpu_scheduler.monitor.health import HELD_MIB_MIN
from gpu_scheduler.monitor.ports import DeviceProcess
from remote_gpu.host.leases.table import LeaseTable

#: Between two readings of a card that is not clean yet: a driver needs some milliseconds.
LOOK_S = 0.1


class MemoryProbe(Protocol):
    """Reads a device's memory in use."""

    async def used_mib(self, device: DeviceId) -> int | None:
        """MiB in use by all processes, 0 on a lost device; None when its driver reports none."""
        ...

    def processes(self) -> tuple[DeviceProcess, ...]:
        """The processes on devices at the newest reading, as far as drivers list them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A lease or a warm worker whose processes end."""

    name: str  #: its id
    is_lease: bool
    devices: tuple[DeviceId, ...]
    cards: tuple[DeviceId, ...]  #: those whose driver must report that its memory is free

    @property
    def text(self) -> str:
        """For messages."""
        return f"{'lease' if self.is_lease else 'warm worker'} {self.name}"


async def held_memory(probe: MemoryProbe, table: LeaseTable, ended: Ended) -> dict[DeviceId, str]:
    """Cards on which more is in use than the other leases and warm workers account for, with the
    reason.

    A card without a figure is not clean. Each process on a card needs some memory for itself in
    addition to its lease's: `HELD_MIB_MIN`.
    """
    found: dict[DeviceId, str] = {}
    for device in ended.cards:
        used_mib = await probe.used_mib(device)
        if used_mib is None:
            found[device] = f"its driver reports no memory in use after the end of {ended.text}"
            continue
        others = [
            s for e in table if e.occupying and e.lease != ended.name for s in e.install.shares
        ]
        there = [share.memory_mib for share in others if share.device == device]
        there += table.warm.memory_on(device, besides=ended.name)
        allowed_mib = sum(there) + HELD_MIB_MIN * (len(there) + 1)
        if used_mib >= allowed_mib:
            found[device] = f"{used_mib} MiB in use after the end of {ended.text}"
    return found

"""The memory of cards that leases use, from a driver's list of processes to the end of a lease."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import EndReason
from remote_gpu.host.devices.excess_table import CardUse, ExcessTable, OnExcess
from remote_gpu.host.devices.residual_memory import MemoryProbe
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.leases.table import LeaseTable

logger = logging.getLogger(__name__)

#: Ancestors of a process that are looked at; a chain that is longer is none of a lease.
_ANCESTORS_MAX = 64


class MemoryExcess:
    """Compares the driver's readings with the shares of leases."""

    def __init__(
        self,
        leases: LeaseTable,
        memory: MemoryProbe,
        context_bytes: Callable[[DeviceId], int],
        on_excess: OnExcess,
    ) -> None:
        """`context_bytes`: memory of a card that one context takes."""
        self._leases = leases
        self._memory = memory
        self._context_bytes = context_bytes
        self._on_excess = on_excess
        self._table = ExcessTable()

    def steps(self, owners: Mapping[int, LeaseId]) -> list[LeaseStep]:
        """The steps after a new reading; `owners`: leases by their workers and servers, whose
        children count too."""
        if self._on_excess is OnExcess.OFF:
            return []
        steps: list[LeaseStep] = []
        for excess in self._table.read(self._uses(owners)):
            about = {"event": "memory_excess", "lease": excess.lease, "device": excess.device}
            logger.error("a lease uses too much memory", extra={**about, "why": excess.detail})
            if self._on_excess is OnExcess.END:
                steps += self._leases.end(excess.lease, EndReason.REVOKED, excess.detail)
        return steps

    def _uses(self, owners: Mapping[int, LeaseId]) -> list[CardUse]:
        """The uses of all leases; a card that is none of a lease's counts as a share of 0 MiB."""
        used: dict[tuple[LeaseId, DeviceId], list[int | None]] = defaultdict(list)
        for process in self._memory.processes():
            if (lease := owner_of(process.pid, owners)) is not None:
                used[lease, process.device].append(process.memory_used_mib)
        found = []
        for (lease, device), used_mib in used.items():
            entry = self._leases.find(lease)
            if entry is None or not entry.occupying:
                continue  # it ends, and so do its processes
            shares = [share for share in entry.install.shares if share.device == device]
            if not any(share.exclusive for share in shares):  # the whole card is its own
                use = CardUse(
                    lease=lease,
                    device=device,
                    memory_mib=sum(share.memory_mib for share in shares),
                    context_mib=self._context_bytes(device) >> 20,
                    used_mib=tuple(used_mib),
                )
                found.append(use)
        return found


def owner_of(pid: int, owners: Mapping[int, LeaseId]) -> LeaseId | None:
    """The lease of a process by its ancestors and their groups; None: of none, or gone."""
    for _ in range(_ANCESTORS_MAX):
        if pid <= 1:
            return None
        if pid in owners:
            return owners[pid]
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        _, parent, group, *_ = text.rpartition(")")[2].split()
        if int(group) in owners:
            return owners[int(group)]
        pid = int(parent)
    return None

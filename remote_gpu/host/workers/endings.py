"""The certain end of processes and of their memory on cards; until then devices are SUSPECT."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from corekit.budget import Budget
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Health, Symptom
from gpu_scheduler.monitor.health import DeviceFault
from remote_gpu.host.devices.residual_memory import LOOK_S, Ended, MemoryProbe, held_memory
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.warm.table import WarmWorker, is_card

logger = logging.getLogger(__name__)


class KilledProcess(Protocol):
    """A process that was killed; its end is awaited until it is certain."""

    pid: int
    gone: asyncio.Future[None]


class Endings:
    """The ends of leases and warm workers that are under way."""

    def __init__(
        self,
        leases: Leases,
        memory: MemoryProbe,
        budget: Budget,
    ) -> None:
        """`memory`: shows whether a card is clean."""
        self._leases = leases
        self._table = leases.table
        self._memory = memory
        self._budget = budget
        #: Faults of what cannot be ended, by its name and stuck process (0: for memory).
        self._faults: dict[tuple[str, int], dict[DeviceId, DeviceFault]] = {}

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        """Devices with a process that cannot be killed, or with memory that is not freed."""
        return {device: fault for found in self._faults.values() for device, fault in found.items()}

    def of_lease(self, lease: LeaseId) -> Ended:
        shares = self._table.shares_of(lease)
        devices = tuple(share.device for share in shares)
        cards = tuple(share.device for share in shares if is_card(share))
        return Ended(name=lease, is_lease=True, devices=devices, cards=cards)

    def memory_of(self, device: DeviceId, pids: list[int]) -> int | None:
        """MiB of a card that processes use; None: its driver lists none of them, or no figure."""
        found = [one for one in self._memory.processes() if one.device == device]
        sizes = [one.memory_used_mib for one in found if one.pid in pids]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)

    def of_warm(self, worker: WarmWorker) -> Ended:
        return Ended(
            name=worker.id, is_lease=False, devices=tuple(worker.memory_mib), cards=worker.cards
        )

    async def end(self, ended: Ended, process: KilledProcess) -> None:
        """Await the end of a killed process."""
        done, _ = await asyncio.wait({process.gone}, timeout=self._budget.worker_cut_s)
        if not done:
            await self.stuck(ended, process)
        self._faults.pop((ended.name, process.pid), None)  # of a wait that an error interrupted

    async def stuck(self, ended: Ended, process: KilledProcess) -> None:
        """Await the end of a process that is blocked in a driver or a file system, with its memory.

        The devices get no new leases until then; leases that wait for its memory end at once.
        """
        about = {"of": ended.text, "pid": process.pid}
        logger.error("stuck", extra={"event": "stuck", **about})
        detail = f"process {process.pid} of {ended.text} cannot be killed"
        self._suspect(ended, process.pid, dict.fromkeys(ended.devices, detail), Symptom.HUNG)
        await process.gone
        logger.info("unstuck", extra={"event": "unstuck", **about})
        del self._faults[ended.name, process.pid]

    async def clean(self, ended: Ended, *, held: Callable[[], None] | None = None) -> None:
        """Wait until its cards are free of its memory; SUSPECT when that takes too long.

        `held`: called when they are not free at once.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._budget.worker_cut_s
        while found := await held_memory(self._memory, self._table, ended):
            if held is not None:
                held()
            if loop.time() >= deadline_s and (ended.name, 0) not in self._faults:
                about = {"event": "memory_held", "of": ended.text}
                logger.error("memory held", extra=about)
                self._suspect(ended, 0, found, Symptom.MEMORY_HELD)
            await asyncio.sleep(LOOK_S)
        self._faults.pop((ended.name, 0), None)

    def _suspect(
        self, ended: Ended, pid: int, why: Mapping[DeviceId, str], symptom: Symptom
    ) -> None:
        self._faults[ended.name, pid] = {
            device: DeviceFault(health=Health.SUSPECT, symptom=symptom, detail=detail)
            for device, detail in why.items()
        }
        detail = next(iter(why.values()), "")
        if ended.is_lease:
            self._leases.apply(self._table.stuck(LeaseId(ended.name), detail))
        else:
            self._leases.apply(self._table.warm_stuck(ended.name, detail))

"""The devices of this host: its CPU cores as one device, and those of its drivers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from corekit.errors import AppError, invalid
from corekit.ids import DeviceId, HostId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, Health, Usage
from gpu_scheduler.monitor.ports import DeviceProcess, Probe
from gpu_scheduler.monitor.watch import LastSeen
from remote_gpu.host.devices.offer import Offer
from remote_gpu.host.workers.worker import private_bytes

logger = logging.getLogger(__name__)

#: Part of the machine's memory to lend; the rest is for the system and other programs.
_DEFAULT_PART = 0.5
CPU_INDEX = 0  #: on its host; cards follow


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSettings:
    """The part of the machine that this host lends."""

    host: HostId
    cpus: tuple[int, ...]  #: cores; every process of gpud is bound to them
    memory_mib: int
    shared_with: tuple[str, ...] = ()  #: hosts of the same machine with the same cores


class HostCpuProbe:
    """The `cpu` device: real cores, owned by affinity."""

    def __init__(self, settings: CpuSettings, pids: Callable[[], Sequence[int]]) -> None:
        self._settings = settings
        self._pids = pids
        self._model = _cpu_model()
        self._busy_s: dict[int, float] = {}
        self._read_s = time.monotonic()

    @property
    def device_id(self) -> DeviceId:
        return DeviceId(f"{self._settings.host}/cpu0")

    def device(self) -> Device:
        """The CPU, as reported to the scheduler."""
        cores = ",".join(map(str, self._settings.cpus))
        detail = f"{'core' if len(self._settings.cpus) == 1 else 'cores'} {cores}"
        if self._settings.shared_with:
            detail += "; shared with " + ", ".join(self._settings.shared_with)
        return Device(
            id=self.device_id,
            index=CPU_INDEX,
            kind=DeviceKind.CPU,
            model=self._model,
            memory_mib=self._settings.memory_mib,
            detail=detail,
        )

    async def devices(self) -> tuple[Device, ...]:
        return (self.device(),)

    async def usage(self) -> tuple[Usage, ...]:
        """Memory of the workers, and their CPU time since the last call."""
        pids = tuple(self._pids())
        # in a thread: the kernel walks page tables, which takes milliseconds for each
        used_bytes = await asyncio.to_thread(lambda: sum(map(private_bytes, pids)))
        now_s, busy_s = time.monotonic(), {pid: _cpu_seconds(pid) for pid in pids}
        # a process that has ended since its pid was read has no times any more
        spent_s = sum(max(0.0, s - self._busy_s.get(pid, s)) for pid, s in busy_s.items())
        available_s = max(1e-3, now_s - self._read_s) * len(self._settings.cpus)
        self._busy_s, self._read_s = busy_s, now_s
        return (
            Usage(
                device=self.device_id,
                memory_used_mib=used_bytes >> 20,
                utilisation_pct=min(100, round(100 * spent_s / available_s)),
                processes=len(pids),
            ),
        )

    async def close(self) -> None:
        """Do nothing: it holds no driver."""


class HostProbe:
    """Several probes as one; a failure of one affects its own devices only.

    A device keeps the index that it got when it was first seen: leases name it by that.
    """

    def __init__(
        self, probes: Sequence[Probe], bad_after_s: float, offer: Offer | None = None
    ) -> None:
        """`offer`: operations and warm keys to add."""
        self._offer = offer
        self._probes = tuple(LastSeen(probe, bad_after_s) for probe in probes)
        self._indices: dict[DeviceId, int] = {}
        self._processes: tuple[DeviceProcess, ...] = ()
        self._reading = asyncio.Lock()  # a driver's process answers one request at a time

    async def devices(self) -> tuple[Device, ...]:
        async with self._reading:
            found = await self._read()
        for device in found:
            self._indices.setdefault(device.id, len(self._indices))
        numbered = tuple(replace(device, index=self._indices[device.id]) for device in found)
        return numbered if self._offer is None else await self._offer.added_to(numbered)

    async def usage(self) -> tuple[Usage, ...]:
        """The figures of all probes that answer, of the newest `devices`."""
        found = await asyncio.gather(*(probe.usage() for probe in self._probes))
        return tuple(usage for usages in found for usage in usages)

    async def used_mib(self, device: DeviceId) -> int | None:
        """Memory in use on a device now; None when its driver reports none.

        0 for a device that is absent, or BAD without an answer: such a device is lent again only
        after a good reading, and a lease's other devices do not wait for that.
        """
        async with self._reading:  # the figures are those of the newest reading, this one
            present = {d.id for d in await self._read() if d.health is not Health.BAD}
            figures = {usage.device: usage.memory_used_mib for usage in await self.usage()}
        return figures.get(device, None if device in present else 0)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """The processes on devices at the newest reading, as far as drivers list them."""
        return self._processes

    async def _read(self) -> list[Device]:
        found = await asyncio.gather(*(_devices(probe) for probe in self._probes))
        listed = [await probe.processes() for probe in self._probes]
        self._processes = tuple(process for processes in listed for process in processes)
        return [device for devices in found for device in devices]

    async def close(self) -> None:
        for probe in self._probes:
            await probe.close()


async def _devices(probe: Probe) -> tuple[Device, ...]:
    try:
        return await probe.devices()
    except AppError as error:  # it has never answered
        logger.warning("probe: %s", error.message)
        return ()


def parse_cpus(text: str) -> tuple[int, ...]:
    """`"0,2-3"` → (0, 2, 3). Raises INVALID for other texts and for forbidden cores."""
    allowed = os.sched_getaffinity(0)
    if not text:
        return tuple(sorted(allowed))
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise invalid(f"--cpus {text!r}: {part!r} is neither a core nor a range like 2-3")
        cores.update(range(int(first), int(last or first) + 1))
    if not cores or not cores <= allowed:
        known = ",".join(map(str, sorted(allowed)))
        raise invalid(f"--cpus {text!r}: this process may use the cores {known}")
    return tuple(sorted(cores))


def default_memory_mib() -> int:
    """Half of the machine's memory."""
    return int(machine_memory_mib() * _DEFAULT_PART)


def machine_memory_mib() -> int:
    """Raises AppError(INVALID) where Linux does not show it."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 10
    raise invalid("/proc/meminfo has no MemTotal; give --memory-mib")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine


def _cpu_seconds(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""Probes of a host's devices: its CPU, a driver (in a child process), an operator's file."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import DeviceId
from corekit.units import parse_memory_mib
from gpu_scheduler.model import Device, DeviceKind, Usage
from gpu_scheduler.monitor.drivers.child import ChildProbe
from gpu_scheduler.monitor.ports import Probe

#: Memory of a CPU device that is reserved for the operating system and our daemons.
CPU_RESERVE_MIB = 512


class CpuProbe:
    """The machine's CPU as one device of kind `cpu`."""

    def __init__(self, host: str) -> None:
        self._id = DeviceId(f"{host}/cpu0")

    async def devices(self) -> tuple[Device, ...]:
        total_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        cores = len(os.sched_getaffinity(0))
        return (
            Device(
                id=self._id,
                index=0,
                kind=DeviceKind.CPU,
                model=_cpu_model(),
                memory_mib=max(0, total_mib - CPU_RESERVE_MIB),
                detail=f"{cores} cores",
            ),
        )

    async def usage(self) -> tuple[Usage, ...]:
        pages_used = os.sysconf("SC_PHYS_PAGES") - os.sysconf("SC_AVPHYS_PAGES")
        used_mib = pages_used * os.sysconf("SC_PAGE_SIZE") // 2**20
        load_pct = round(os.getloadavg()[0] / (os.cpu_count() or 1) * 100)
        return (
            Usage(device=self._id, memory_used_mib=used_mib, utilisation_pct=min(100, load_pct)),
        )

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class FileProbe:
    """Devices of an operator's file; edits take effect at the next report.

    devices:
      - {kind: cuda, model: Tesla K80, memory_mib: 12GiB}       # id and index are optional
    """

    def __init__(self, path: Path, host: str) -> None:
        self._path = path
        self._host = host
        self._read: tuple[int, ...] = ()  # inode, size and time of the file that was read
        self._devices: tuple[Device, ...] = ()

    async def devices(self) -> tuple[Device, ...]:
        """Raises INVALID naming file and entry; NOT_FOUND without the file."""
        try:
            status = self._path.stat()
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if state != self._read:
                self._devices = self._parsed(self._path.read_text())
                self._read = state
        except OSError as error:
            text = f"inventory {self._path}: {error.strerror}"
            raise AppError(ErrorCode.NOT_FOUND, text) from None
        return self._devices

    def _parsed(self, text: str) -> tuple[Device, ...]:
        import yaml  # 20 ms that a gpud does not need

        try:
            value = yaml.safe_load(text)  # JSON is YAML
        except (yaml.YAMLError, ValueError) as error:
            raise invalid(f"inventory {self._path}: not YAML or JSON: {error}") from None
        if not isinstance(value, Mapping) or list(value) != ["devices"]:
            raise invalid(f"inventory {self._path}: write `devices:` and a list below it")
        return listed_devices(value["devices"], str(self._path), self._host)

    async def usage(self) -> tuple[Usage, ...]:
        return ()

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def listed_devices(listed: object, path: str, host: str) -> tuple[Device, ...]:
    """The devices of the list `devices` of a file. Raises INVALID naming file and entry."""
    if not isinstance(listed, list):
        raise invalid(f"inventory {path}: `devices` must be a list")
    devices = tuple(
        _listed(entry, f"{path}: devices[{i}]", host, i) for i, entry in enumerate(listed)
    )
    for what, names in (("id", [d.id for d in devices]), ("index", [d.index for d in devices])):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise invalid(f"{path}: devices[{i}]: {what} {name!r} is taken already")
    return devices


def _listed(entry: Any, path: str, host: str, index: int) -> Device:
    if not isinstance(entry, Mapping):
        raise invalid(f"{path}: expected an object with kind, model and memory_mib")
    defaults = {"id": f"{host}/{entry.get('kind', 'device')}{index}", "index": index}
    fields = {**defaults, **entry}
    if isinstance(fields.get("memory_mib"), str):
        fields["memory_mib"] = parse_memory_mib(fields["memory_mib"])
    return decode(Device, fields, path)


#: Kinds of `probe_of` that run in a child process: its module, what it probes, options.
_CHILDREN: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "nvml": ("gpu_scheduler.monitor.drivers.nvml", "the NVIDIA driver", ()),
    "opencl": ("gpu_scheduler.monitor.drivers.opencl", "OpenCL", ()),
    "opencl-cards": ("gpu_scheduler.monitor.drivers.opencl", "OpenCL", ("cards",)),
}
PROBES = ("cpu", *_CHILDREN)


def probe_of(kind: str, host: str, answer_s: float) -> Probe:
    """The probe of a kind in `PROBES`; its driver must answer within `answer_s`. Raises INVALID."""
    if kind == "cpu":
        return CpuProbe(host)
    if kind in _CHILDREN:
        module, source, options = _CHILDREN[kind]
        return ChildProbe(module, source, host, answer_s, *options)
    raise invalid(f"probe {kind!r} is unknown; use one of {', '.join(PROBES)}, or a file")

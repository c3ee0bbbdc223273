"""Where a host's devices come from: its CPU, NVML (in a child process), an operator's file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import DeviceId
from corekit.units import parse_memory_mib
from gpu_scheduler.model import Device, DeviceKind, Usage
from gpu_scheduler.monitor.ports import Probe

#: NVML calls of a healthy driver take milliseconds; a hung driver is known by this.
NVML_ANSWER_S_MAX = 5.0
#: The operating system and our daemons keep this much of a CPU device's memory.
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
                id=self._id, index=0, kind=DeviceKind.CPU, model=_cpu_model(),
                memory_mib=max(0, total_mib - CPU_RESERVE_MIB), detail=f"{cores} cores",
            ),
        )  # fmt: skip

    async def usage(self) -> tuple[Usage, ...]:
        pages_used = os.sysconf("SC_PHYS_PAGES") - os.sysconf("SC_AVPHYS_PAGES")
        used_mib = pages_used * os.sysconf("SC_PAGE_SIZE") // 2**20
        load_pct = round(os.getloadavg()[0] / (os.cpu_count() or 1) * 100)
        return (
            Usage(device=self._id, memory_used_mib=used_mib, utilisation_pct=min(100, load_pct)),
        )

    async def close(self) -> None:
        """Nothing is held."""


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class FileProbe:
    """Devices as an operator wrote them down; read again for every report, so edits take effect.

    devices:
      - {kind: cuda, model: Tesla K80, memory_mib: 12GiB}       # id and index are optional
    """

    def __init__(self, path: Path, host: str) -> None:
        self._path = path
        self._host = host

    async def devices(self) -> tuple[Device, ...]:
        """Raises INVALID naming file and entry; NOT_FOUND without the file."""
        try:
            value = yaml.safe_load(self._path.read_text())  # JSON is YAML
        except OSError as error:
            text = f"inventory {self._path}: {error.strerror}"
            raise AppError(ErrorCode.NOT_FOUND, text) from None
        except (yaml.YAMLError, ValueError) as error:
            raise invalid(f"inventory {self._path}: not YAML or JSON: {error}") from None
        if not isinstance(value, Mapping) or list(value) != ["devices"]:
            raise invalid(f"inventory {self._path}: write `devices:` and a list below it")
        if not isinstance(value["devices"], list):
            raise invalid(f"inventory {self._path}: `devices` must be a list")
        return tuple(self._device(entry, i) for i, entry in enumerate(value["devices"]))

    def _device(self, entry: Any, index: int) -> Device:
        path = f"{self._path}: devices[{index}]"
        if not isinstance(entry, Mapping):
            raise invalid(f"{path}: expected an object with kind, model and memory_mib")
        defaults = {"id": f"{self._host}/{entry.get('kind', 'device')}{index}", "index": index}
        fields = {**defaults, **entry}
        if isinstance(fields.get("memory_mib"), str):
            fields["memory_mib"] = parse_memory_mib(fields["memory_mib"])
        return decode(Device, fields, path)

    async def usage(self) -> tuple[Usage, ...]:
        return ()

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One answer of the NVML child."""

    devices: tuple[Device, ...]
    usage: tuple[Usage, ...]


class NvmlProbe:
    """NVIDIA devices, by a child process: a hung driver hangs the child, which is replaced."""

    def __init__(self, answer_s_max: float = NVML_ANSWER_S_MAX) -> None:
        self._answer_s_max = answer_s_max
        self._child: asyncio.subprocess.Process | None = None
        self._usage: tuple[Usage, ...] = ()

    async def devices(self) -> tuple[Device, ...]:
        """Raises UNAVAILABLE without a driver or device, or when the driver does not answer."""
        try:
            async with asyncio.timeout(self._answer_s_max):
                line = await self._ask()
        except TimeoutError:
            await self.close()
            text = f"the NVIDIA driver did not answer in {self._answer_s_max:g} s"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        try:
            value = json.loads(line)
        except ValueError:
            await self.close()
            raise AppError(ErrorCode.UNAVAILABLE, "the NVML probe's process ended") from None
        if "error" in value:
            raise AppError(ErrorCode.UNAVAILABLE, f"NVML: {value['error']}")
        seen = decode(_Seen, value)
        self._usage = seen.usage
        return seen.devices

    async def usage(self) -> tuple[Usage, ...]:
        """The figures read with the newest `devices`."""
        return self._usage

    async def _ask(self) -> bytes:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpu_scheduler.monitor.nvml",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"\n")
        return await self._child.stdout.readline()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def probe_of(kind: str, host: str) -> Probe:
    """`cpu` or `nvml`. Raises INVALID for another word."""
    if kind == "cpu":
        return CpuProbe(host)
    if kind == "nvml":
        return NvmlProbe()
    raise invalid(f"probe {kind!r} is unknown; take cpu or nvml, or an inventory file")

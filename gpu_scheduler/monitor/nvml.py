"""The child of `NvmlProbe`: for every line on stdin, one JSON line about all NVIDIA devices.

It ends with its parent (end of stdin). Only this process ever loads NVML.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pynvml

from corekit.decode import encode
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, DeviceKind, Usage

#: The driver and one CUDA context per worker need this much of every device.
RESERVE_MIB = 512


def look() -> dict[str, Any]:
    """Devices and usage, or `{"error": …}`."""
    try:
        pynvml.nvmlInit()
        seen = [_one(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    devices, usage = [device for device, _ in seen], [figures for _, figures in seen]
    return {"devices": encode(devices), "usage": encode(usage)}


def _one(index: int) -> tuple[Device, Usage]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    uuid = DeviceId(_text(pynvml.nvmlDeviceGetUUID(handle)))
    device = Device(
        id=uuid, index=index, kind=DeviceKind.CUDA, model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=max(0, memory.total // 2**20 - RESERVE_MIB),
        detail=f"driver {_text(pynvml.nvmlSystemGetDriverVersion())}",
    )  # fmt: skip
    try:
        utilisation_pct = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:  # MIG and some virtual devices do not tell
        utilisation_pct, processes = 0, 0
    used_mib = memory.used // 2**20
    return device, Usage(
        device=uuid, memory_used_mib=used_mib, utilisation_pct=utilisation_pct, processes=processes
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(look()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

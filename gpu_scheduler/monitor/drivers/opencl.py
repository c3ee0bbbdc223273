"""The child that probes OpenCL devices.

    python -m gpu_scheduler.monitor.drivers.opencl HOST [cards]

With `cards` CPUs are left out: a host that shares its CPU would offer it twice. OpenCL has no
permanent names of devices: an id is the host, the platform and the number there. OpenCL reports
neither memory in use nor load. NVIDIA's platform is left to NVML, which reports more.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

from corekit.ids import DeviceId
from gpu_scheduler.model import Device, DeviceKind
from gpu_scheduler.monitor.drivers.child import Seen, answer_lines
from gpu_scheduler.monitor.names import opencl_name

#: What the OpenCL runtime needs of a device's memory for itself.
RESERVE_MIB = 256
_NVIDIA = "NVIDIA CUDA"  #: the name of its platform


def poll(host: str, *, cards: bool = False) -> Seen | str:
    """All devices of all platforms, or all cards; a message when there is no OpenCL here."""
    try:
        import pyopencl  # optional, and loads every driver

        from gpu_scheduler.monitor.drivers.opencl_drivers import platforms
    except ImportError:
        return "pyopencl is not installed; see `pip install orchgpu[opencl]`"
    try:
        answering = platforms()
        if not answering:
            return "no OpenCL driver answers; on Linux x86-64 `orchgpu[opencl]` brings one for CPUs"
        found = [
            (platform.name, number, device)
            for platform, devices in answering
            if platform.name != _NVIDIA
            for number, device in enumerate(devices)
            if not (cards and device.type & pyopencl.device_type.CPU)
        ]
    except pyopencl.Error as error:
        return str(error)
    devices = [_described(host, index, *one) for index, one in enumerate(found)]
    return Seen(devices=tuple(devices), usage=())


def _described(host: str, index: int, platform: str, number: int, device: Any) -> Device:
    return Device(
        id=DeviceId(f"{host}/{opencl_name(platform, number)}"),
        index=index,
        kind=DeviceKind.OPENCL,
        model=device.name.strip(),
        memory_mib=max(0, device.global_mem_size // 2**20 - RESERVE_MIB),
        driver=_numbers(device.driver_version),
        runtime=_numbers(device.version),
        detail=f"{platform}, {device.max_compute_units} compute units",
    )


def _numbers(text: str) -> str:
    """`"OpenCL 3.0 PoCL HSTR: …"` → `"3.0"`: versions are compared as numbers."""
    found = re.search(r"\d+(\.\d+)*", text)
    return found.group() if found else ""


if __name__ == "__main__":
    answer_lines(functools.partial(poll, sys.argv[1], cards="cards" in sys.argv[2:]))

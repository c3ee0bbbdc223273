"""The first device of a kind, for parts that use it in their own process."""

from __future__ import annotations

import importlib

from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.choice import open_backend
from tools.gpu_check.part import LeftOutError


def device_id(kind: str) -> str:
    """The driver's id of the first OpenCL device; "" for kinds whose first one is the default."""
    if kind != "opencl":
        return ""
    # here: pyopencl may be missing where the kind is another
    poll = importlib.import_module("gpu_scheduler.monitor.drivers.opencl").poll
    seen = poll("host")
    if isinstance(seen, str) or not seen.devices:
        raise LeftOutError(f"no OpenCL device: {seen}")
    return str(seen.devices[0].id)


def card_used_mib() -> float:
    """The memory in use on the first NVIDIA card, by NVML."""
    nvml = importlib.import_module("pynvml")  # a part that reads a card has declared it
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    return float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20


def first_backend(kind: str) -> Backend:
    """Its backend. Raises LeftOutError where this machine runs no kernels."""
    backend = open_backend(kind, device_id(kind))
    if isinstance(backend, HostBackend):
        raise LeftOutError("no OpenCL driver for this machine's CPU")
    return backend

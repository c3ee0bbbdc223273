"""Which backend serves a device, by its kind. Libraries are loaded when they are needed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from pathlib import Path
from typing import cast

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.cache import trim

#: Kind of device → the extra of this package that its kernels need.
_EXTRAS = {"cpu": "opencl", "opencl": "opencl", "cuda": "cuda"}
KINDS = tuple(_EXTRAS)  #: of devices that a lane may be opened to
#: Where the drivers of OpenCL are registered, one file each; the variable names another folder.
_DRIVERS, _DRIVERS_VARIABLE = Path("/etc/OpenCL/vendors"), "OCL_ICD_VENDORS"
#: What the libraries of drivers for CPUs are called: PoCL's, Intel's.
_CPU_DRIVERS = ("pocl", "intelocl")


def open_backend(kind: str, device: str = "", cache: Path | None = None) -> Backend:
    """Where kernels of a device run. Starts threads: never before a fork.

    A CPU without OpenCL still runs graphs of operations. Raises OpFailed: ENODEV where a card does
    not answer, ENOTSUP for a kind without kernels and without the library for it.
    """
    if kind not in _EXTRAS:
        raise OpFailed(OpCode.ENOTSUP, f"there are no kernels for devices of kind {kind}")
    if cache is not None:
        trim(cache)
    try:
        if kind == "cuda":
            cuda = importlib.import_module("remote_gpu.worker.backends.cuda")
            return cast("Backend", cuda.open_cuda(device, cache))
        opencl = importlib.import_module("remote_gpu.worker.backends.opencl")
        return cast("Backend", opencl.open_opencl(kind, device, cache))
    except ImportError as error:
        missing = f"the {_EXTRAS[kind]} extra is not installed ({error})"
    except OpFailed as error:
        if kind != "cpu":
            raise
        missing = error.message
    if kind == "cpu":
        return HostBackend(missing)
    raise OpFailed(OpCode.ENOTSUP, f"this device runs no kernels: {missing}")


def kinds_with_kernels() -> tuple[str, ...]:
    """Kinds whose kernels can be run here, if there is such a device; loads no driver."""
    kinds: list[str] = []
    if importlib.util.find_spec("pyopencl") is not None:
        kinds += ["cpu"] if _has_cpu_driver() else []
        kinds.append("opencl")
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings"):
        kinds.append("cuda")
    return tuple(kinds)


def _has_cpu_driver() -> bool:
    folder = Path(os.environ.get(_DRIVERS_VARIABLE, _DRIVERS))
    with contextlib.suppress(OSError):
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in folder.iterdir()]
        return any(name in text for text in texts for name in _CPU_DRIVERS)
    return False

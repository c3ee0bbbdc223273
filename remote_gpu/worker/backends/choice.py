"""Which backend serves a device, by its kind. Libraries are loaded when they are needed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.cache import trim
from remote_gpu.worker.backends.drivers import answering, missing_on_cpu

#: Kind of device → the extra of this package that its kernels need.
_EXTRAS = {"cpu": "opencl", "opencl": "opencl", "cuda": "cuda"}
KINDS = tuple(_EXTRAS)  #: of devices that a lane may be opened to


def open_backend(kind: str, device: str = "", cache: Path | None = None) -> Backend:
    """Where kernels of a device run. Starts threads: never before a fork.

    A CPU without OpenCL still runs graphs of operations. Raises OpFailed: ENODEV where a card does
    not answer, ENOTSUP for a kind without kernels and without the library for it.
    """
    if kind not in _EXTRAS:
        raise OpFailed(OpCode.ENOTSUP, f"there are no kernels for devices of kind {kind}")
    if kind == "cpu" and "cpu" not in answering():  # a driver that fails may end this process
        return HostBackend(missing_on_cpu())
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
    raise OpFailed(OpCode.ENOTSUP, f"this device runs no kernels: {missing}")

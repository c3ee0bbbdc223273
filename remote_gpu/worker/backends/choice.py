"""Which backend serves a device, by its kind. Libraries are loaded when they are needed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend

#: Kind of device → the extra of this package that its kernels need.
_EXTRAS = {"cpu": "opencl", "opencl": "opencl", "cuda": "cuda"}


def open_backend(kind: str, device: str = "", cache: Path | None = None) -> Backend:
    """Where kernels of a device run. Starts threads: never before a fork.

    A CPU without OpenCL still runs graphs of operations. Raises OpFailed: ENODEV where a card does
    not answer, ENOTSUP for a kind without kernels and without the library for it.
    """
    if kind not in _EXTRAS:
        raise OpFailed(OpCode.ENOTSUP, f"there are no kernels for devices of kind {kind}")
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

"""The choice of a device's backend by its kind. Libraries are imported on demand."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
from pathlib import Path
from typing import cast

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.drivers import missing_on_cpu, working_kinds
from remote_gpu.worker.cards.card import Card

#: Kind of device → the extra of `orchgpu` that its kernels need.
_EXTRAS = {"cpu": "opencl", "opencl": "opencl", "cuda": "cuda"}
KINDS = tuple(_EXTRAS)  #: of devices that a lane may be opened to


def open_backend(
    kind: str, device: str = "", cache: Path | None = None, card: Card | None = None
) -> Backend:
    """The backend of a device. Starts threads: never before a fork.

    `card`: limits and faults of an NVIDIA device.

    A CPU without OpenCL runs graphs of operations. Raises OpFailed: ENODEV for a card without a
    working driver, ENOTSUP for a kind without kernels or without its library.
    """
    if kind not in _EXTRAS:
        raise OpFailed(OpCode.ENOTSUP, f"devices of kind {kind} run no kernels")
    if kind == "cpu" and "cpu" not in working_kinds():  # a broken driver may end this process
        return HostBackend(missing_on_cpu())
    if cache is not None:
        trim(cache)
    try:
        if kind == "cuda":
            cuda = importlib.import_module("remote_gpu.worker.backends.cuda")
            return cast("Backend", cuda.open_cuda(device, cache, card=card))
        opencl = importlib.import_module("remote_gpu.worker.backends.opencl")
        return cast("Backend", opencl.open_opencl(kind, device, cache))
    except ImportError as error:
        missing = f"install orchgpu[{_EXTRAS[kind]}] ({error})"
    raise OpFailed(OpCode.ENOTSUP, f"this device runs no kernels: {missing}")


#: Of one tenant on one host: thousands of kernels, which compile again within seconds.
COMPILED_BYTES_MAX = 512 << 20


def trim(folder: Path, bytes_max: int = COMPILED_BYTES_MAX) -> None:
    """Remove a folder of compiled kernels above its limit.

    As a whole, because only compilers know which files belong to one kernel. A worker that uses the
    folder meanwhile compiles again.
    """
    sizes = (
        (Path(place) / name).lstat().st_size
        for place, _, names in os.walk(folder)
        for name in names
    )
    try:
        if sum(sizes) <= bytes_max:
            return
        old = folder.with_name(f"old-{secrets.token_hex(8)}")
        folder.rename(old)
    except OSError:  # another worker of the tenant removes it
        return
    shutil.rmtree(old, ignore_errors=True)

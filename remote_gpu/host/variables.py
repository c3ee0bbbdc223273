"""What a worker's environment tells its drivers: its devices, and its part of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.model import Share
from remote_gpu.middleware.base import device_variables
from remote_gpu.worker.control import VARIABLES

#: Where the control daemon of MPS listens; gpud sets it for all below it (`--mps`).
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"


def worker_variables(shares: tuple[Share, ...]) -> Mapping[str, str]:
    """The lease's NVIDIA devices alone, none for a lease without one.

    MIG slices are named by their own UUID. Where MPS runs, a shared device's memory and compute
    limit are its to hold: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
    """
    variables = device_variables(shares)
    return {name: value for name, value in variables.items() if name in VARIABLES}

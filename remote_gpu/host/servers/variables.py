"""What is in the environment of the programs that gpud starts. Pure.

Of gpud's own they inherit a few names: above all no key of the scheduler, which a tenant's kernel
could read in its worker. What a lease adds are its devices, and its part of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.model import Share
from remote_gpu.middleware.base import device_variables
from remote_gpu.worker.control import VARIABLES

#: Where the control daemon of MPS listens; gpud sets it for all below it (`--mps`).
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"

#: What finds programs, libraries and files, for whatever gpud starts.
INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "OCL_ICD_VENDORS",
    MPS_DIRECTORY,
    "CUDA_MPS_LOG_DIRECTORY",
)
#: Beside them for workers: of Python, and of the drivers of NVIDIA, OpenCL, PoCL, AMD and Intel.
_OF_WORKERS = ("PYTHON", "LC_", "CUDA_", "NVIDIA_", "OCL_", "POCL_", "HSA_", "ROCR_", "ZE_")
#: A lease's share is its core, and a spawner with threads cannot fork.
_SINGLE_THREADED = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def spawner_variables(own: Mapping[str, str]) -> dict[str, str]:
    """For the spawner and all workers, of gpud's `own`: one thread per library.

    ONNX Runtime 1.31 reports to its maker and keeps a file in the temporary folder unless told not
    to: what is computed here is nobody's but the tenant's.
    """
    passed = {
        name: value
        for name, value in own.items()
        if name in INHERITED or name.startswith(_OF_WORKERS)
    }
    return passed | dict.fromkeys(_SINGLE_THREADED, "1") | {"ORT_DISABLE_TELEMETRY": "1"}


def worker_variables(shares: tuple[Share, ...]) -> Mapping[str, str]:
    """The lease's NVIDIA devices alone, none for a lease without one.

    MIG slices are named by their own UUID. Where MPS runs, a shared device's memory and compute
    limit are its to hold: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
    """
    variables = device_variables(shares)
    return {name: value for name, value in variables.items() if name in VARIABLES}

"""Environment variables of the programs that gpud starts.

They inherit a few of gpud's own variables, but not the scheduler's key, which a tenant's kernel
could read in its worker. A lease adds variables for its devices and its share of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.model import Share
from remote_gpu.middleware.base import device_variables
from remote_gpu.worker.control import VARIABLES

#: Folder of the MPS control daemon; gpud sets it for all programs that it starts (`--mps`).
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"

#: Variables by which any program finds programs, libraries and files.
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
#: Prefixes for workers: of Python, and of the drivers of NVIDIA, OpenCL, PoCL, AMD and Intel.
_WORKER_PREFIXES = ("PYTHON", "LC_", "CUDA_", "NVIDIA_", "OCL_", "POCL_", "HSA_", "ROCR_", "ZE_")
#: Limits of one thread: a lease's share is its cores, and a threaded spawner cannot fork.
_SINGLE_THREADED = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def spawner_variables(own: Mapping[str, str]) -> dict[str, str]:
    """Variables for the spawner and all workers, from gpud's `own`: one thread per library.

    ONNX Runtime 1.31 sends telemetry and keeps a file in the temporary folder by default: both are
    disabled, because a tenant's work is private.
    """
    passed = {
        name: value
        for name, value in own.items()
        if name in INHERITED or name.startswith(_WORKER_PREFIXES)
    }
    return passed | dict.fromkeys(_SINGLE_THREADED, "1") | {"ORT_DISABLE_TELEMETRY": "1"}


def worker_variables(shares: tuple[Share, ...]) -> Mapping[str, str]:
    """Variables that show a worker the lease's NVIDIA devices only.

    MIG slices have a UUID of their own. Where MPS runs, it enforces a shared device's memory and
    compute limit: `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
    """
    variables = device_variables(shares)
    return {name: value for name, value in variables.items() if name in VARIABLES}

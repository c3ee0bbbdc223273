"""The common part of operations with models on NVIDIA cards."""

from __future__ import annotations

from remote_gpu.worker.inference.model import CUDA_IMPLEMENTATION, check_cuda
from remote_gpu.worker.operation import Context


class ModelsOnCards:
    """The card's part of such an operation, before the class with its CPU's.

    Models are loaded by a lease's first call: a card's context does not survive a fork.
    """

    implementation = CUDA_IMPLEMENTATION
    kinds: tuple[str, ...] = ("cuda",)
    libraries: tuple[str, ...] = ("onnxruntime-gpu",)
    by_kernels = True

    def prepare(self, context: Context) -> None:
        """Check that the library serves cards."""
        del context
        check_cuda()

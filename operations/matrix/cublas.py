"""Matrix products by cuBLAS, called through its C interface.

The library (wheel `nvidia-cublas`, extra `host-cuda`) is loaded on first use. Its handle works in
the backend's context and stream, with a work area that the lease's quota counts: cuBLAS would
allocate one of its own otherwise.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from operations.matrix.product import Bind, Sides
from remote_gpu.api import Backend, DeviceMemory, OpCode, OpFailed, Quota

if TYPE_CHECKING:  # its library is an extra of its own
    from remote_gpu.api import CudaBackend

#: Recommended from Hopper on; before, 4 MiB would do (cuBLAS documentation, cublasSetWorkspace).
WORK_AREA_BYTES = 32 << 20
_NOT_TRANSPOSED = 0
_STATUS = {
    0: "SUCCESS",
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
}
_ALLOC_FAILED = 3


class Cublas:
    """`cublasSgemm`, in single precision throughout: no TF32."""

    name = "cublas"

    def prepare(self, backend: Backend, quota: Quota) -> Bind:
        """A handle on a card's stream. Raises OpFailed: ENOTSUP without the library."""
        return _Handle(cast("CudaBackend", backend), quota).bind


class _Handle:
    """A handle of the library on one backend; it lives as long as its worker."""

    def __init__(self, backend: CudaBackend, quota: Quota) -> None:
        self._backend = backend
        self._library = library()
        self._handle = ctypes.c_void_p()
        backend.enter()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        stream = ctypes.c_void_p(int(backend.stream))
        self._call("cublasSetStream_v2", self._handle, stream)
        self._work_area = backend.allocate(quota, WORK_AREA_BYTES)
        area = ctypes.c_void_p(backend.address_of(self._work_area))
        size = ctypes.c_size_t(WORK_AREA_BYTES)
        self._call("cublasSetWorkspace_v2", self._handle, area, size)

    def bind(self, memories: Sequence[DeviceMemory], sides: Sides) -> Callable[[], None]:
        """The product of row-major matrices: that of their transposes, in the other order."""
        m, n, k = map(ctypes.c_int, sides)
        a, b, c = (ctypes.c_void_p(self._backend.address_of(memory)) for memory in memories)
        one, none = ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))
        order = (ctypes.c_int(_NOT_TRANSPOSED), ctypes.c_int(_NOT_TRANSPOSED))
        arguments = (*order, n, m, k, one, b, n, a, k, none, c, n)
        return functools.partial(self._call, "cublasSgemm_v2", self._handle, *arguments)

    def _call(self, function: str, *arguments: Any) -> None:
        self._backend.enter()
        with self._backend.watched(function):
            status = getattr(self._library, function)(*arguments)
        if status:
            code = OpCode.ENOMEM if status == _ALLOC_FAILED else OpCode.EIO
            name = _STATUS.get(status, str(status))
            raise OpFailed(code, f"the device failed: {function} returned {name}")


@functools.cache
def library() -> ctypes.CDLL:
    """The library of a wheel or of the system; neither driver nor threads are needed to load it.

    Raises OpFailed(ENOTSUP).
    """
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        path = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path
        return ctypes.CDLL(path)
    except (ImportError, OSError, RuntimeError) as error:
        message = f"sgemm by cuBLAS needs orchgpu[host-cuda] ({error})"
        raise OpFailed(OpCode.ENOTSUP, message) from None

"""`sgemm`: C = A × B in single precision, row-major: by numpy's BLAS, cuBLAS or a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operations.matrix.cublas import Cublas, library
from operations.matrix.product import BLOCKED, TILED, Kernel, Method, Product
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome, invalid

_SIDE_MAX = 32768
_LIMITS = api.Limits(inputs_min=2, inputs_max=2, input_bytes_max=1 << 33)
_SIGNATURE = api.Signature(
    arguments=(
        api.Integer(name="m", meaning="rows of A and C", least=1, most=_SIDE_MAX),
        api.Integer(name="n", meaning="columns of B and C", least=1, most=_SIDE_MAX),
        api.Integer(name="k", meaning="columns of A, rows of B", least=1, most=_SIDE_MAX),
    ),
    inputs=(
        api.Port(name="A", dtype="float32", shape="m×k"),
        api.Port(name="B", dtype="float32", shape="k×n"),
    ),
    outputs=(api.Port(name="C", dtype="float32", shape="m×n"),),
    values="`shape` of C",
)


class NumpySgemm(api.CpuOperation):
    """C = A × B in single precision, row-major.

    On a CPU by numpy's BLAS on one thread; on other devices by a kernel.
    """

    name = "sgemm"
    implementation = f"numpy {np.__version__}"
    libraries = ("numpy",)
    limits = _LIMITS
    signature = _SIGNATURE

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        m, n, k = _sides(args, inputs)
        a = np.ndarray((m, k), np.float32, inputs[0])
        b = np.ndarray((k, n), np.float32, inputs[1])
        context.taint()  # OpenBLAS keeps parts of both matrices in a work area of its own
        with context.quota.held(4 * m * n):
            return {"shape": [m, n]}, [np.matmul(a, b)]


class DeviceSgemm(api.CpuOperation):
    """The product on a device that is not numpy's. Starts threads: never before a fork."""

    name = "sgemm"
    by_kernels = True
    limits = _LIMITS
    signature = _SIGNATURE

    def __init__(self, method: Method, kinds: tuple[str, ...], libraries: tuple[str, ...]) -> None:
        self._method = method
        self.kinds = kinds
        self.libraries = libraries
        self.implementation = method.name

    def kernel_sources(self) -> Sequence[str]:
        return (self._method.source,) if isinstance(self._method, Kernel) else ()

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        m, n, k = _sides(args, inputs)
        product = context.warm.get(
            f"{self.implementation} on {context.kind} {context.device}",
            lambda: Product(context.open_backend(), self._method, context.quota),
        )
        return {"shape": [m, n]}, [product.compute(context.quota, (m, n, k), *inputs)]


class CublasSgemm(DeviceSgemm):
    """The product by NVIDIA's library, which is loaded before any lease."""

    def prepare(self, context: Context) -> None:
        del context
        library()


def _sides(args: Arguments, inputs: Sequence[memoryview]) -> tuple[int, int, int]:
    """m, n and k. Raises OpFailed(EINVAL) unless the matrices have these sizes."""
    read = _SIGNATURE.read(args)
    m, n, k = read["m"], read["n"], read["k"]
    _check("A", inputs[0].nbytes, m, k)
    _check("B", inputs[1].nbytes, k, n)
    return m, n, k


def _check(what: str, size: int, rows: int, columns: int) -> None:
    if size != 4 * rows * columns:
        wanted = f"{rows}×{columns} float32, {4 * rows * columns} bytes"
        raise invalid(f"{what} must be {wanted}, not {size}")


OPERATIONS = (
    NumpySgemm(),
    CublasSgemm(Cublas(), ("cuda",), ("nvidia-cublas",)),
    DeviceSgemm(BLOCKED, ("cpu", "opencl"), ("pyopencl",)),
    DeviceSgemm(TILED, ("opencl", "cuda"), ()),
)

"""`sgemm`: C = A × B in single precision, row-major, by numpy's BLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.arguments import only, whole
from remote_gpu.worker.operation import Context, Limits, Outcome

_SIDE_MAX = 32768


class Sgemm:
    """Inputs A (m×k) and B (k×n) as float32 bytes → C (m×n); arguments `m`, `n`, `k`."""

    name = "sgemm"
    version = 1
    kinds = ("cpu",)
    implementation = f"numpy {np.__version__}"
    limits = Limits(inputs_min=2, inputs_max=2, input_bytes_max=1 << 33)

    def prepare(self, context: Context) -> None:
        """Needs nothing: the first product sets BLAS up in microseconds."""

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        only(args, "m", "n", "k")
        m, n, k = (whole(args, name, 1, _SIDE_MAX) for name in ("m", "n", "k"))
        a, b = _matrix(inputs[0], "A", m, k), _matrix(inputs[1], "B", k, n)
        with context.quota.held(4 * m * n):
            return {"shape": [m, n]}, [np.matmul(a, b)]


def _matrix(view: memoryview, what: str, rows: int, columns: int) -> np.ndarray[Any, Any]:
    if view.nbytes != 4 * rows * columns:
        message = f"{what} must be {rows}×{columns} float32, {4 * rows * columns} bytes, not"
        raise OpFailed(OpCode.EINVAL, f"{message} {view.nbytes}")
    return np.frombuffer(view, np.float32).reshape(rows, columns)


OPERATIONS = (Sgemm(),)

"""Matrix products by a kernel, for every kind of device that runs kernels.

A work item keeps a block of the result in registers. Serves devices without a library of their
vendor's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from remote_gpu.wire.graphs import Scalar
from remote_gpu.worker.backends.base import Backend, DeviceMemory, Program
from remote_gpu.worker.memory.quota import Quota

#: Global and local size of a launch for an m×n result.
Sizes: TypeAlias = "tuple[tuple[int, int], tuple[int, int]]"

#: Larger memory is freed after its product; smaller memory is kept for the next one of its size,
#: until anything else of the lease needs it.
_KEPT_BYTES = 64 << 20

_SOURCE = """
__kernel void blocked(__global const float *a, __global const float *b, __global float *c,
                      int m, int n, int k)
{
    int row = get_global_id(0) * 8, column = get_global_id(1) * 8;
    if (row + 8 > m || column + 8 > n) {  /* the edges: each sum by itself */
        for (int r = row; r < m && r < row + 8; r++)
            for (int x = column; x < n && x < column + 8; x++) {
                float sum = 0.0f;
                for (int i = 0; i < k; i++) sum += a[r * k + i] * b[i * n + x];
                c[r * n + x] = sum;
            }
        return;
    }
    float EACH_ROW(SUMS);
    for (int x = 0; x < 8; x++) { EACH_ROW(CLEAR) }
    for (int i = 0; i < k; i++) {
        EACH_ROW(LEFT)
        for (int x = 0; x < 8; x++) {
            float right = b[i * n + column + x];
            EACH_ROW(ADD)
        }
    }
    for (int x = 0; x < 8; x++) { EACH_ROW(STORE) }
}
"""
#: What is written once per row of a register block: compilers keep arrays in registers only when
#: each has a name of its own.
_EACH_ROW = {
    "CLEAR": ("sum{r}[x] = 0.0f;", " "),
    "SUMS": ("sum{r}[8]", ", "),
    "LEFT": ("float left{r} = a[(row + {r}) * k + i];", " "),
    "ADD": ("sum{r}[x] += left{r} * right;", " "),
    "STORE": ("c[(row + {r}) * n + column + x] = sum{r}[x];", " "),
}
_BLOCK = 8  #: a side of a block in registers: 64 sums of one item


def source() -> str:
    """The kernel `blocked`, in the portable subset."""
    text = _SOURCE
    for word, (line, between) in _EACH_ROW.items():
        rows = between.join(line.format(r=row) for row in range(_BLOCK))
        text = text.replace(f"EACH_ROW({word})", rows)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One way to compute a product."""

    name: str  #: of the implementation, for callers
    source: str
    entry: str  #: its name in the source
    sizes: Callable[[int, int], Sizes]  #: for an m×n result


def _in_blocks(m: int, n: int) -> Sizes:
    return (-(-m // _BLOCK), -(-n // _BLOCK)), (1, 1)


BLOCKED = Kernel(name="opencl-blocked", source=source(), entry="blocked", sizes=_in_blocks)


class Product:
    """A kernel built for one device, with the memory of its last product. Thread-safe."""

    def __init__(self, backend: Backend, kernel: Kernel) -> None:
        self._backend = backend
        self._kernel = kernel
        self._program: Program = backend.build(kernel.source)
        self._lock = threading.Lock()
        self._bound: _Bound | None = None
        self._registered = False

    def compute(
        self, quota: Quota, sides: tuple[int, int, int], a: memoryview, b: memoryview
    ) -> npt.NDArray[np.float32]:
        """C of m×n for `sides` m, n, k. Raises OpFailed: ENOMEM, EIO."""
        m, n, _ = sides
        with self._lock:
            if not self._registered:
                self._registered = True
                quota.add_cache(self._evict)
            bound = self._bind(quota, sides)
            bound.a.write(a)
            bound.b.write(b)
            bound.enqueue()
            self._backend.finish()
            with quota.held(4 * m * n):
                result = np.frombuffer(bound.c.read(), np.float32).reshape(m, n).copy()
            if bound.bytes > _KEPT_BYTES:
                self._drop()
        return result

    def _bind(self, quota: Quota, sides: tuple[int, int, int]) -> _Bound:
        if self._bound is None or self._bound.sides != sides:
            self._drop()
            self._bound = _Bound(self._backend, self._program, self._kernel, quota, sides)
        return self._bound

    def _evict(self) -> None:
        if self._lock.acquire(blocking=False):
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        if self._bound is not None:
            self._bound.close()
            self._bound = None


class _Bound:
    """The memory for products of one size, bound to the kernel."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        kernel: Kernel,
        quota: Quota,
        sides: tuple[int, int, int],
    ) -> None:
        m, n, k = sides
        self.sides = sides
        self._memories: list[DeviceMemory] = []
        self._sizes = kernel.sizes(m, n)
        try:
            for count in (m * k, k * n, m * n):
                self._memories.append(backend.allocate(quota, 4 * count))
            self.a, self.b, self.c = self._memories
            scalars = [Scalar("int", side) for side in sides]
            self._launch = program.kernel(kernel.entry, [*self._memories, *scalars])
        except BaseException:
            self.close()
            raise

    @property
    def bytes(self) -> int:
        return sum(memory.size for memory in self._memories)

    def enqueue(self) -> None:
        self._launch.enqueue(*self._sizes)

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
        self._memories.clear()

"""Matrix products by kernels: one source for every kind of device that runs kernels.

Three ways, slowest first: every item reads all it needs from memory; a group shares tiles of B; an
item keeps a block of the result in registers. They are there to be compared, and for
devices whose vendor's library is not installed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from remote_gpu.wire.graphs import Scalar
from remote_gpu.worker.backends.base import Backend, DeviceMemory, Program
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

#: Global and local size of a launch for an m×n result.
Sizes: TypeAlias = "tuple[tuple[int, int], tuple[int, int]]"

#: Memory above this is given back after its product, below it is kept for the next of its size, or
#: until anything else of the lease needs it.
_KEPT_BYTES = 64 << 20

_SOURCE = """
__kernel void naive(__global const float *a, __global const float *b, __global float *c,
                    int m, int n, int k)
{
    int column = get_global_id(0), row = get_global_id(1);
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

__kernel void tiled(__global const float *a, __global const float *b, __global float *c,
                    int m, int n, int k)
{
    __local float tile[16][16];
    int y = get_local_id(0), row = get_global_id(0), column = get_group_id(1) * 16;
    float sums[16];
    for (int x = 0; x < 16; x++) sums[x] = 0.0f;
    for (int at = 0; at < k; at += 16) {
        for (int i = y; i < 256; i += 64) {
            int down = at + i / 16, right = column + i % 16;
            tile[i / 16][i % 16] = down < k && right < n ? b[down * n + right] : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < 16; i++) {
            float left = row < m && at + i < k ? a[row * k + at + i] : 0.0f;
            for (int x = 0; x < 16; x++) sums[x] += left * tile[i][x];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int x = 0; x < 16; x++)
        if (row < m && column + x < n) c[row * n + column + x] = sums[x];
}

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
_TILE_ROWS, _TILE_COLUMNS = 64, 16  #: of the result, by one group of 64 items
_BLOCK = 8  #: a side of a block in registers: 64 sums of one item
_NAIVE_SIDE = 16


def source() -> str:
    """All kernels, in the subset that every device's compiler takes."""
    text = _SOURCE
    for word, (line, between) in _EACH_ROW.items():
        rows = between.join(line.format(r=row) for row in range(_BLOCK))
        text = text.replace(f"EACH_ROW({word})", rows)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One way to compute a product."""

    name: str  #: the implementation, for callers
    entry: str  #: in `source()`
    sizes: Callable[[int, int], Sizes]


def _one_each(m: int, n: int) -> Sizes:
    return (_up(n, _NAIVE_SIDE), _up(m, _NAIVE_SIDE)), (_NAIVE_SIDE, _NAIVE_SIDE)


def _in_tiles(m: int, n: int) -> Sizes:
    return (_up(m, _TILE_ROWS), _up(n, _TILE_COLUMNS) // _TILE_COLUMNS), (_TILE_ROWS, 1)


def _in_blocks(m: int, n: int) -> Sizes:
    return (_up(m, _BLOCK) // _BLOCK, _up(n, _BLOCK) // _BLOCK), (1, 1)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


NAIVE = Kernel(name="opencl-naive", entry="naive", sizes=_one_each)
TILED = Kernel(name="opencl-tiled", entry="tiled", sizes=_in_tiles)
BLOCKED = Kernel(name="opencl-blocked", entry="blocked", sizes=_in_blocks)


class Product:
    """A kernel built for one device, with the memory of its last product. Calls take turns."""

    def __init__(self, backend: Backend, kernel: Kernel) -> None:
        self._backend = backend
        self._kernel = kernel
        self._program: Program = backend.build(source())
        self._lock = threading.Lock()
        self._bound: _Bound | None = None
        self._spared = False

    def compute(
        self, quota: Quota, sides: tuple[int, int, int], a: memoryview, b: memoryview
    ) -> np.ndarray[Any, Any]:
        """C of m×n for `sides` m, n, k. Raises OpFailed: ENOMEM, EIO."""
        m, n, _ = sides
        with self._lock:
            if not self._spared:
                self._spared = True
                quota.spare(self._give_up)
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

    def _give_up(self) -> None:
        if self._lock.acquire(blocking=False):
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        if self._bound is not None:
            self._bound.close()
            self._bound = None


class _Bound:
    """Memory for products of one size, and the kernel with it as arguments."""

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


def product_of(context: Context, kernel: Kernel) -> Product:
    """Built once in a worker and kept. Starts threads: never before a fork."""
    key = f"{kernel.name} on {context.kind}"
    return context.warm.get(key, lambda: Product(context.open_backend(), kernel))

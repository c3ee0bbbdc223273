"""Matrix products on a device: its memory, and the ways to compute them.

The kernels serve devices without a library of their vendor's; a work item keeps a block of the
result in registers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from remote_gpu.api import Backend, DeviceMemory, Program, Quota, Scalar

#: Global and local size of a launch for an m×n result.
Sizes: TypeAlias = "tuple[tuple[int, int], tuple[int, int]]"
#: m, n and k of C (m×n) = A (m×k) × B (k×n).
Sides: TypeAlias = "tuple[int, int, int]"
#: The memory of A, B and C, and their sides → the start of one product of them.
Bind: TypeAlias = "Callable[[Sequence[DeviceMemory], Sides], Callable[[], None]]"

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

#: For cards: a group of 256 items computes 64×64 results from tiles that it shares, and an item 16
#: of them in registers.
_TILED = """
__kernel void tiled(__global const float *a, __global const float *b, __global float *c,
                    int m, int n, int k)
{
    __local float lefts[16][68];  /* 4 more than 64: columns are in other banks */
    __local float rights[16][64];
    const int item = get_local_id(0), x = item % 16, y = item / 16;
    const int top = get_group_id(0) * 64, first = get_group_id(1) * 64;
    float sums[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
    for (int at = 0; at < k; at += 16) {
        for (int i = item; i < 1024; i += 256) {
            const int row = top + i / 16, down = at + i % 16;
            lefts[i % 16][i / 16] = row < m && down < k ? a[row * k + down] : 0.0f;
        }
        for (int i = item; i < 1024; i += 256) {
            const int down = at + i / 64, column = first + i % 64;
            rights[i / 64][i % 64] = down < k && column < n ? b[down * n + column] : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int q = 0; q < 16; q++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++)
                    sums[i][j] += lefts[q][y + 16 * i] * rights[q][x + 16 * j];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int row = top + y + 16 * i, column = first + x + 16 * j;
            if (row < m && column < n) c[row * n + column] = sums[i][j];
        }
}
"""
_TILE, _TILE_ITEMS = 64, 256


def source() -> str:
    """The kernel `blocked`, in the portable subset."""
    text = _SOURCE
    for word, (line, between) in _EACH_ROW.items():
        rows = between.join(line.format(r=row) for row in range(_BLOCK))
        text = text.replace(f"EACH_ROW({word})", rows)
    return text


class Method(Protocol):
    """One way to compute products."""

    @property
    def name(self) -> str:
        """Of the implementation, for callers."""
        ...

    def prepare(self, backend: Backend, quota: Quota) -> Bind:
        """Prepare products on a device; called once. Raises OpFailed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of OpenCL C that takes A, B, C, m, n and k."""

    name: str  #: of the implementation, for callers
    source: str
    entry: str  #: its name in the source
    sizes: Callable[[int, int], Sizes]  #: for an m×n result

    def prepare(self, backend: Backend, quota: Quota) -> Bind:
        del quota
        program: Program = backend.build(self.source)

        def bind(memories: Sequence[DeviceMemory], sides: Sides) -> Callable[[], None]:
            scalars = [Scalar("int", side) for side in sides]
            launch = program.kernel(self.entry, [*memories, *scalars])
            return partial(launch.enqueue, *self.sizes(*sides[:2]))

        return bind


def _in_blocks(m: int, n: int) -> Sizes:
    return (-(-m // _BLOCK), -(-n // _BLOCK)), (1, 1)


def _in_tiles(m: int, n: int) -> Sizes:
    return (-(-m // _TILE) * _TILE_ITEMS, -(-n // _TILE)), (_TILE_ITEMS, 1)


BLOCKED = Kernel(name="opencl-blocked", source=source(), entry="blocked", sizes=_in_blocks)
TILED = Kernel(name="kernel-tiles", source=_TILED, entry="tiled", sizes=_in_tiles)


class Product:
    """A method on one device, with the memory of its last product. Thread-safe."""

    def __init__(self, backend: Backend, method: Method, quota: Quota) -> None:
        self._backend = backend
        self._bind = method.prepare(backend, quota)
        self._lock = threading.Lock()
        self._sides: Sides | None = None  #: of the memory that is held
        self._held = ExitStack()
        self._registered = False

    def compute(
        self, quota: Quota, sides: Sides, a: memoryview, b: memoryview
    ) -> npt.NDArray[np.float32]:
        """C of m×n for `sides` m, n, k. Raises OpFailed: ENOMEM, EIO."""
        m, n, _ = sides
        with self._lock:
            if not self._registered:
                self._registered = True
                quota.add_cache(self._evict)
            if self._sides != sides:
                self._allocate(quota, sides)
            self._memories[0].write(a)
            self._memories[1].write(b)
            self._enqueue()
            self._backend.finish()
            with quota.held(4 * m * n):
                result = np.frombuffer(self._memories[2].result(), np.float32).reshape(m, n)
            if sum(memory.size for memory in self._memories) > _KEPT_BYTES:
                self._drop()
        return result

    def _allocate(self, quota: Quota, sides: Sides) -> None:
        self._drop()
        m, n, k = sides
        with ExitStack() as held:
            self._memories: list[DeviceMemory] = []
            for count in (m * k, k * n, m * n):
                self._memories.append(self._backend.allocate(quota, 4 * count))
                held.callback(self._memories[-1].close)
            self._enqueue = self._bind(self._memories, sides)
            self._held = held.pop_all()
        self._sides = sides

    def _evict(self) -> None:
        if self._lock.acquire(blocking=False):
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        self._sides = None
        self._held.close()

"""Slower kernels of `sgemm`, for comparison: an out-of-tree package of operations.

`naive`: every work item reads all its numbers from memory. `tiled`: a group shares tiles of B.
`register` makes this file a distribution with an entry point of the group `orchgpu.operations`.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from operations.matrix.product import Kernel, Sizes
from operations.plugins.sgemm import DeviceSgemm
from remote_gpu.worker.registry import GROUP

ENTRY = "sgemm_kernels"  #: its name beside the names of gpud's own operations
SOURCE = """
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
"""
_TILE_ROWS, _TILE_COLUMNS = 64, 16  #: of the result, by one group of 64 items
_NAIVE_SIDE = 16


def register(folder: Path, environ: MutableMapping[str, str]) -> None:
    """Write the metadata of a distribution to `folder` and prepend that to PYTHONPATH."""
    info = folder / "sgemm_kernels-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sgemm_kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{ENTRY} = {__name__}:OPERATIONS\n")
    root = Path(__file__).parents[2]
    path = [str(folder), str(root), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


def _one_each(m: int, n: int) -> Sizes:
    return (_up(n, _NAIVE_SIDE), _up(m, _NAIVE_SIDE)), (_NAIVE_SIDE, _NAIVE_SIDE)


def _in_tiles(m: int, n: int) -> Sizes:
    return (_up(m, _TILE_ROWS), _up(n, _TILE_COLUMNS) // _TILE_COLUMNS), (_TILE_ROWS, 1)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


TILED = Kernel(name="opencl-tiled", source=SOURCE, entry="tiled", sizes=_in_tiles)
NAIVE = Kernel(name="opencl-naive", source=SOURCE, entry="naive", sizes=_one_each)
OPERATIONS = (
    DeviceSgemm(TILED, ("cpu", "opencl"), ("pyopencl",)),
    DeviceSgemm(NAIVE, ("cpu", "opencl"), ("pyopencl",)),
)

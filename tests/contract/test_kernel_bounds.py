"""Kernels that reach outside of their memory, run on this machine's CPU: nothing is there for them.

Each buffer lies between two neighbours that hold a secret. No kernel may write one or read one.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.kernels.source import KernelSource, read_source
from remote_gpu.client import OpFailed
from remote_gpu.wire.graphs import Scalar, Shared
from remote_gpu.worker.backends.base import DeviceMemory, HostMemory
from remote_gpu.worker.backends.bounds import Bounds
from remote_gpu.worker.backends.choice import open_backend
from remote_gpu.worker.memory.quota import Quota
from tests.drivers import needs_cpu_driver

pytest.importorskip("pyopencl", reason="the opencl extra is not installed")

import pyopencl as cl

from remote_gpu.worker.backends import opencl

pytestmark = needs_cpu_driver

PAGE = mmap.PAGESIZE
N = PAGE // 4  # ints of a buffer
SECRET = 0x5EC12E7

SOURCE = """
typedef struct { int first; int rest[3]; } four;
static int second(__global const int *p) { return p[1]; }
static void put(int *one, int v) { one[3] = v; }

__kernel void get(__global int *y, __global const int *x, long at) { y[0] = x[at]; }
__kernel void set(__global int *y, long at, int v) { y[at] = v; }
__kernel void add(__global int *y, long at, int v) { y[at] += v; }
__kernel void bump(__global int *y, long at) { y[at]++; ++y[at + 1]; }
__kernel void walk(__global int *y, __global const int *x, long at) {
    __global const int *p = x;
    p += at;
    y[0] = *p; y[1] = p[-1]; p++; y[2] = *p++; y[3] = second(p); y[4] = *&p[1];
}
__kernel void atomic(__global int *y, long at) { atomic_xchg(&y[at], 1); }
__kernel void member(__global four *y, long at) { y[at].rest[1] = 1; y[0].rest[at] = 2; }
__kernel void inner(__global int *y, long at) {
    int mine[4], behind[4];
    for (int i = 0; i < 4; i++) behind[i] = 5;
    mine[at] = 9;
    y[0] = behind[0] + behind[1] + behind[2] + behind[3];
    y[1] = mine[at & 3] * 0 + mine[at];
}
__kernel void rows(__global int *y, long at) {
    __local int part[4][4];
    int one = 3;
    part[at][1] = 1; part[1][at] = 2; part[at][at] = 3;
    put(&one, 4);
    y[0] = one;
}
__kernel void group(__global int *y, __local int *part, long at) { part[at] = 7; y[0] = part[at]; }
__kernel void bytes(__global int *y, long at) { ((__global uchar *)y)[at] = 1; }
__kernel void wrapped(__global int *y, int a) {
    int mine[13];
    int j = (a & 15) + 2147483640;
    int k = j / 3 - 715827870;  /* 10...12 for a compiler that takes it that nothing overflows */
    mine[k] = 1;
    y[0] = mine[k];
}
__kernel void shadowed(__global int *y, __global const int *x, long at) {
    __global const int *p = x;
    int mine[500], one = 3;
    {
        __global const int *p = p;
        int mine[4] = {mine[0], mine[400], mine[499]}, one = one;
        y[0] = p[at] + mine[3];
        y[1] = one;
    }
}
static int nothing(long at) { if (at > 5) return 1; }
__kernel void unreturned(__global int *y, long at) { y[0] = nothing(at); }
"""
#: Of each kernel: what it takes, after y, from the index.
TAKES: dict[str, Callable[[int], list[str | Scalar | Shared]]] = {
    **dict.fromkeys(("get", "walk", "shadowed"), lambda at: ["x", Scalar("long", at)]),
    **dict.fromkeys(
        ("bump", "atomic", "member", "inner", "rows", "bytes"), lambda at: [Scalar("long", at)]
    ),
    "set": lambda at: [Scalar("long", at), Scalar("int", 1)],
    "add": lambda at: [Scalar("long", at), Scalar("int", 1)],
    "group": lambda at: [Shared(64), Scalar("long", at)],
}


class Between(opencl._SharedMemory):
    """Memory of a kernel between two pages of its neighbours."""

    def __init__(self, context: Any) -> None:
        HostMemory.__init__(self, Quota(), 3 * PAGE)
        self.whole = self.view
        np.frombuffer(self.whole, np.int32)[:] = SECRET
        self.view = self.whole[PAGE : 2 * PAGE]
        self.view[:] = bytes(PAGE)
        self.size = PAGE
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self.buffer = cl.Buffer(context, flags, hostbuf=self.view)

    @property
    def neighbours(self) -> set[int]:
        words = np.frombuffer(self.whole, np.int32)
        return {*words[:N].tolist(), *words[2 * N :].tolist()}

    def close(self) -> None:
        self.view = self.whole
        super().close()


class Machine:
    """Kernels of `SOURCE` with a y and an x between neighbours."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.source: KernelSource = read_source(SOURCE)
        self.program = backend.build(self.source.text)
        self.bounds = Bounds(backend)
        self.memories = {name: Between(backend._context) for name in ("y", "x")}

    def run(self, name: str, *arguments: Any) -> list[int]:
        """y after the kernel. Raises OpFailed for a fault."""
        self.memories["y"].view[:] = bytes(PAGE)
        given = [self.memories["y"], *(self.memories.get(str(one), one) for one in arguments)]
        kernel = self.bounds.kernel(self.program, self.source.kernels[name], given)
        kernel.enqueue((1,), (1,))
        self.backend.finish()
        for memory in self.memories.values():
            assert memory.neighbours == {SECRET}, "a kernel wrote its neighbour's memory"
        seen = np.frombuffer(self.memories["y"].view, np.int32)
        assert SECRET not in seen, "a kernel read its neighbour's memory"
        self.bounds.check(self.source)
        return [int(value) for value in seen]

    def close(self) -> None:
        self.bounds.close()
        for memory in self.memories.values():
            memory.close()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(open_backend("cpu"))
    yield made
    made.close()


FAR = (-1, -(2**31), 2**31, 2**61, 2**62 + 1, -(2**63), 2**63 - 1, 10**12)


@pytest.mark.parametrize("name", TAKES)
def test_nothing_outside_is_read_or_written(machine: Machine, name: str) -> None:
    for at in FAR:
        with pytest.raises(OpFailed, match=rf"EINVAL: kernel '{name}', line \d+.*access outside"):
            machine.run(name, *TAKES[name](at))


@given(
    name=st.sampled_from(sorted(TAKES)),
    at=st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3 * PAGE, 3 * PAGE)),
)
@settings(max_examples=300)
def test_any_index_is_inside_or_a_fault(machine: Machine, name: str, at: int) -> None:
    with contextlib.suppress(OpFailed):
        machine.run(name, *TAKES[name](at))


def test_inside_everything_is_as_written(machine: Machine) -> None:
    assert machine.run("set", Scalar("long", N - 1), Scalar("int", 6))[-1] == 6
    assert machine.run("add", Scalar("long", 2), Scalar("int", -6))[2] == -6
    assert machine.run("bump", Scalar("long", 0))[:3] == [1, 1, 0]
    np.frombuffer(machine.memories["x"].view, np.int32)[:] = np.arange(N)
    assert machine.run("get", "x", Scalar("long", N - 1))[0] == N - 1
    assert machine.run("walk", "x", Scalar("long", 1))[:5] == [1, 0, 2, 4, 4]
    assert machine.run("group", Shared(64), Scalar("long", 15))[0] == 7
    assert machine.run("member", Scalar("long", 2))[:12] == [0, 0, 0, 2, *[0] * 6, 1, 0]
    assert machine.run("bytes", Scalar("long", PAGE - 1))[-1] == 1 << 24
    assert machine.run("inner", Scalar("long", 3))[:2] == [20, 9]
    assert machine.run("shadowed", "x", Scalar("long", 7))[:2] == [7, 3]
    assert machine.run("unreturned", Scalar("long", 3))[0] == 0


@pytest.mark.parametrize(("a", "inside"), [(0, True), (7, True), (13, False), (15, False)])
def test_a_compiler_cannot_argue_a_check_away(machine: Machine, a: int, inside: bool) -> None:
    """In C a sum that overflows may be taken for one that does not: with a length that it knows
    LLVM 14 removes this check and writes behind the array."""
    if inside:
        assert machine.run("wrapped", Scalar("int", a))[0] == 1
    else:
        with pytest.raises(OpFailed, match="kernel 'wrapped', line 37 or 38"):
            machine.run("wrapped", Scalar("int", a))


def test_a_memory_holds_at_least_one_element(machine: Machine) -> None:
    kernel = machine.source.kernels["group"]
    given: list[DeviceMemory | Scalar | Shared] = [
        machine.memories["y"],
        Shared(3),
        Scalar("long", 0),
    ]
    with pytest.raises(OpFailed, match="'part': the memory has 3 bytes, one element 4"):
        machine.bounds.kernel(machine.program, kernel, given)

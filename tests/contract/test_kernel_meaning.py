"""What is written anew means what was written: both texts run, and all memory is the same after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.remote_gpu.sgemm_kernels import NAIVE, TILED
from operations.kernels.source import read_source
from operations.matrix.product import BLOCKED, Kernel
from remote_gpu.wire.graphs import Scalar
from remote_gpu.worker.backends.bounds import Bounds
from remote_gpu.worker.backends.choice import open_backend
from remote_gpu.worker.memory.quota import Quota
from tests.drivers import needs_cpu_driver

pytestmark = needs_cpu_driver

N = 16
EDGES = Path(__file__).parents[2] / "fdl/examples/edge-detection/edges.py"
#: Each with the memories x and y of 16 ints, and n = 5.
BODIES = {
    "constants": "enum { A, B = 4, C }; enum D { E = C }; x[A] = B + C + E;",
    "switch": "switch (y[1]) { case 1: x[1] = 2; break; case 2: x[3] = 1; default: { x[2] = 3; } }",
    "loop of pointers": "for (__global int *p = x; p < x + n; p++) *p = y[p - x] * 2;",
    "pointers back": "__global int *p = x + n; while (p-- != x) *p = n; p = x;"
    " p[1] = *(p + 2) + 1;",
    "declarations": "int a = 1, b[2] = {1, 2}, c = 0; x[0] = a + b[1] + c;"
    " { int a = 7; x[1] = a; }",
    "do": "int i = 0; do { x[i] = i; } while (++i < 4);",
    "down": "for (int i = n; i --> 0;) x[i] = y[i];"
    " while (1) { if (x[0] > 99) break; x[0] += 50; }",
    "signs": "int a = -y[0] + ~y[1] - -y[2] + !y[3]; x[0] = a--; x[1] = --a; x[2] += a++; x[3]++;",
    "values of changes": "x[0] = x[1]++ + ++x[1]; x[2] = (x[3] = 4) + 1; x[4] = x[5] += 3;",
    "index once": "int i = 0; x[i++] += 5; x[i++] = n; x[7] = i; x[x[0] ? 8 : 9]--;",
    "commas": "int i, j; for (i = 0, j = 5; i < j; i++, j--) x[i] = (j, i + y[j]);",
    "choices": "x[0] = y[1] > 2 ? y[2] : y[3]; x[1] = n == 5 && y[0] || y[2] ? 3 : 4;",
    "levels": "x[0] = y[3] - 2 - 1 * 3 % 2 << 1 | 8 & 12 ^ 3;"
    " x[1] = 1 + y[2] < 3 == 0; x[2] = 9 / 2 / 2;",
    "sizes": "float t[3][4];"
    " x[0] = sizeof(t) + sizeof t[0] + sizeof(x) + sizeof(*x) + sizeof(long);",
    "paths": "if (y[0]) x[1] = 1; else if (y[2]) x[3] = 1; else { x[4] = 1; return; } x[5] = 2;",
    "functions": "x[0] = sum(y, n) + sum(y + 3, 2); fill(x + 1, 3, 7); fill(&x[8], n, -1);",
    "references": "int a = y[1], b = y[2]; two(&a, &b); x[0] = a; x[1] = b; int t[2] = {5, 6};"
    " two(t, t + 1); x[2] = t[0]; two(&t[0], &b); x[3] = b + t[0];",
    "structures": "P p = {1, {2, 3}}, q = p; q.k[1] = n; q.a += p.k[0]; x[0] = q.a; x[1] = q.k[1];"
    " x[2] = of(&q) + of(&p); P many[3]; many[n - 3] = q; many[2].k[0]++; x[3] = of(many + 2);",
    "other pointers": "__global int *a = x, *b = y; a[0] = b[1]; __global int *t = a; a = b; b = t;"
    " b[2] = a[3]; x[3] = a == y; x[4] = b == a; x[5] = a + 1 > a;",
    "bytes": "__global uchar *p = (__global uchar *)x; p[5] = 7; p[0]++;"
    " x[3] = p[5] + (int)sizeof(*p);",
    "groups": "__local int t[4][4]; t[1][2] = n; t[2][1] = t[1][2] + 1; x[0] = t[2][1] * t[1][2];",
    "macros": "x[0] = TWICE(n) + SUM(y[1], TWICE(2)) + EMPTY 3; x[1] = NAME(4); x[2] = LINE;",
    "numbers": "x[0] = 0xFFu | 1UL << 3; x[1] = 'a'; x[2] = 1e3f; x[3] = 010; x[4] = .5 + 1.5;",
    "tables": "x[0] = TABLE[n - 3] + TABLE[1]; x[1] = DEEP[1][n - 4]; const int k = 3; x[2] = k;",
    "atomics": "x[0] = atomic_add(&x[1], 5); atomic_inc(x + 2);"
    " x[3] = atomic_cmpxchg(&x[4], 0, n);",
}
BEFORE = """
typedef struct { int a; int k[2]; } P;
__constant int TABLE[] = {3, 1, 4, 1, 5,};
__constant int DEEP[2][2] = {{1, 2}, {3, 4}};
#define TWICE(v) ((v) * 2)
#define SUM(a, b) TWICE(a) + \\
    TWICE(b)
#define EMPTY
#define NAME NAMED
#define NAMED(v) (v + EMPTY 1)
#if defined(TWICE) && !defined(NOTHING) && (1 + 1 == 2)
#define LINE 12
#else
#error no
#endif
static int sum(__global const int *p, int n) { int s = 0; while (n) s += p[--n]; return s; }
static void fill(__global int *p, int n, int v) { if (n == 0) return; for (; n > 0; n--) *p++ = v; }
static void two(int *a, int *b) { int t = *a; *a = *b; *b = t; }
static int of(const P *p) { return p->a * 100 + (*p).k[0] * 10 + p[0].k[1]; }
"""


@pytest.fixture(scope="module")
def backend() -> Any:
    return open_backend("cpu")


def both(
    backend: Any, text: str, entry: str, given: Sequence[Any], sizes: tuple[Any, Any]
) -> tuple[list[bytes], list[bytes]]:
    """All memory after the text as it is, and after the text written anew."""
    source, bounds = read_source(text), Bounds(backend)
    memories = [
        backend.allocate(Quota(), one.nbytes) if isinstance(one, np.ndarray) else one
        for one in given
    ]
    found: list[list[bytes]] = []
    for checked in (False, True):
        for one, memory in zip(given, memories, strict=True):
            if isinstance(one, np.ndarray):
                memory.write(memoryview(one.tobytes()))
        program = backend.build(source.text if checked else text)
        if checked:
            kernel = bounds.kernel(program, source.kernels[entry], memories)
        else:
            kernel = program.kernel(entry, memories)
        kernel.enqueue(*sizes)
        backend.finish()
        arrays = (n for n, one in enumerate(given) if isinstance(one, np.ndarray))
        found.append([bytes(memories[n].read()) for n in arrays])
        del kernel, program
    bounds.check(source)
    bounds.close()
    for memory in memories:
        if not isinstance(memory, Scalar):
            memory.close()
    return found[0], found[1]


@pytest.mark.parametrize("what", BODIES)
def test_every_construct_means_what_it_meant(backend: Any, what: str) -> None:
    parameters = "__global int *x, __global int *y, int n"
    text = f"{BEFORE}__kernel void f({parameters}) {{\n{BODIES[what]}\n}}\n"
    x, y = np.zeros(N, np.int32), np.arange(1, N + 1, dtype=np.int32)
    plain, anew = both(backend, text, "f", [x, y, Scalar("int", 5)], ((1,), (1,)))
    assert np.frombuffer(anew[0], np.int32).tolist() == np.frombuffer(plain[0], np.int32).tolist()
    assert plain[0] != bytes(4 * N), "it did something"
    assert plain[1] == anew[1]


@pytest.mark.parametrize("kernel", [NAIVE, TILED, BLOCKED])
def test_products_are_the_same(backend: Any, kernel: Kernel) -> None:
    m, n, k = 70, 43, 29
    random = np.random.default_rng(1)
    a, b = (random.random(shape, np.float32) for shape in ((m, k), (k, n)))
    sides = [Scalar("int", side) for side in (m, n, k)]
    given = [a, b, np.zeros((m, n), np.float32), *sides]
    plain, anew = both(backend, kernel.source, kernel.entry, given, kernel.sizes(m, n))
    assert plain == anew
    np.testing.assert_allclose(np.frombuffer(anew[2], np.float32).reshape(m, n), a @ b, rtol=1e-4)


@pytest.mark.parametrize("entry", ["smooth", "edges"])
def test_edges_are_the_same(backend: Any, entry: str) -> None:
    text = EDGES.read_text(encoding="utf-8").split('KERNELS = """')[1].split('"""')[0]
    random = np.random.default_rng(2)
    width, height = 37, 21
    pixels = random.integers(0, 255, (height, width))
    types = {"smooth": (np.float32, np.uint8), "edges": (np.uint8, np.float32)}[entry]
    sides = [Scalar("int", side) for side in (width, height)]
    given = [np.zeros((height, width), types[0]), pixels.astype(types[1]), *sides]
    plain, anew = both(backend, text, entry, given, ((40, 24), (8, 8)))
    assert plain == anew
    assert any(anew[0])

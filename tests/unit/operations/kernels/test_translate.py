"""Sources whose control flow, names, lifetimes or sizes would meet memory without its checks."""

from __future__ import annotations

import re

import pytest

from operations.kernels.source import KernelSource, read_source
from remote_gpu.wire.errors import OpFailed

STRUCTURES = """
typedef struct { ulong k[4]; } V;
typedef struct { ulong k[4000]; } S;
typedef struct { ulong k[2000]; } T;
static ulong by_value(S s) { return s.k[0]; }
static T result(ulong n) { T t; t.k[1] = n; return t; }
"""


def kernel(body: str) -> str:
    return f"__kernel void f(__global ulong *y, __global ulong *z, int w) {{\n{body}\n}}\n"


def refused(source: str) -> str:
    with pytest.raises(OpFailed, match="EINVAL: the source does not build: ") as failed:
        read_source(source)
    return failed.value.message


LABEL = r"line 2: '(case|default)' stands directly in the braces of its switch"
DECLARATION = "line 2: a switch could jump over this declaration"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("switch (w) { case 0: ; ulong a[1024]; case 1: y[0] = a[w]; }", DECLARATION),
        ("switch (w) { case 0: ; __global ulong *p = z; case 1: y[0] = p[w]; }", DECLARATION),
        ("switch (w) { ulong a = 1; case 1: y[0] = a; }", DECLARATION),
        ("switch (w) { case 1: y[0] = 1; default: ; const int a = 1; y[0] = a; }", DECLARATION),
        ("switch (w) { case 0: __local ulong a[4]; default: y[0] = a[0]; }", DECLARATION),
        ("switch (w) { case 0: int a; default: y[0] = 0; }", DECLARATION),
        ("switch (w) { enum { A } a; case 1: y[a] = 0; }", DECLARATION),
        (
            "ulong a[4]; switch (w) { for (uint i = 0; i < 4; i++) { case 1: y[i] = a[i]; } }",
            LABEL,
        ),
        ("switch (w) { case 0: { ulong a[9]; case 1: y[0] = a[0]; } }", LABEL),
        ("switch (w) { case 0: do { y[0] = 1; case 1: y[1] = 1; } while (--w); }", LABEL),
        ("switch (w) { case 0: while (w--) default: y[1] = 1; }", LABEL),
        ("switch (w) { case 0: if (z[0]) { ; } else { case 1: y[1] = 1; } }", LABEL),
        ("switch (w) { case 0: if (z[0]) case 1: y[1] = 1; }", LABEL),
        ("switch (w) { case 0: switch (z[0]) { case 1: if (w) { case 2: y[0] = 1; } } }", LABEL),
        ("case 1: y[0] = 1;", LABEL),
        ("if (w) default: y[0] = 1;", LABEL),
        ("switch (w) case 1: y[0] = 1;", "line 2: a switch is written as"),
        ("switch (w) if (z[0]) case 1: y[0] = 1;", "line 2: a switch is written as"),
        ("switch (w) for (int i = 0; i < 4; i++) { case 1: y[i] = 1; }", "a switch is written as"),
        ("again: y[0] = 1; goto again;", "labels are not in the subset"),
        ("goto again; ulong a[9]; again: y[0] = a[0];", "goto: it is not in the subset"),
    ],
)
def test_control_enters_blocks_at_their_beginning_alone(body: str, words: str) -> None:
    assert re.search(words, refused(kernel(body)))


@pytest.mark.parametrize(
    "body",
    [
        "switch (w) { case 0: { ulong a[9]; y[0] = a[w]; } default: { int b = 1; y[b] = 0; } }",
        "switch (w) { case 2: for (int i = 0; i < 4; ++i) { ulong a[4]; y[0] = a[i]; } case 1: ; }",
        "for (int i = 0; i < 4; i++) switch (w) { case 1: case 2: continue; default: return; }",
        "switch (w) { case 0: switch (z[0]) { case 0: y[0] = 1; } break; case 1: y[0] = 2; }",
        "switch (w) { } switch (w) { case -1: }",
    ],
)
def test_an_ordinary_switch_is_in_the_subset(body: str) -> None:
    assert "orchgpu_zero) {" in read_source(kernel(body)).text


def test_a_name_in_its_own_initialiser_is_the_one_outside() -> None:
    """In C it is already the new one: without value, count and offset."""
    body = "ulong a = 1; { ulong a = a; y[0] = a; }"
    assert "a_2 = a_;" in read_source(kernel(body)).text
    body = "__global ulong *p = y; { __global ulong *p = p + 1; p[0] = 1; }"
    text = read_source(kernel(body)).text
    assert "p__2b = p__b; ulong p__2n = p__n, p__2o = (p__o + (ulong)(1));" in text
    constant = "__constant ulong a[2] = {1, 2};\n"
    assert "a_2 = a_[1];" in read_source(constant + kernel("ulong a = a[1]; y[0] = a;")).text
    parameter = "static int g(int w) { { int w = w + 1; return w; } }\n"
    assert "w_2 = (w_ + 1);" in read_source(parameter + kernel("y[0] = g(1);")).text
    assert "'a' is declared twice" in refused(kernel("int a = 1; int a[4] = {a};"))
    assert "'p' is declared twice" in refused(kernel("int p = 1; __global ulong *p = y;"))


@pytest.mark.parametrize(
    "body",
    [
        "ulong o; ulong *p = &o; { ulong a[16]; p = a; } y[0] = p[3];",
        "ulong o; ulong *p = &o; while (w--) { y[0] = *p; ulong a; p = &a; }",
        "ulong o[2]; ulong *p = o + 1; for (ulong a[4], k = 0; k < 2; k++) p = a;",
        "ulong o; ulong *p = &o; if (w) { ulong a; ulong *q = &a; p = q; } y[0] = *p;",
        "V o; V *p = &o; { V a; p = &a + w; } y[0] = p->k[w];",
    ],
)
def test_a_pointer_does_not_outlive_its_memory(body: str) -> None:
    assert "memory that lives longer than what is assigned" in refused(STRUCTURES + kernel(body))


@pytest.mark.parametrize(
    "body",
    [
        "ulong a[4], b[4]; ulong *p = a, *q = b; while (w--) { ulong *t = p; p = q; q = t; }",
        "ulong a; ulong *p = &a; { ulong b; ulong *q = &b; q = p; y[0] = *q; }",
        "{ __global ulong *p = y; { __global ulong *q = z; p = q; q = y; } }",
        "__local ulong t[4]; __local ulong *p = t; { __local ulong *q = t + 1; p = q; }",
        "ulong a; other(&a, w);",
    ],
)
def test_other_assignments_of_pointers_are_in_the_subset(body: str) -> None:
    other = "static void other(ulong *p, int w) { ulong a[2]; if (w) p = a; p[0] = 1; }\n"
    assert read_source(other + kernel(body)).kernels["f"].name == "f"


def test_a_structure_passed_by_value_counts_with_its_size() -> None:
    """Once for the parameter, and once for the compiler's copy."""

    def bytes_of(body: str) -> int:
        return read_source(STRUCTURES + kernel(body)).kernels["f"].private_bytes

    least = bytes_of("")
    assert bytes_of("S s;") == least + 32000
    assert bytes_of("T t; t = result(w);") == least + 3 * 16000 + 8
    assert bytes_of("T t, u; t = w ? t : u;") == least + 3 * 16000
    assert bytes_of("T t, u; t = u;") == least + 2 * 16000, "no copy"


@pytest.mark.parametrize(
    "text",
    [
        kernel("S s; y[0] = by_value(s) + by_value(s);"),
        kernel("S s; s.k[w] = 1; s = w ? s : w > 1 ? s : s;"),
        kernel("T t; t = result(1); t = result(2); t = result(3); t = result(4);"),
        kernel("T t; t = w ? (0, t) : w > 1 ? (0, t) : w > 2 ? (0, t) : w > 3 ? t : t;"),
        kernel("T s, t, u; s = t = u = s;"),
        "static ulong two(S s, S t, T u) { return s.k[0] + t.k[1]; }\n" + kernel(""),
        "static ulong large(S s) { S t, u; t = s; return t.k[0]; }\n" + kernel(""),
        "typedef struct { ulong k[1500000]; } H;\nstatic int g(H h) { return 1; }\n" + kernel(""),
        "typedef struct { ulong k[1500000]; } H;\n"
        + kernel("").replace("}", "y[0] = ((w ? h[0] : h[1]).k[1] }").replace("ulong *z", "H *h"),
    ],
)
def test_copies_of_structures_are_limited(text: str) -> None:
    assert "a work item has at most 65536 bytes of variables" in refused(STRUCTURES + text)


def test_a_function_gives_a_value_on_every_path() -> None:
    """In C the value is what is left in a register."""

    def ends(text: str) -> str:
        return read_source(text + kernel("")).text.split("__kernel")[0]

    assert "return 0; }" in ends("static int g(int a) { if (a) return 1; }\n")
    assert "= {0}; return orchgpu_none; }" in ends(STRUCTURES + "T g(int a) { while (a--); }\n")
    assert "returns a value" in refused("int g(int a) { return; }\n" + kernel(""))
    assert "cannot return a value" in refused("void g(int a) { return a; }\n" + kernel(""))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("typedef struct { bool b; } B;\n" + kernel(""), "line 1: a member of type bool"),
        (kernel("__local bool b[4];"), "line 2: 'b': __local memory cannot have the type bool"),
        ("__kernel void _Z13get_global_idj(__global int *y) {}\n", "names cannot begin with _ or"),
        ("static int f(int a) { return a; }\n" + kernel(""), "line 2: 'f' is defined twice"),
        (kernel("") + "static int f(int a) { return a; }\n", "line 4: kernel 'f' is defined twice"),
    ],
)
def test_values_and_names_that_compilers_trust_are_refused(text: str, words: str) -> None:
    assert words in refused(text)


def test_no_kernel_has_the_name_of_a_function_of_the_compiler() -> None:
    source: KernelSource = read_source("__kernel void memcpy(__global int *y) { y[0] = 1; }\n")
    assert source.kernels["memcpy"].entry == "memcpy_"
    assert "__kernel void memcpy_(" in source.text

"""The OpenCL C subset of graphs: what is refused, and what the translation to CUDA makes of it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_gpu.wire.errors import OpFailed
from remote_gpu.wire.graphs import Scalar, Shared
from remote_gpu.worker.kernels.cuda import prelude, shared_offsets, to_cuda
from remote_gpu.worker.kernels.source import read_source
from remote_gpu.worker.kernels.tokens import SOURCE_CHARS_MAX
from remote_gpu.worker.kernels.words import BUILTINS

FOLDER = Path(__file__).parents[2] / "contract"
ALL = "".join(
    (FOLDER / name).read_text(encoding="utf-8") for name in ("kernels.cl", "functions.cl")
)


def kernel(body: str, parameters: str = "__global float *x") -> str:
    return f"__kernel void f({parameters}) {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (kernel("float4 v;"), "line 2: float4: vector types"),
        (kernel("x[0] = vload4(0, x)[0];"), "line 2: vload4: vector types"),
        (kernel("half h;"), "line 2: half"),
        (kernel('printf("x");'), "line 2: printf"),
        (kernel("x[0] = 1;\nsystem(0);"), "line 3: 'system' is neither defined here"),
        ("float g(float x);\n" + kernel("x[0] = g(1);"), "line 1: 'g' is neither defined"),
        ('#include "x.h"\n' + kernel(""), "line 1: #include"),
        ("#define K __kernel\n", "line 1: __kernel in a macro"),
        ("\n#define S(x) system(x)\n" + kernel("S(1);"), "line 2: 'system' is neither"),
        ("#define S system\n" + kernel("S(1);"), "line 3: the macro 'S' cannot be called"),
        ("#define S(x) system\n" + kernel("S(1)(2);"), "line 3: the macro 'S' cannot be called"),
        ("#define S(f) f(0)\n" + kernel("S(system);"), "line 1: 'f' of a macro cannot be"),
        ("#define S sys ## tem\n" + kernel("S(1);"), "line 1: # and ##"),
        (kernel("int new = 1;"), "line 2: 'new' is a word of CUDA"),
        (kernel("int threadIdx = 1;"), "'threadIdx'"),
        (kernel("__asm__(0);"), "line 2: __asm__"),
        (kernel("__builtin_trap();"), "line 2: '__builtin_trap'"),
        (kernel("int orchgpu_x;"), "line 2: 'orchgpu_x'"),
        (kernel("", "read_only image2d_t x"), "line 1: image2d_t: images"),
        (kernel("", "float *x"), "a pointer is one of __global"),
        (kernel("", "__global float **x"), "a pointer is one of"),
        (kernel("", "__private float *x"), "a pointer is one of"),
        (kernel("", "char x"), "neither a pointer nor one of int"),
        (kernel("", "__global float *"), "must end with its name"),
        ("__kernel int f() { return 1; }", "a kernel is written as"),
        ("__kernel void f();", "'f' is neither defined here"),
        (kernel("") + kernel(""), "line 4: kernel 'f' is defined twice"),
        ("float min(float a) { return a; }\n" + kernel(""), "'min' is a function of OpenCL C"),
        (kernel("x[0] = (1;"), "line 2: a parenthesis has no end"),
        (kernel("/* never"), "line 2: a comment has no end"),
        (kernel("x[0] = 1 @ 2;"), "line 2: unexpected '@'"),
        (kernel("x[0] = π;"), "line 2: unexpected 'π'"),
    ],
)
def test_what_is_not_in_the_subset_is_named_with_its_line(source: str, words: str) -> None:
    with pytest.raises(OpFailed, match=re.escape(words)) as failed:
        read_source(source)
    assert failed.value.code == "EINVAL"
    assert failed.value.message.startswith("the source does not build: ")


INCLUDE = '#include "/etc/passwd"\n'


@pytest.mark.parametrize(
    "source",
    [
        INCLUDE.replace("#", "%:"),
        INCLUDE.replace("#", "??="),
        "// text\r" + INCLUDE,
        "// text \\\n/*\n" + INCLUDE + "// */\n",
        "// text ??/\n/*\n" + INCLUDE + "// */\n",
        "// text \\ \n/*\n" + INCLUDE + "// */\n",
        "/* text *\\\n/\n" + INCLUDE + "/* */\n",
        '#define A "/*" */*\n' + INCLUDE + "/* */\n",
        "#define A /*\n// */ __asm__(0)\n",
        'int a = R"(" /* )";\n' + INCLUDE + 'int b = R"( */ )";\n',
        "/* \0 */" + INCLUDE,
        "#/**/include <stdio.h>\n",
        "#inc\\\nlude <stdio.h>\n",
        '#if __has_include("/etc/passwd")\n#endif\n',
        "#if 1\n#elif defined(X) && __has_embed(<x>)\n#endif\n",
        "#pragma clang attribute push(__attribute__((constructor)), apply_to=function)\n",
        "#pragma\n",
        "__attribute__((constructor)) void g(void) {}\n",
        '__attribute__((packed, alias("system"))) void g(void) {}\n',
        "#define G __attribute__((constructor))\n",
        "#define S prin\\\ntf\n",
        "#define/**/S(x) system(x)\n",
        "#define\n",
        "#define OPEN (\nint system OPEN int);\n",
        "#define CLOSE )\n",
        "#define TURNED )(\n",
        "#define P (0)\nint a = system P;\n",
        "#define E\n#define P (0)\nint a = system E P;\n",
        "#define E\nint a = system E (0);\n",
        "#define P (0)\n#define Q P\nint a = system Q;\n",
        "#define P(x) x\nint a = system P((0));\n",
        "#define P (0)\n#define S system P\n",
        "#define P (0)\n#define S(f) f P\n",
    ],
)
def test_nothing_is_hidden_from_the_check(source: str) -> None:
    with pytest.raises(OpFailed, match="EINVAL"):
        read_source(source + kernel("x[0] = 1;"))


def test_what_looks_alike_is_in_the_subset() -> None:
    source = (
        "// don't: what? a \\ b\r\n/* a * b \\\n / */\n"
        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\r\n"
        "#define FAST // it is\n#define N (4)\n#define CLAMP(a, b) \\\n    min((a), \\\n (b))\n"
        "#if defined(N) && __OPENCL_VERSION__ >= 120\n#endif\ntypedef float real;\n"
        "__attribute__((always_inline)) real half_of(real a) { return (N) * a ? a : a / N; }\n"
    )
    read = read_source(source + kernel("real y = CLAMP(x[0], 1); x[0] = half_of(y) + sizeof N;"))
    assert list(read.kernels) == ["f"]
    assert "\r" not in read.text


def test_words_in_comments_and_texts_are_free() -> None:
    source = "// float4 printf\n/* system(0)\n @ */" + kernel("x[0] = 1; // image2d_t")
    assert list(read_source(source).kernels) == ["f"]


def test_a_source_has_a_length() -> None:
    with pytest.raises(OpFailed, match="E2BIG"):
        read_source(" " * (SOURCE_CHARS_MAX + 1))


def test_kernels_are_read_with_what_they_take() -> None:
    kernels = read_source(ALL).kernels
    assert [p.takes for p in kernels["spaces"].parameters] == [
        "buffer", "buffer", "buffer", "shared", "shared", "int",
    ]  # fmt: skip
    assert [p.takes for p in kernels["scalars"].parameters][1:] == [
        "int", "uint", "long", "ulong", "float", "double",
    ]  # fmt: skip
    own = "#define T unsigned int\ntypedef T whole;\n" + kernel("", "const whole n, T m")
    assert [p.takes for p in read_source(own).kernels["f"].parameters] == ["uint", "uint"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x",), "takes 3 arguments, not 1"),
        (("x", "x", Scalar("double", 1.0)), "argument 2 of kernel 'f' is double; 'k' takes float"),
        (("x", "x", "x"), "argument 2 of kernel 'f' is buffer"),
        (("x", Shared(4), Scalar("float", 1.0)), "argument 1 of kernel 'f' is shared"),
    ],
)
def test_arguments_that_do_not_fit(arguments, words) -> None:
    source = read_source(kernel("", "__global float *y, __global const float *x, float k"))
    with pytest.raises(OpFailed, match=words):
        source.check_call("f", arguments)
    with pytest.raises(OpFailed, match="no kernel 'g' in the source; it has f"):
        source.check_call("g", arguments)


def test_the_translation_keeps_lines_and_finds_memory() -> None:
    cuda = to_cuda(read_source(ALL))
    assert cuda.startswith(prelude())
    body = cuda.split('#line 1 "kernel"\n')[1]
    assert body.count("\n") == ALL.count("\n")
    assert "__shared__ float tile[8];" in body
    assert "__constant__ float WEIGHTS[3]" in body
    assert "float *part = (float *)(orchgpu_shared + orchgpu_at_part);" in body
    assert not re.search(r"__(kernel|global|local|constant)\b", body.replace("__global__", ""))


def test_memories_of_a_group_do_not_touch() -> None:
    assert shared_offsets([4, 16, 17]) == ([0, 16, 32], 64)
    assert shared_offsets([]) == ([], 0)


def test_every_function_of_the_subset_is_in_the_contract_source() -> None:
    assert set(re.findall(r"\w+", ALL)) >= BUILTINS


@given(st.text(alphabet='(){};,*# \n/"_abf0.\\', max_size=60) | st.text(max_size=30))
@settings(max_examples=150)
def test_any_text_is_a_source_or_refused(text: str) -> None:
    for source in (text, kernel(text), kernel("", text)):
        try:
            read = read_source(source)
        except OpFailed:
            continue
        assert "".join(token.text for token in read.tokens) == source.replace("\r\n", "\n")
        to_cuda(read)


@pytest.mark.parametrize("piece", ["f(", "/*", "__local ", "#define a a\n", '"', "__kernel "])
def test_long_nonsense_costs_no_more_than_its_length(piece: str) -> None:
    with contextlib.suppress(OpFailed):  # quadratic work would run into the test's time limit
        to_cuda(read_source(kernel(piece * 10_000)))

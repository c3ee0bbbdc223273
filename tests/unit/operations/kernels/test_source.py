"""The OpenCL C subset of graphs: refused sources, and the conversion to CUDA."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.kernels.cuda import prelude, shared_offsets, to_cuda
from operations.kernels.lexer.tokens import SOURCE_CHARS_MAX
from operations.kernels.lexer.words import BUILTINS
from operations.kernels.source import read_source
from remote_gpu.wire.errors import OpFailed
from remote_gpu.wire.graphs import Scalar, Shared

FOLDER = Path(__file__).parents[3] / "contract"
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
        (kernel("x[0] = 1;\nsystem(0);"), "line 3: 'system' is neither defined above"),
        ("float g(float x);\n" + kernel("x[0] = g(1);"), "line 3: 'g' is neither defined"),
        ('#include "x.h"\n' + kernel(""), "line 1: #include"),
        ("#define K __kernel\nK int f(){}", "line 2: a kernel is written as"),
        ("\n#define S(x) system(x)\n" + kernel("S(1);"), "line 4: 'system' is neither"),
        ("#define S system\n" + kernel("S(1);"), "line 3: 'system' is neither"),
        ("#define S(x) system\n" + kernel("S(1)(2);"), "line 3: 'system' is neither"),
        ("#define S(f) f(0)\n" + kernel("S(system);"), "line 3: 'system' is neither"),
        ("#define S sys ## tem\n" + kernel("S(1);"), "line 1: # and ##"),
        (kernel("int new = 1;"), "line 2: 'new' is a word of CUDA"),
        (kernel("int threadIdx = 1;"), "'threadIdx'"),
        (kernel("__asm__(0);"), "line 2: __asm__"),
        (kernel("__builtin_trap();"), "line 2: '__builtin_trap'"),
        (kernel("int orchgpu_x;"), "line 2: 'orchgpu_x'"),
        (kernel("", "read_only image2d_t x"), "line 1: 'read_only' is not declared"),
        (kernel("", "float *x"), "a pointer is one of __global"),
        (kernel("", "__global float **x"), "a pointer is one of"),
        (kernel("", "__private float *x"), "a pointer is one of"),
        (kernel("", "char x"), "neither a pointer nor one of double, float, int"),
        (kernel("", "__global float *"), "must end with its name"),
        ("__kernel int f() { return 1; }", "a kernel is written as"),
        ("__kernel void f();", "a kernel is written as"),
        (kernel("") + kernel(""), "line 4: kernel 'f' is defined twice"),
        ("float min(float a) { return a; }\n" + kernel(""), "'min' is a function of OpenCL C"),
        (kernel("x[0] = (1;"), "line 2: expected ')'"),
        (kernel("/* never"), "line 2: a comment is not closed"),
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
        "#define G __attribute__((constructor))\nG void g(void) {}\n",
        "#define S prin\\\ntf\nint g(void) { return S; }\n",
        "#define/**/S(x) system(x)\nint g(void) { return S(0); }\n",
        "#define\n",
        "#define OPEN (\nint system OPEN int);\n",
        "#define TURNED )(\nint g(void) { return (system TURNED 0); }\n",
        "#define P (0)\nint a = system P;\n",
        "#define E\n#define P (0)\nint a = system E P;\n",
        "#define E\nint a = system E (0);\n",
        "#define P (0)\n#define Q P\nint a = system Q;\n",
        "#define P(x) x\nint a = system P((0));\n",
        "#define P (0)\n#define S system P\nint g(void) { return S; }\n",
        "#define P (0)\n#define S(f) f P\nint g(void) { return S(system); }\n",
    ],
)
def test_text_that_compilers_may_read_differently_is_refused(source: str) -> None:
    with pytest.raises(OpFailed, match="EINVAL"):
        read_source(source + kernel("x[0] = 1;"))


def test_similar_text_in_the_subset_is_accepted() -> None:
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


def test_comments_and_strings_are_not_checked() -> None:
    source = "// float4 printf\n/* system(0)\n @ */" + kernel("x[0] = 1; // image2d_t")
    assert list(read_source(source).kernels) == ["f"]


def test_the_length_of_a_source_is_limited() -> None:
    with pytest.raises(OpFailed, match="E2BIG"):
        read_source(" " * (SOURCE_CHARS_MAX + 1))


def test_kernels_are_read_with_their_parameters() -> None:
    kernels = read_source(ALL).kernels
    assert [p.takes for p in kernels["spaces"].parameters] == [
        "buffer",
        "buffer",
        "buffer",
        "shared",
        "shared",
        "int",
    ]
    assert [p.takes for p in kernels["scalars"].parameters][1:] == [
        "int",
        "uint",
        "long",
        "ulong",
        "float",
        "double",
    ]
    own = "#define T unsigned int\ntypedef T whole;\n" + kernel("", "const whole n, T m")
    assert [p.takes for p in read_source(own).kernels["f"].parameters] == ["uint", "uint"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x",), "takes 3 arguments, not 1"),
        (("x", "x", Scalar("double", 1.0)), "argument 2 of kernel 'f' is double; 'k' takes float"),
        (("x", "x", "x"), "argument 2 of kernel 'f' is buffer"),
        (("x", Shared(4), Scalar("float", 1.0)), "argument 1 of kernel 'f' is shared"),
        (("x", Scalar("int", 1), Scalar("float", 1.0)), "argument 1 .* is int; 'x' takes buffer"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str | Scalar | Shared, ...], words: str
) -> None:
    source = read_source(kernel("", "__global float *y, __global const float *x, float k"))
    with pytest.raises(OpFailed, match=words):
        source.check_call("f", arguments)
    with pytest.raises(OpFailed, match="the source has no kernel 'g'; it has f"):
        source.check_call("g", arguments)


def test_the_conversion_to_cuda_keeps_lines_and_places_shared_memory() -> None:
    cuda = to_cuda(read_source(ALL).text)
    assert cuda.startswith(prelude())
    body = cuda.split("#line 1\n")[1]
    assert body.count("\n") == ALL.count("\n")
    assert "__shared__ float tile_[8];" in body
    assert "__constant__ float WEIGHTS_[3]" in body
    assert "float *part__b = (float *)(orchgpu_shared + orchgpu_at_part__b);" in body
    assert not re.search(r"__(kernel|global|local|constant)\b", body.replace("__global__", ""))


def test_memories_of_a_group_do_not_overlap() -> None:
    assert shared_offsets([4, 16, 17]) == ([0, 16, 32], 64)
    assert shared_offsets([]) == ([], 0)


def test_every_function_of_the_subset_is_in_the_contract_source() -> None:
    assert set(re.findall(r"\w+", ALL)) >= BUILTINS


@given(st.text(alphabet='(){};,*# \n/"_abf0.\\', max_size=60) | st.text(max_size=30))
@settings(max_examples=150)
def test_any_text_is_a_source_or_is_refused(text: str) -> None:
    for source in (text, kernel(text), kernel("", text)):
        try:
            read = read_source(source)
        except OpFailed:
            continue
        to_cuda(read.text)


@pytest.mark.parametrize("piece", ["f(", "/*", "__local ", "#define a a\n", '"', "__kernel "])
def test_reading_a_source_is_linear_in_its_length(piece: str) -> None:
    with contextlib.suppress(OpFailed):  # quadratic work would run into the test's time limit
        to_cuda(read_source(kernel(piece * 10_000)).text)


POINTERS = "__global float *x, __global int *y, ulong n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("*(__global int *)n = 1;", "a number cannot be cast to a pointer"),
        ("*(__global int *)0x4000 = 1;", "a number cannot be cast to a pointer"),
        ("ulong a = (ulong)x;", "a pointer cannot be cast to a number"),
        ("ulong a = (ulong)&n;", "a pointer cannot be cast to a number"),
        ("ulong a = x;", "a pointer is not a number"),
        ("ulong a = 0; a = x;", "a pointer is not a number"),
        ("ulong a = as_ulong(x);", "a pointer is not a number"),
        ("ulong a = (x == x) + x;", "'\\+' of a number and|a pointer is not a number"),
        ("if (x) n = 1;", "a pointer is not a number"),
        ("n = !x;", "a pointer is not a number"),
        ("n = -x;", "a pointer is not a number"),
        ("n = x * 2;", "'\\*' of a pointer and a number"),
        ("n = x | 1;", "'\\|' of a pointer and a number"),
        ("n = 5 - x;", "'-' of a number and a pointer"),
        ("__global ulong *p = (__global ulong *)x;", "cannot be cast to one to ulong"),
        ("__global double *p = (__global double *)x;", "cannot be cast to one to double"),
        ("__global ulong *p = x;", "declare both alike"),
        ("__local float *p = x;", "declare both alike"),
        ("__local float *p = (__local float *)x;", "cannot change the address space"),
        ("float *p = (float *)x;", "cannot change the address space"),
        ("__global void *p = x;", "a pointer to void is not in the subset"),
        ("__global bool *p = (__global bool *)x;", "a pointer to bool"),
        ("__global float *p;", "the pointer 'p' must be initialised"),
        ("__global float *p = 0;", "a number is not a pointer"),
        ("__global float *p = n;", "a number is not a pointer"),
        ("__global float **p = &x;", "a pointer to pointers is not in the subset"),
        ("__global float *p[2];", "an array of pointers is not in the subset"),
        ("n = (ulong)(&x);", "this is not an lvalue"),
        ("__global float *p = n ? x : x + 1;", "cannot select pointers"),
        ("__global float *p = x; n = (p = x) == x;", "in a statement of its own"),
        ("union { ulong a; } u;", "a union is not in the subset"),
        ("struct { __global float *p; } s;", "outside of functions|no pointers"),
        ("void (*f)(int) = 0;", "cannot be void|not in the subset|pointers to functions"),
        ("int (*f)(int);", "pointers to functions are not in the subset"),
        ("(*x)(1);", "only a function's own name can be called"),
        ("x[0](1);", "only a function's own name can be called"),
        ("n = (ulong)g;", "'g' is not a value"),
        ("n = (ulong)get_global_id;", "'get_global_id' is not a value"),
        ("goto out; out: ;", "goto: it is not in the subset"),
        ("out: n = 1;", "labels are not in the subset"),
        ("void *p = &&out;", "pointer to void|unexpected"),
        ("n = ({ 1; });", "unexpected '{'"),
        ('asm("nop");', "asm"),
        ('__asm__ volatile ("nop");', "__asm__"),
        ('n = (ulong)"text";', "unexpected"),
        ("vstore4(0, 0, x);", "vector types"),
        ("prefetch(x, 1);", "'prefetch' is neither defined"),
        ("async_work_group_copy(y, y, 1, 0);", "'async_work_group_copy' is neither"),
        ("wait_group_events(0, 0);", "'wait_group_events' is neither"),
        ('printf("%n", y);', "printf"),
        ("fract(1.0f, x);", "'fract' is neither"),
        ("frexp(1.0f, y);", "'frexp' is neither"),
        ("atomic_add(n, 1);", "a number is not a pointer"),
        ("atomic_add((__global int *)n, 1);", "a number cannot be cast"),
        ("int m = 0; atomic_add(&m, 1);", "takes a pointer to __global or __local"),
        ("__builtin_astype(x, ulong);", "'__builtin_astype'"),
        ("as_type(x);", "'as_type' is neither"),
        ("to_global(x);", "'to_global' is neither"),
        ("get_fence(x);", "'get_fence' is neither"),
        ("alloca(1);", "'alloca' is neither"),
        ("n = sizeof(struct nothing);", "struct 'nothing' is not defined"),
        ("int a[n];", "'n' is not a constant"),
        ("int a[0];", "an array has 1"),
        ("int a[-1];", "an array has 1"),
        ("int a[1 << 23];", "at most 65536 bytes of variables"),
        ("int a[20000];", "at most 65536 bytes of variables"),
        ("float a[2] = x;", "initialise an array with values in braces"),
        ("__private float *p = (float[]){1};", "pointers to functions and arrays"),
        ("auto p = x;", "'auto' is not declared|not a type"),
        ("__auto_type p = x;", "'__auto_type'"),
        ("typeof(x) p = x;", "'typeof'"),
        ("f(x, y, n);", "'f' is neither defined above"),
        ("n = g(x);", "declare both alike"),
        ("for (int i = 0; i < 4; i++) { int a[4]; (i) = 9; a[i] = 1; }", "cannot be assigned"),
        ("for (int i = 0; i < 4; i++) { int *p = &(i); p[0] = 9; }", "cannot be assigned"),
        ("for (int i = 0; i < 4; i++) { put(&(i)); }", "cannot be assigned"),
    ],
)
def test_pointers_cannot_be_converted(body: str, words: str) -> None:
    before = (
        "static int g(__global int *p) { return p[0]; }\nstatic void put(int *p) { p[0] = 9; }\n"
    )
    with pytest.raises(
        OpFailed, match=f"EINVAL: the source does not build: line [34]: .*({words})"
    ):
        read_source(before + kernel(body, POINTERS))


@pytest.mark.parametrize(
    "source",
    [
        '_Pragma("OPENCL")\n',
        "#pragma clang loop\n",
        "\\u0069nt a;\n",
        "int \\\nx;\n",
        "#import <x>\n",
        '#line 7 "/etc/passwd"\n',
        "#define A(...) 1\n",
        "#define A(x) #x\n",
        "#define A(x, y) x##y\n",
        "#define A(x\n",
        "#if\n#endif\n",
        "#if 1/0\n#endif\n",
        "#if 1\n",
        "#endif\n",
        "#else\n",
        "#if 0\n#else\n#else\n#endif\n",
        "#error no\n",
        "struct s { __global float *p; };\n",
        "struct s { int a; struct s b; };\n",
        "typedef __global float *gp;\n",
        "typedef void (*f)(void);\n",
        "__global int kept;\n",
        "int kept;\n",
        "__constant int *p = 0;\n",
        "static __global int *give(__global int *p) { return p; }\n",
        "static int f(int n) { return f(n - 1); }\n",
        "int b(int n);\nint a(int n) { return b(n); }\nint b(int n) { return a(n); }\n",
        "".join(f"#define A{n + 1} A{n} + A{n}\n" for n in range(40)) + "__constant int a = A40;\n",
        "__constant int a = " + "(" * 100 + "1" + ")" * 100 + ";\n",
        "__constant int a = " + "-" * 100 + "1;\n",
        "#if " + "(" * 100 + "1" + ")" * 100 + "\n#endif\n",
        "#define A(x) x\n__constant int a = " + "A(" * 100 + "1" + ")" * 100 + ";\n",
    ],
)
def test_deep_and_recursive_sources_are_refused(source: str) -> None:
    with pytest.raises(OpFailed, match=r"(EINVAL|E2BIG): the source does not build: line \d+: "):
        read_source(source + kernel("x[0] = 1;"))


def test_the_variables_of_a_group_are_limited() -> None:
    source = read_source(kernel("float mine[1024]; mine[0] = x[0];"))
    source.check_call("f", ["x"], (8, 8))
    with pytest.raises(OpFailed, match="1024 work items of a group with 4120 bytes of variables"):
        source.check_call("f", ["x"], (1024,))


def test_a_proved_loop_counter_has_no_check() -> None:
    """A loop that C counts for us is proved; what could leave it is not."""
    inside = "float a[4]; for (int i = 0; i < 4; i++) { a[i] = x[0]; }"
    assert "a_[i_]" in read_source(kernel(inside)).text
    for outside in (
        inside.replace("i < 4", "i < 5"),
        inside.replace("i = 0", "i = -1"),
        inside.replace("x[0];", "x[0]; i += 2;"),
        inside.replace("x[0];", "x[0]; { int *p = &i; p[0] = 7; }"),
        inside.replace("i++", "i--"),
        inside.replace("{", "for (;;) if (a[0]) {").replace("x[0];", "x[0]; i--;"),
    ):
        assert "a_[i_]" not in read_source(kernel(outside)).text


@pytest.mark.parametrize(
    "loop",
    [
        "for (int i = 4294967295; i < 4; i++)",  # −1 as an int
        "for (int i = 0x80000000; i < 4; i++)",  # the least int
        "for (uint i = 0; i < LESS; i++)",  # −5 is compared as an unsigned number
    ],
)
def test_a_loop_counter_that_wraps_around_is_checked(loop: str) -> None:
    source = "enum { LESS = -5 };\n" + kernel(f"float a[4]; {loop} {{ a[i] = x[0]; }}")
    assert "a_[i_]" not in read_source(source).text


@pytest.mark.parametrize("element", ["uchar", "short", "float", "double", "long"])
def test_an_atomic_function_takes_no_element_of_another_size_or_sort(element: str) -> None:
    """Compilers convert the pointer, and four bytes at the last uchar end outside of the buffer."""
    source = kernel("atomic_add(&y[0], 1);", f"__global {element} *y")
    with pytest.raises(OpFailed, match=f"atomic_add takes a pointer to int or uint.*{element}"):
        read_source(source)


def test_atomic_xchg_also_takes_a_float() -> None:
    assert read_source(kernel("atomic_xchg(&x[0], 1.0f);")).kernels["f"].name == "f"


@pytest.mark.parametrize("change", ["i += 2;", "i++;", "{ i += 2; }"])
def test_a_loop_body_may_begin_with_a_change_of_its_counter(change: str) -> None:
    source = kernel(f"for (int i = 0; i < 4; i++) {change} x[0] = 1;")
    assert read_source(source).kernels["f"].name == "f"


PARTS = """x y n p a [ ] ( ) ( ) * & + - = ; , { } . -> ? : ++ 0 1 4 (ulong) int float __global
__local for if return g put sizeof struct"""
WORDS = st.sampled_from([*PARTS.split(), "(__global int *)"])


@given(st.lists(WORDS, max_size=25))
@settings(max_examples=500)
def test_no_text_gives_an_unchecked_access(words: list[str]) -> None:
    """Whatever is accepted accesses memory through checks alone."""
    try:
        text = read_source(kernel(" ".join(words) + ";", POINTERS)).text
    except OpFailed:
        return
    body = text.split("#line 1\n")[1].split("{", 1)[1]
    assert not re.search(r"\b[xy]\b", body), "a name of the user is left as it was"
    for base in re.findall(r"(\w+)\[(?!orchgpu_at\()(?!\d)(?!\w+_\d*\])", body):
        assert base == "", f"{base} is accessed unchecked: {body}"
    assert not re.search(r"\((u?long|int|size_t)\)\(*&?[xy]__b", body)

"""The words of the OpenCL C subset, and the errors for other words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from operations.kernels.lexer.tokens import Token, wrong

KERNEL_WORDS = frozenset({"__kernel", "kernel"})
#: Address spaces by each of their spellings.
SPACES: Mapping[str, str] = {
    f"{line}{name}": name
    for name in ("global", "local", "constant", "private")
    for line in ("", "__")
}
QUALIFIERS = frozenset({"const", "volatile", "restrict", "__restrict", "__restrict__"})

_INDEX = """get_global_id get_local_id get_group_id get_global_size get_local_size get_num_groups
    get_global_offset barrier mem_fence"""
_MATH = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc exp
    exp2 exp10 expm1 fabs fdim floor fma fmax fmin fmod hypot ilogb ldexp lgamma log log2 log10
    log1p logb mad nextafter pow powr remainder rint round rsqrt sin sinh sinpi sqrt tan tanh
    tgamma trunc isfinite isinf isnan native_exp native_log native_sqrt native_sin native_cos
    native_recip native_divide"""
_COMMON = "min max clamp abs mix sign step degrees radians popcount clz mul24 mad24 mul_hi rotate"
_CASTS = "as_int as_uint as_float as_long as_ulong as_double convert_int convert_uint convert_float"
_ATOMICS = """atomic_add atomic_sub atomic_inc atomic_dec atomic_min atomic_max atomic_and atomic_or
    atomic_xor atomic_xchg atomic_cmpxchg"""
#: The only functions with a pointer argument, their first.
ATOMIC = frozenset(_ATOMICS.split())
#: Functions of OpenCL C in the subset.
BUILTINS = frozenset(" ".join((_INDEX, _MATH, _COMMON, _CASTS, _ATOMICS)).split())
#: Named constants of OpenCL C; also in `prelude.cuh`.
_CONSTANTS = """CLK_LOCAL_MEM_FENCE CLK_GLOBAL_MEM_FENCE M_PI_F M_PI M_E_F FLT_MAX FLT_MIN
    FLT_EPSILON DBL_MAX DBL_EPSILON INT_MAX INT_MIN UINT_MAX LONG_MAX LONG_MIN ULONG_MAX INFINITY
    NAN HUGE_VALF MAXFLOAT true false"""
CONSTANTS = frozenset(_CONSTANTS.split())

_C = """auto break case char const continue default do double else enum float for if inline int
    long restrict return short signed sizeof static struct switch typedef unsigned void
    volatile while uchar ushort uint ulong size_t ptrdiff_t bool true false __attribute__
    reqd_work_group_size work_group_size_hint"""
C_WORDS = frozenset(_C.split())
_CUDA = """alignas alignof and and_eq asm bitand bitor catch class compl concept const_cast
    constexpr decltype delete dynamic_cast explicit export friend mutable namespace new noexcept
    not not_eq nullptr operator or or_eq protected public reinterpret_cast requires static_assert
    static_cast template this thread_local throw try typeid typename using virtual wchar_t xor
    xor_eq threadIdx blockIdx blockDim gridDim warpSize"""
#: Valid names in OpenCL C, but keywords or variables in CUDA C++.
_CUDA_WORDS = frozenset(_CUDA.split())
_REFUSED = (
    (
        r"(u?(char|short|int|long)|float|double|half)(2|3|4|8|16)|vload\w*|vstore\w*|convert_\w+\d+",
        "vector types are not in the subset; use scalars or arrays",
    ),
    (
        r"image\w+_t|sampler_t|event_t|pipe|read_image\w*|write_image\w*",
        "images, events and pipes are not in the subset",
    ),
    (r"union", "a union is not in the subset; use as_int, as_float and so on"),
    (r"half|printf|extern|goto|asm|__asm|__asm__", "it is not in the subset"),
)
_DIRECTIVES = frozenset(
    ("define", "undef", "if", "ifdef", "ifndef", "else", "elif", "endif", "pragma", "error")
)
#: Other attributes affect the linking of the worker, or run code before any kernel.
ATTRIBUTES = frozenset(
    ("reqd_work_group_size", "work_group_size_hint", "packed", "always_inline", "noinline")
)


def check_word(word: str, line: int) -> None:
    """Raises OpFailed(EINVAL) for a word outside of the subset."""
    for pattern, why in _REFUSED:
        if re.fullmatch(pattern, word):
            raise wrong(line, f"{word}: {why}")
    if word in _CUDA_WORDS:
        raise wrong(line, f"{word!r} is a word of CUDA C++; rename it")
    known = word in SPACES or word in KERNEL_WORDS or word in QUALIFIERS or word in C_WORDS
    if word.startswith(("_", "orchgpu_")) and not known:
        raise wrong(line, f"{word!r}: names cannot begin with _ or orchgpu_")


def check_directive(tokens: Sequence[Token], line: int) -> None:
    """Raises OpFailed(EINVAL) for a directive (its tokens after `#`) outside of the subset."""
    word, behind = ([token.text for token in tokens[:2]] + ["", ""])[:2]
    if word not in _DIRECTIVES:
        raise wrong(line, f"#{word} is not in the subset")
    if word == "pragma" and behind not in ("OPENCL", "unroll"):
        raise wrong(line, f"#pragma {behind} is not in the subset")
    for token in tokens[1:]:
        if token.text.startswith("__has_"):
            raise wrong(
                token.line, f"{token.text} is not in the subset: it reveals files of the host"
            )

"""A source of the subset as CUDA C++, line for line. Pure.

Memory of a group that is an argument (`__local T *p`) becomes an offset in the one dynamic block
that CUDA has; the first thing a body does is to make the pointer of it.
"""

from __future__ import annotations

from importlib import resources

from remote_gpu.worker.kernels.source import Signature, Source
from remote_gpu.worker.kernels.tokens import Sort
from remote_gpu.worker.kernels.words import KERNEL_WORDS, SPACES

#: Every memory shared by a group begins at a multiple of this.
SHARED_ALIGN_BYTES = 16
#: From an address space to the end of the name it belongs to.
_DECLARATION_TOKENS_MAX = 64
#: What arrays, not pointers, of an address space are in CUDA.
_ARRAYS = {"local": "__shared__", "constant": "__constant__"}


def prelude() -> str:
    """The functions and words of OpenCL C for a compiler of CUDA C++."""
    return resources.files(__package__).joinpath("prelude.cuh").read_text(encoding="utf-8")


def to_cuda(source: Source) -> str:
    """CUDA C++ behind the prelude; compilers count the lines of the original."""
    texts = [token.text for token in source.tokens]
    in_parameters: set[int] = set()
    for signature in source.kernels.values():
        texts[signature.start] = 'extern "C" __global__'
        _rewrite_signature(source, signature, texts)
        in_parameters.update(range(signature.opening, signature.body))
    for at, token in enumerate(source.tokens):
        if token.sort is not Sort.WORD or at in in_parameters:
            continue
        if (space := SPACES.get(token.text)) is not None:
            texts[at] = "" if _is_pointer(source, at) else _ARRAYS.get(space, "")
        elif token.text in ("restrict", "__restrict"):
            texts[at] = "__restrict__"
        assert token.text not in KERNEL_WORDS or texts[at] != token.text, "a kernel was not found"
    return prelude() + '\n#line 1 "kernel"\n' + "".join(texts)


def shared_offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Where memories of these bytes lie in the dynamic block, and its bytes."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // SHARED_ALIGN_BYTES) * SHARED_ALIGN_BYTES
    return offsets, end


def _rewrite_signature(source: Source, signature: Signature, texts: list[str]) -> None:
    """Attributes go; address spaces go; memory of a group is an offset."""
    for at in range(signature.start + 1, signature.opening):
        if texts[at] not in ("void", signature.name) and not texts[at].isspace():
            texts[at] = ""
    pointers: list[str] = []
    numbered = iter(signature.parameters)
    part: list[int] = []
    for at in range(signature.opening + 1, signature.body):
        token = source.tokens[at]
        if token.sort is Sort.WORD or token.text == "*":
            part.append(at)
        elif token.text in (",", ")") and part:
            parameter = next(numbered, None)
            if parameter is not None and parameter.takes == "shared":
                for place in part:
                    texts[place] = ""
                offset = f"orchgpu_at_{parameter.name}"
                texts[part[0]] = f"uint {offset}"
                kind = f"{parameter.pointee} *"
                made = f"{parameter.name} = ({kind})(orchgpu_shared + {offset});"
                pointers.append(f" {kind}{made}")
            part = []
    for at in range(signature.opening, signature.body):
        if texts[at] in SPACES:
            texts[at] = ""
        elif texts[at] in ("restrict", "__restrict"):
            texts[at] = "__restrict__"
    texts[signature.body] = "{" + "".join(pointers)


def _is_pointer(source: Source, at: int) -> bool:
    """What is declared behind this address space: up to its name's end, is there a `*`?"""
    for token in source.tokens[at + 1 : at + 1 + _DECLARATION_TOKENS_MAX]:
        if token.text in ("*", ")", "("):
            return True
        if token.text in (";", "[", "=", ",", "{"):
            return False
    return False

"""The conversion of a kernel source to CUDA C++, line by line.

The source is a translation (`translate.py`), or one of this project. A `__local T *p` argument
becomes an offset into CUDA's one dynamic block of shared memory; the body begins with making the
pointer from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources

from operations.kernels.lexer.tokens import Sort, Token, tokens_of
from operations.kernels.lexer.words import KERNEL_WORDS, SPACES

#: Every memory shared by a group begins at a multiple of this.
SHARED_ALIGN_BYTES = 16
#: From an address space to the end of the declared name.
_DECLARATION_TOKENS_MAX = 64
#: The CUDA qualifier for arrays (not pointers) of an address space.
_ARRAYS = {"local": "__shared__", "constant": "__constant__"}


def prelude() -> str:
    """The functions and types of OpenCL C in CUDA C++."""
    return resources.files(__package__).joinpath("prelude.cuh").read_text(encoding="utf-8")


def to_cuda(text: str) -> str:
    """CUDA C++ after the prelude, with the line numbers of the original.

    `text`: `Source.text`, or a source of this project in the subset.
    """
    tokens = tokens_of(text)
    texts = [token.text for token in tokens]
    in_parameters: set[int] = set()
    for at, token in enumerate(tokens):
        if token.text in KERNEL_WORDS:
            texts[at] = 'extern "C" __global__'
            in_parameters.update(_rewrite_signature(tokens, at, texts))
    for at, token in enumerate(tokens):
        if token.sort is not Sort.WORD or at in in_parameters:
            continue
        if (space := SPACES.get(token.text)) is not None:
            texts[at] = "" if _is_pointer(tokens, at) else _ARRAYS.get(space, "")
        elif token.text in ("restrict", "__restrict"):
            texts[at] = "__restrict__"
    return prelude() + '\n#line 1 "kernel"\n' + "".join(texts)


def shared_offsets(sizes: list[int]) -> tuple[list[int], int]:
    """The offsets of memories of these sizes in the dynamic block, and its size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // SHARED_ALIGN_BYTES) * SHARED_ALIGN_BYTES
    return offsets, end


def _rewrite_signature(tokens: Sequence[Token], start: int, texts: list[str]) -> range:
    """Remove attributes and address spaces, pass __local memory by offset; returns the range."""
    opening = start + 1
    while tokens[opening].text != "(":
        if tokens[opening].text == "__attribute__":
            end = _closing(tokens, opening)
            texts[opening : end + 1] = [""] * (end + 1 - opening)
            opening = end
        opening += 1
    closing = _closing(tokens, opening)
    pointers: list[str] = []
    for part in _parts(tokens, opening, closing):
        words = [tokens[at].text for at in part]
        if "*" in words and "local" in (SPACES.get(word) for word in words):
            for place in part:
                texts[place] = ""
            name = words[-1]
            texts[part[0]] = f"uint orchgpu_at_{name}"
            plain = [word for word in words[:-1] if word not in SPACES]
            kind = f"{' '.join(plain[: plain.index('*')])} *"
            made = f"{name} = ({kind})(orchgpu_shared + orchgpu_at_{name});"
            pointers.append(f" {kind}{made}")
    for at in range(opening, closing):
        if texts[at] in SPACES:
            texts[at] = ""
        elif texts[at] in ("restrict", "__restrict"):
            texts[at] = "__restrict__"
    body = next(at for at in range(closing, len(tokens)) if tokens[at].text == "{")
    texts[body] = "{" + "".join(pointers)
    return range(start, body + 1)


def _parts(tokens: Sequence[Token], opening: int, closing: int) -> Iterator[list[int]]:
    part: list[int] = []
    for at in range(opening + 1, closing + 1):
        if tokens[at].sort is Sort.WORD or tokens[at].text == "*":
            part.append(at)
        elif tokens[at].text in (",", ")") and part:
            yield part
            part = []


def _closing(tokens: Sequence[Token], at: int) -> int:
    depth, opened = 0, False
    while not opened or depth:
        text = tokens[at].text
        depth += (text == "(") - (text == ")")
        opened = opened or depth > 0
        at += 1
    return at - 1


def _is_pointer(tokens: Sequence[Token], at: int) -> bool:
    for token in tokens[at + 1 : at + 1 + _DECLARATION_TOKENS_MAX]:
        if token.text in ("*", ")", "("):
            return True
        if token.text in (";", "[", "=", ",", "{"):
            return False
    return False

"""A kernel source of graphs, checked against the OpenCL C subset. Pure.

In the subset: scalars, pointers, arrays, structures, own functions, the functions of
`words.BUILTINS`, macros, conditions. Not in it: vector types, images, `half`, `printf`, includes,
pointers to pointers, to functions and in structures, casts between numbers and pointers, and
undefined functions, because a CPU driver would look up their names in the whole process. OpenCL and
CUDA compile the translation, in which every access is checked (`translate.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from operations.kernels.lexer.preprocess import Preprocessor
from operations.kernels.lexer.tokens import tokens_of
from operations.kernels.translator.translate import KernelSignature, Translator
from remote_gpu.wire.errors import OpFailed, invalid
from remote_gpu.wire.graphs import Argument, Scalar, Shared

#: CPU drivers keep the variables of a whole group on the stack of one thread (8 MiB).
GROUP_BYTES_MAX = 4 << 20
#: A report has a word for each work item in the first dimension of a group; no device has larger
#: groups.
GROUP_ITEMS_MAX = 8192


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A checked and translated source."""

    text: str  #: for compilers
    kernels: Mapping[str, KernelSignature]
    _lines: tuple[tuple[int, ...], ...]  #: of each bit of a report

    def check_call(
        self, kernel: str, arguments: Sequence[Argument], group: Sequence[int] = (1,)
    ) -> KernelSignature:
        """The kernel, if these arguments and this group size fit it.

        Raises OpFailed(EINVAL) naming what does not fit.
        """
        signature = self.kernels.get(kernel)
        if signature is None:
            known = ", ".join(self.kernels) or "none"
            raise invalid(f"the source has no kernel {kernel!r}; it has {known}")
        wanted = signature.parameters
        if len(wanted) != len(arguments):
            raise invalid(f"kernel {kernel!r} takes {len(wanted)} arguments, not {len(arguments)}")
        for index, (parameter, argument) in enumerate(zip(wanted, arguments, strict=True)):
            given = _sort_of(argument)
            if given != parameter.takes:
                raise invalid(
                    f"argument {index} of kernel {kernel!r} is {given}; {parameter.name!r}"
                    f" takes {parameter.takes}"
                )
        self._check_group(signature, prod(group))
        return signature

    def _check_group(self, signature: KernelSignature, items: int) -> None:
        if items > GROUP_ITEMS_MAX:
            message = f"a group has at most {GROUP_ITEMS_MAX} work items, not {items}"
            raise invalid(f"kernel {signature.name!r} cannot be launched: {message}")
        if items * signature.private_bytes > GROUP_BYTES_MAX:
            message = (
                f"{items} work items of a group with {signature.private_bytes} bytes of variables"
                f" each; a group has {GROUP_BYTES_MAX}: use smaller groups or a temporary buffer"
            )
            raise invalid(f"kernel {signature.name!r}: {message}")

    def fault(self, bits: int) -> str:
        """The message for the bits of a report: kernel and line."""
        found = [lines for at, lines in enumerate(self._lines) if bits >> at & 1 and lines]
        lines = sorted(line for group in found for line in group) or [0]
        before = [signature for signature in self.kernels.values() if signature.line <= lines[-1]]
        where = f"kernel {before[-1].name!r}, " if before else ""
        shown = " or ".join(str(line) for line in lines[:4]) + " …" * (len(lines) > 4)
        return f"{where}line {shown}: access outside of its buffer or array"


def read_source(text: str) -> KernelSource:
    """Check and translate a source. Raises OpFailed(EINVAL) naming line and rule."""
    try:
        tokens = tokens_of(text.replace("\r\n", "\n"))
        return KernelSource(*Translator(Preprocessor().expand(tokens)).translate())
    except OpFailed as error:
        raise OpFailed(error.code, f"the source does not build: {error.message}") from None


def _sort_of(argument: Argument) -> str:
    if isinstance(argument, Scalar):
        return argument.kind
    return "shared" if isinstance(argument, Shared) else "buffer"

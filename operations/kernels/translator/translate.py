"""The translation of a kernel source, with every memory access checked. Pure.

Every name of the user gets the suffix `_`, so that none is a macro or function of a compiler. A
kernel has additional parameters, which `bounds.py` passes: memory for a report, a zero unknown to
the compiler, and the size of each memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from operations.kernels.lexer.tokens import Sort, Token, wrong
from operations.kernels.lexer.words import BUILTINS, C_WORDS, KERNEL_WORDS
from operations.kernels.translator.declarations import Declarations
from operations.kernels.translator.frame import Frame, Function, Lines, PointerVariable, Variable
from operations.kernels.translator.statements import Statements
from operations.kernels.translator.types import (
    SCALAR_BYTES,
    VOID,
    Memory,
    Scalar,
    Struct,
    Target,
)
from operations.kernels.translator.values import FAULT_BITS

#: Types of a kernel's arguments other than memory.
KERNEL_SCALARS = frozenset({"int", "uint", "long", "ulong", "float", "double"})
_END = "orchgpu_end(orchgpu_fault, orchgpu_bits);"
#: CPU compilers vectorise over work items only if all of them write the report; of two threads that
#: write the same word at once one report may be lost. On a card only work items with faults write.
_REPORT = """
#if defined(ORCHGPU_CPU)
#define orchgpu_end(fault, bits) (fault)[get_local_id(0)] |= (bits)
#else
#define orchgpu_end(fault, bits) if (bits) (fault)[get_local_id(0)] = (bits)
#endif
#line 1
"""
_HIDDEN = "__private uint *orchgpu_bad, const ulong orchgpu_zero"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    takes: str  #: "buffer", "shared" or the name of a scalar
    bytes_min: int = 0  #: of memory: one element, the target of failed accesses


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The signature of one kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int
    private_bytes: int  #: at most, of one work item's variables

    @property
    def entry(self) -> str:
        """Its name in the translation."""
        return f"{self.name}_"


class Translator:
    """The translation of one source."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._frame = Frame(tokens)
        self._frame.scopes[0].update({name: Scalar(name) for name in SCALAR_BYTES})
        self._lines = Lines()
        self._declarations = Declarations(self._frame, self._lines)
        self._statements = Statements(self._frame, self._lines, self._declarations)
        self._kernels: dict[str, KernelSignature] = {}

    def translate(self) -> tuple[str, dict[str, KernelSignature], tuple[tuple[int, ...], ...]]:
        """The text, its kernels, and the lines of each bit of a report. Raises OpFailed(EINVAL)
        naming line and rule."""
        frame = self._frame
        while frame.at < len(frame.tokens):
            self._outside()
        lines = [list[int]() for _ in range(FAULT_BITS)]
        for line, bit in frame.checks.lines.items():
            lines[bit].append(line)
        text = f"{frame.checks.helpers()}{_REPORT}{self._lines.text()}"
        return text, self._kernels, tuple(map(tuple, lines))

    def _outside(self) -> None:
        frame, write = self._frame, self._lines.write
        if frame.tokens[frame.at].sort is Sort.DIRECTIVE:
            self._lines.pragma(frame.take())
        elif frame.skip(";"):
            pass
        elif frame.text() == "typedef":
            self._declarations.typedef()
        elif frame.text() in KERNEL_WORDS:
            self._kernel()
        else:
            line = frame.line
            while frame.text() == "__attribute__":
                self._declarations.attribute()
            declared = self._declarations.specifiers()
            if frame.skip(";"):
                return
            if frame.text() == "*":
                raise wrong(
                    line,
                    "functions cannot return pointers, and global variables cannot be pointers",
                )
            name = self._own_name()
            if frame.text() == "(":
                self._function(declared.kind, name, line)
            else:
                if declared.space != "constant":
                    message = f"{name!r} is outside of functions: declare it __constant"
                    raise wrong(line, message)
                write(line, self._declarations.variable(declared, name, outside=True))

    def _own_name(self) -> str:
        line, name = self._frame.line, self._frame.name()
        if name in BUILTINS:
            raise wrong(line, f"{name!r} is a function of OpenCL C; rename yours")
        if name in self._kernels:
            raise wrong(line, f"kernel {name!r} is defined twice")
        if name in C_WORDS or name in KERNEL_WORDS or name in self._frame.scopes[0]:
            known = isinstance(self._frame.scopes[0].get(name), Function)
            why = "is defined twice" if known else "cannot be a name here"
            raise wrong(line, f"{name!r} {why}")
        return name

    def _parameters(self) -> list[tuple[str, Scalar | Struct | Target, bool]]:
        frame = self._frame
        frame.expect("(")
        if frame.text() == "void" and frame.text(1) == ")":
            frame.take()
        found: list[tuple[str, Scalar | Struct | Target, bool]] = []
        if frame.skip(")"):
            return found
        while True:
            found.append(self._parameter())
            if not frame.skip(","):
                frame.expect(")")
                return found

    def _parameter(self) -> tuple[str, Scalar | Struct | Target, bool]:
        frame, line = self._frame, self._frame.line
        declared = self._declarations.specifiers()
        kind: Scalar | Struct | Target = declared.kind
        if frame.text() == "*":
            kind = self._declarations.target(declared)
        if frame.text() in (",", ")"):
            raise wrong(line, "a parameter must end with its name")
        name = frame.name()
        if frame.text() == "[":
            if isinstance(kind, Target):
                raise wrong(line, f"{name!r}: a pointer to pointers is not in the subset")
            while frame.text() not in ("]", ""):
                frame.take()
            frame.expect("]")
            if frame.text() == "[":
                raise wrong(line, f"{name!r}: pass one row of it")
            kind = self._declarations.target_of(declared, kind, line)
        if kind == VOID:
            raise wrong(line, f"{name!r} cannot be void")
        return name, kind, declared.space != ""

    def _function(self, gives: Scalar | Struct, name: str, line: int) -> None:
        frame = self._frame
        taken = self._parameters()
        if frame.skip(";"):
            return  # functions must be defined before their calls
        scope, texts = self._scope_of(taken, line)
        takes = ", ".join([*texts, _HIDDEN])
        function = Function(frame.own(name), tuple(kind for _, kind, _ in taken), gives)
        self._lines.write(line, f"static inline {gives.text} {function.text}({takes})")
        self._body(scope, [], "return", gives)
        function.private_bytes = frame.private_bytes
        frame.scopes[0][name] = function

    def _scope_of(
        self, taken: Sequence[tuple[str, Scalar | Struct | Target, bool]], line: int
    ) -> tuple[dict[str, Variable | PointerVariable], list[str]]:
        scope: dict[str, Variable | PointerVariable] = {}
        texts: list[str] = []
        for name, kind, _ in taken:
            if name in scope:
                raise wrong(line, f"two parameters have the name {name!r}")
            if isinstance(kind, Target):
                own = self._frame.own(name, "__")
                memory = replace(kind.memory, level=self._frame.level)
                scope[name] = PointerVariable(own, replace(kind, memory=memory))
                texts += [f"{kind.text}{own}b", f"ulong {own}n", f"ulong {own}o"]
            else:
                own = self._frame.own(name)
                scope[name] = Variable(own, kind, Memory(level=self._frame.level))
                texts.append(f"{kind.text} {own}")
        return scope, texts

    def _body(
        self,
        scope: dict[str, Variable | PointerVariable],
        first: list[str],
        leave: str,
        gives: Scalar | Struct = VOID,
    ) -> None:
        frame = self._frame
        frame.private_bytes = 0
        for parameter in scope.values():
            size = 24 if isinstance(parameter, PointerVariable) else parameter.type.size
            frame.reserve(max(8, size), frame.line)
        frame.scopes.append(dict(scope))
        line = frame.line
        frame.expect("{")
        self._statements.leave, self._statements.gives = leave, gives
        self._lines.write(line, " ".join(["{", *first]))
        self._statements.block()
        end = _END if first else _returned(gives)
        self._lines.write(frame.tokens[frame.at - 1].line, f"{end} }}")
        frame.scopes.pop()

    def _kernel(self) -> None:
        frame = self._frame
        line = frame.line
        frame.take()
        attributes: list[str] = []
        while frame.text() == "__attribute__":
            attributes.append(self._declarations.attribute())
        if not frame.skip("void"):
            raise wrong(line, "a kernel is written as: __kernel void NAME(…) { … }")
        while frame.text() == "__attribute__":
            attributes.append(self._declarations.attribute())
        name = self._own_name()
        taken = self._parameters()
        if frame.text() != "{":
            raise wrong(line, "a kernel is written as: __kernel void NAME(…) { … }")
        parameters = tuple(self._checked(name, *parameter, line) for parameter in taken)
        scope, _ = self._scope_of(taken, line)
        texts, first, sized = self._memories(scope)
        report = ["__global uint *orchgpu_fault", "ulong orchgpu_zero"]
        head = " ".join(["__kernel", *attributes, "void", f"{name}_"])
        self._lines.write(line, f"{head}({', '.join([*texts, *report, *sized])})")
        self._declarations.local_bytes = 0
        self._body(scope, first, f"{_END} return")
        self._kernels[name] = KernelSignature(name, parameters, line, frame.private_bytes)

    def _memories(
        self, scope: Mapping[str, Variable | PointerVariable]
    ) -> tuple[list[str], list[str], list[str]]:
        """The translated parameters of a kernel, the first declarations of its body, and the
        parameters for the sizes of memories."""
        texts, sized = list[str](), list[str]()
        first = [
            "__private uint orchgpu_bits = 0;",
            "__private uint *const orchgpu_bad = &orchgpu_bits;",
        ]
        for one in scope.values():
            if isinstance(one, Variable):
                texts.append(f"{one.type.text} {one.text}")
                continue
            own, target = one.text, one.target
            texts.append(f"{target.text}{own}b")
            sized.append(f"ulong {own}s")
            first.append(f"ulong {own}n = {own}s / sizeof({target.element.text}), {own}o = 0;")
        return texts, first, sized

    def _checked(
        self, kernel: str, name: str, kind: Scalar | Struct | Target, spaced: bool, line: int
    ) -> Parameter:
        where = f"kernel {kernel!r}: parameter {name!r}"
        if isinstance(kind, Target):
            if not spaced or kind.memory.space == "private":
                raise wrong(line, f"{where}: a pointer is one of __global, __constant or __local")
            takes = "shared" if kind.memory.space == "local" else "buffer"
            return Parameter(name, takes, kind.element.size)
        if kind.text not in KERNEL_SCALARS:
            scalars = ", ".join(sorted(KERNEL_SCALARS))
            raise wrong(line, f"{where} is neither a pointer nor one of {scalars}")
        return Parameter(name, kind.text)


def _returned(kind: Scalar | Struct) -> str:
    """The end of a function without `return`: in C its value would be that of a register."""
    if kind == VOID:
        return ""
    if isinstance(kind, Struct):
        return f"{{ {kind.text} orchgpu_none = {{0}}; return orchgpu_none; }}"
    return "return 0;"

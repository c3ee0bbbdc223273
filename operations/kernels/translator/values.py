"""The values of expressions, and their translated texts. Pure.

A pointer has three texts: the base of its memory, the count of elements, and an offset in elements.
An access is `base[offset]` after a comparison of offset and count. Other pointers are not formed,
so pointer arithmetic is arithmetic on numbers and stays inside the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from operations.kernels.lexer.tokens import wrong
from operations.kernels.translator.types import (
    NUMBER,
    PRIVATE,
    Array,
    Memory,
    Scalar,
    Struct,
    Target,
)

#: Bits of a report; further lines with checked accesses share the last one.
FAULT_BITS = 32


@dataclass(frozen=True, slots=True)
class Plain:
    """A number or a structure: a variable, a member, a result."""

    text: str
    type: Scalar | Struct = NUMBER
    pure: bool = True  #: without side effects
    stored: bool = False  #: an lvalue
    memory: Memory = PRIVATE
    below: int | None = None  #: proved to be in 0…below - 1


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a memory, before its check."""

    base: str
    count: str
    index: str
    target: Target
    pure: bool


@dataclass(frozen=True, slots=True)
class Pointer:
    """A position in a memory."""

    base: str
    count: str
    offset: str
    target: Target
    pure: bool
    name: str = ""  #: the text of the pointer variable, if it is one


@dataclass(frozen=True, slots=True)
class Row:
    """An array, or an array within one."""

    text: str
    type: Array
    memory: Memory
    pure: bool


Value: TypeAlias = "Plain | Element | Pointer | Row"


@dataclass
class Checks:
    """The accesses of one source that are checked at run time."""

    lines: dict[int, int] = field(default_factory=dict)  #: line → bit of the report
    _targets: dict[str, int] = field(default_factory=dict)
    _used: dict[str, None] = field(default_factory=dict)

    def index(self, index: str, count: str, line: int) -> str:
        """The index if it is below the count; else 0, with a report."""
        return f"orchgpu_at({index}, {count}, {self._report(line)})"

    def get(self, element: Element, line: int) -> str:
        """A read of the element; 0 outside."""
        name = self._helper("get", element.target)
        return f"{name}({element.base}, {element.count}, {element.index}, {self._report(line)})"

    def set(self, element: Element, value: str, line: int) -> str:
        """A write of the element; none outside."""
        name = self._helper("set", element.target)
        place = f"{element.base}, {element.count}, {element.index}"
        return f"{name}({place}, {value}, {self._report(line)})"

    def place(self, element: Element, line: int) -> str:
        """The element as an lvalue; the first one outside."""
        return f"{element.base}[{self.index(element.index, element.count, line)}]"

    def helpers(self) -> str:
        """The helper functions in use, on one line."""
        return " ".join((_AT, *self._used))

    def _report(self, line: int) -> str:
        bit = self.lines.setdefault(line, min(len(self.lines), FAULT_BITS - 1))
        return f"orchgpu_bad, {1 << bit:#x}u"

    def _helper(self, action: str, target: Target) -> str:
        number = self._targets.setdefault(target.text, len(self._targets))
        name = f"orchgpu_{action}_{number}"
        kind = target.element.text
        takes = f"{target.text}b, ulong n, ulong i"
        report = "__private uint *bad, uint bit"
        mark = "*bad |= i < n ? 0u : bit;"
        if action == "get":
            head = f"{kind} {name}({takes}, {report})"
            body = f"{mark} return i < n ? b[i] : ({kind})0;"
        else:
            head = f"{kind} {name}({takes}, {kind} v, {report})"
            body = f"{mark} if (i < n) b[i] = v; return v;"
        self._used[f"static inline {head} {{ {body} }}"] = None
        return name


_AT = (
    "static inline ulong orchgpu_at(ulong i, ulong n, __private uint *bad, uint bit)"
    " { *bad |= i < n ? 0u : bit; return i < n ? i : 0; }"
)


def read(value: Value, checks: Checks, line: int) -> Plain:
    """The value as a number or a structure. Raises OpFailed(EINVAL) for a pointer or an array."""
    match value:
        case Plain():
            return value
        case Element(target=Target(element=Scalar() as scalar)):
            return Plain(checks.get(value, line), scalar, value.pure)
        case Element():
            return stored(value, checks, line)
        case Row():
            raise wrong(line, "an array is not a value; index it")
    raise wrong(line, "a pointer is not a number; access what it points to: p[i]")


def stored(value: Value, checks: Checks, line: int) -> Plain:
    """The value as an lvalue. Raises OpFailed(EINVAL)."""
    if isinstance(value, Element):
        target = value.target
        text = checks.place(value, line)
        return Plain(text, target.element, value.pure, stored=True, memory=target.memory)
    if not isinstance(value, Plain) or not value.stored:
        raise wrong(line, "this is not an lvalue: it cannot be assigned and has no address")
    return value


def pointer(value: Value, line: int) -> Pointer:
    """The value as a pointer: an array is one to its first element. Raises OpFailed(EINVAL)."""
    if isinstance(value, Row):
        element = value.type.element
        if isinstance(element, Array):
            raise wrong(line, "a pointer to an array is not in the subset; pass one row of it")
        target = Target(element, value.memory)
        return Pointer(value.text, length_of(value), "0ul", target, value.pure)
    if not isinstance(value, Pointer):
        raise wrong(line, "a number is not a pointer; pass a buffer and an index")
    return value


def length_of(row: Row) -> str:
    """The length of an array, opaque to the compiler.

    Knowing it, a compiler could drop a check by C's rule that signed arithmetic does not overflow.
    """
    return f"({row.type.length}ul + orchgpu_zero)"


def at(value: Value, index: Plain, checks: Checks, line: int) -> Value:
    """`value[index]`. Raises OpFailed(EINVAL) for a value without elements."""
    pure = index.pure and not isinstance(value, Plain) and value.pure
    if isinstance(value, Row):
        return _at_row(value, index, pure, checks, line)
    place = pointer(value, line)
    offset = f"{place.offset} + (ulong)({index.text})"
    return Element(place.base, place.count, offset, place.target, pure)


def _at_row(row: Row, index: Plain, pure: bool, checks: Checks, line: int) -> Value:
    proved = index.below is not None and index.below <= row.type.length
    element = row.type.element
    if not proved and not isinstance(element, Array):
        target = Target(element, row.memory)
        return Element(row.text, length_of(row), f"(ulong)({index.text})", target, pure)
    place = index.text
    if not proved:
        place = checks.index(f"(ulong)({index.text})", length_of(row), line)
    text = f"{row.text}[{place}]"
    if isinstance(element, Array):
        return Row(text, element, row.memory, pure)
    return Plain(text, element, pure, stored=True, memory=row.memory)


def member(value: Value, name: str, checks: Checks, line: int) -> Value:
    """`value.name`. Raises OpFailed(EINVAL) for a value without that member."""
    whole = read(value, checks, line)
    found = dict(whole.type.members).get(name) if isinstance(whole.type, Struct) else None
    if found is None:
        raise wrong(line, f"this has no member {name!r}")
    text = f"{whole.text}.{name}_"
    if isinstance(found, Array):
        if not whole.stored:
            raise wrong(line, "an array in a result: assign the result to a variable first")
        return Row(text, found, whole.memory, whole.pure)
    return Plain(text, found, whole.pure, stored=whole.stored, memory=whole.memory)

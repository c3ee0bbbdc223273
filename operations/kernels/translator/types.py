"""Types of the kernel language, with their sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

#: Every scalar with its bytes, by its shortest name in OpenCL C.
SCALAR_BYTES: Mapping[str, int] = {
    "bool": 1,
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "int": 4,
    "uint": 4,
    "long": 8,
    "ulong": 8,
    "size_t": 8,
    "ptrdiff_t": 8,
    "float": 4,
    "double": 8,
}
#: Names of several words, sorted, and the shortest name.
SCALAR_NAMES: Mapping[str, str] = {
    **{name: name for name in SCALAR_BYTES},
    "char signed": "char",
    "char unsigned": "uchar",
    "short signed": "short",
    "int short": "short",
    "short unsigned": "ushort",
    "int short unsigned": "ushort",
    "signed": "int",
    "int signed": "int",
    "unsigned": "uint",
    "int unsigned": "uint",
    "int long": "long",
    "long signed": "long",
    "long unsigned": "ulong",
    "int long unsigned": "ulong",
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """The type of a number; name "" for the result of arithmetic, decided by the compiler."""

    name: str

    @property
    def text(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        return SCALAR_BYTES.get(self.name, 8)

    @property
    def align(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure type, equal only to itself."""

    text: str  #: its translated name, unique in a source
    members: tuple[tuple[str, Type], ...]

    @property
    def size(self) -> int:
        """The size in the layout of compilers; a packed structure is not larger."""
        end = 0
        for _, member in self.members:
            end = _up(end, member.align) + member.size
        return _up(end, self.align)

    @property
    def align(self) -> int:
        return max(member.align for _, member in self.members)


@dataclass(frozen=True, slots=True)
class Array:
    """The type of an array."""

    element: Type
    length: int

    @property
    def text(self) -> str:
        return self.element.text

    @property
    def count(self) -> int:
        """The number of all elements of all rows."""
        inner = self.element.count if isinstance(self.element, Array) else 1
        return self.length * inner

    @property
    def size(self) -> int:
        return self.element.size * self.length

    @property
    def align(self) -> int:
        return self.element.align


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a variable or of a pointer's target."""

    space: str = "private"  #: global, local, constant or private
    constant: bool = False  #: read-only
    volatile: bool = False
    level: int = 0  #: of the block with which private memory ends


@dataclass(frozen=True, slots=True)
class Target:
    """The target type of a pointer."""

    element: Scalar | Struct
    memory: Memory

    @property
    def text(self) -> str:
        """The declaration of a pointer to it, up to the name."""
        const = "const " if self.memory.constant else ""
        volatile = "volatile " if self.memory.volatile else ""
        return f"__{self.memory.space} {const}{volatile}{self.element.text} *"


Type: TypeAlias = "Scalar | Struct | Array"


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


PRIVATE = Memory()
VOID = Scalar("void")
NUMBER = Scalar("")

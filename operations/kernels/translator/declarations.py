"""Declarations of the kernel language: types, structures and variables. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from operations.kernels.lexer.tokens import Sort, wrong
from operations.kernels.lexer.words import ATTRIBUTES, BUILTINS, C_WORDS, QUALIFIERS, SPACES
from operations.kernels.translator.expressions import Expressions
from operations.kernels.translator.frame import Frame, Lines, PointerVariable, Variable
from operations.kernels.translator.types import (
    SCALAR_BYTES,
    SCALAR_NAMES,
    VOID,
    Array,
    Memory,
    Scalar,
    Struct,
    Target,
    Type,
)
from operations.kernels.translator.values import pointer

_STORAGE = frozenset({"static", "inline"})
_WORDS = frozenset({"signed", "unsigned", "void", *SCALAR_BYTES})
LOCAL_BYTES_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class Declared:
    """The specifiers of a declaration."""

    kind: Scalar | Struct
    space: str = ""
    constant: bool = False
    volatile: bool = False


class Declarations:
    """The translation of declarations at the position of a frame."""

    def __init__(self, frame: Frame, lines: Lines) -> None:
        self._frame = frame
        self._lines = lines
        self.expressions = Expressions(frame, self._type_name)
        self.local_bytes = 0  #: of the current kernel
        self._structs: dict[str, Struct] = {}
        self._made = 0

    def begins(self, word: str) -> bool:
        """True when a declaration begins with this word."""
        return word in _STORAGE or word in _WORDS or self.expressions.begins_type(word)

    def specifiers(self) -> Declared:
        """The specifiers at this position. Raises OpFailed(EINVAL) without a type."""
        frame, line = self._frame, self._frame.line
        words: list[str] = []
        kind: Scalar | Struct | None = None
        space, seen = "", set[str]()
        while True:
            word = frame.text()
            if word in _STORAGE or word in QUALIFIERS:
                seen.add(frame.take().text)
            elif word in SPACES:
                if space:
                    raise wrong(line, "a declaration has more than one address space")
                space = SPACES[frame.take().text]
            elif word == "__attribute__":
                self.attribute()
            elif word in ("struct", "union", "enum") and kind is None and not words:
                kind = self._enum() if word == "enum" else self._struct()
            elif word in _WORDS and kind is None:
                words.append(frame.take().text)
            elif (
                not words
                and kind is None
                and isinstance(found := frame.find(word), (Scalar, Struct))
            ):
                kind = found
                frame.take()
            else:
                break
        if kind is None:
            kind = self._named(words, line)
        return Declared(kind, space, "const" in seen, "volatile" in seen)

    def _named(self, words: list[str], line: int) -> Scalar:
        if words == ["void"]:
            return VOID
        name = SCALAR_NAMES.get(" ".join(sorted(words)))
        if name is None:
            found = self._frame.text()[:40]
            shown = " ".join(words) or found
            raise wrong(line, f"{shown!r} is not declared here, and not a type of the subset")
        return Scalar(name)

    def target(self, declared: Declared) -> Target:
        """The target of the pointer type that `*` begins."""
        frame, line = self._frame, self._frame.line
        frame.expect("*")
        while frame.text() in QUALIFIERS or SPACES.get(frame.text()) == "private":
            frame.take()
        if frame.text() == "*":
            raise wrong(
                line,
                "a pointer to pointers is not in the subset: a pointer is one of"
                " __global, __constant or __local",
            )
        return self.target_of(declared, declared.kind, line)

    def target_of(self, declared: Declared, kind: Scalar | Struct, line: int) -> Target:
        if kind == VOID or kind.text == "bool":
            raise wrong(line, f"a pointer to {kind.text} is not in the subset; use uchar")
        constant = declared.constant or declared.space == "constant"
        memory = Memory(declared.space or "private", constant, declared.volatile)
        return Target(kind, memory)

    def _type_name(self) -> Target | Scalar | Struct:
        declared = self.specifiers()
        if self._frame.text() == "*":
            return self.target(declared)
        if self._frame.text() in ("(", "["):
            raise wrong(self._frame.line, "pointers to functions and arrays are not in the subset")
        return declared.kind

    def attribute(self) -> str:
        """The text of an attribute. Raises OpFailed(EINVAL) for one that is not in the subset."""
        frame = self._frame
        parts, depth = [frame.take().text], 0
        while True:
            token = frame.take()
            if token.sort is Sort.WORD and token.text not in ATTRIBUTES:
                raise wrong(token.line, f"the attribute {token.text!r} is not in the subset")
            parts.append(token.text)
            depth += (token.text == "(") - (token.text == ")")
            if not depth:
                return " ".join(parts)

    def _enum(self) -> Scalar:
        frame = self._frame
        frame.take()
        if frame.text() != "{":
            frame.name()
        if frame.skip("{"):
            value = 0
            while not frame.skip("}"):
                name = frame.name()
                if frame.skip("="):
                    value = self.expressions.constant(",", "}")
                frame.scopes[-1][name] = value
                value += 1
                if frame.text() != "}":
                    frame.expect(",")
        return Scalar("int")

    def _struct(self) -> Struct:
        frame = self._frame
        line = frame.line
        frame.name()
        attributes = ""
        while frame.text() == "__attribute__":
            attributes += self.attribute() + " "
        tag = frame.name() if frame.text() != "{" else ""
        if not frame.skip("{"):
            if tag not in self._structs:
                raise wrong(line, f"struct {tag!r} is not defined above")
            return self._structs[tag]
        if len(frame.scopes) > 1:
            raise wrong(line, "define a structure outside of functions")
        members: list[tuple[str, Type]] = []
        while not frame.skip("}"):
            self._members(members)
        while frame.text() == "__attribute__":
            attributes += self.attribute() + " "
        if not members or len({name for name, _ in members}) < len(members):
            raise wrong(line, "a structure must have members with distinct names")
        self._made += 1
        made = Struct(f"orchgpu_struct_{self._made}", tuple(members))
        inner = " ".join(f"{_declaration(kind, name + '_')};" for name, kind in members)
        self._lines.write(line, f"typedef struct {attributes}{{ {inner} }} {made.text};")
        if tag:
            self._structs[tag] = made
        return made

    def _members(self, members: list[tuple[str, Type]]) -> None:
        frame, line = self._frame, self._frame.line
        declared = self.specifiers()
        if declared.space or declared.volatile or declared.kind == VOID:
            raise wrong(line, "a member cannot be void, volatile or in an address space")
        if declared.kind.text == "bool":  # compilers take it that its byte is 0 or 1
            raise wrong(line, "a member of type bool is not in the subset; use uchar")
        while True:
            if frame.text() in ("*", "("):
                raise wrong(line, "a structure cannot contain pointers; pass the buffer separately")
            name = frame.name()
            members.append((name, self._array(declared.kind, line)))
            if not frame.skip(","):
                break
        frame.expect(";")

    def _array(self, kind: Type, line: int) -> Type:
        """The type with the dimensions `[N]…` after a name, if any."""
        lengths: list[int] = []
        while self._frame.skip("["):
            lengths.append(self.expressions.constant("]"))
            self._frame.expect("]")
        for length in reversed(lengths):
            if not 0 < length < 1 << 24:
                raise wrong(line, f"an array has 1…{(1 << 24) - 1} elements, not {length}")
            kind = Array(kind, length)
        return kind

    def typedef(self) -> None:
        """Define a name for the type of a number or structure."""
        frame, line = self._frame, self._frame.line
        frame.expect("typedef")
        declared = self.specifiers()
        if declared.space or declared.constant or frame.text() in ("*", "("):
            raise wrong(line, "a typedef must name a number or a structure; write pointers out")
        name = frame.name()
        if name in C_WORDS or name in BUILTINS:
            raise wrong(line, f"{name!r} cannot be a name here")
        if frame.text() == "[":
            raise wrong(line, "a typedef of an array is not in the subset; write it out")
        frame.scopes[-1][name] = declared.kind
        frame.expect(";")

    def variable(self, declared: Declared, name: str = "", *, outside: bool = False) -> str:
        """The translation of a declaration's names, with the `;`."""
        frame, made = self._frame, list[str]()
        while True:
            line = frame.line
            target = self.target(declared) if frame.text() == "*" and not name else None
            if frame.text() == "(" and not name:
                raise wrong(line, "pointers to functions are not in the subset")
            name = name or frame.name()
            if name in C_WORDS:
                raise wrong(line, f"{name!r} cannot be the name of a variable")
            if target is not None:
                made.append(self._pointer(target, name, line))
            else:
                made.append(self._plain(declared, name, line, outside=outside))
            name = ""
            if not frame.skip(","):
                frame.expect(";")
                return " ".join(made)

    def _pointer(self, target: Target, name: str, line: int) -> str:
        frame = self._frame
        if frame.text() == "[":
            raise wrong(line, f"{name!r}: an array of pointers is not in the subset")
        if not frame.skip("="):
            raise wrong(line, f"the pointer {name!r} must be initialised")
        self._check_new(name, line)
        given = pointer(self.expressions.value(), line)
        self.expressions.check_target(given.target, target, line)
        memory = replace(target.memory, level=given.target.memory.level)
        own = frame.own(name, "__")
        frame.scopes[-1][name] = PointerVariable(own, replace(target, memory=memory))
        frame.reserve(24, line)
        base = f"{target.text}{own}b = {given.base};"
        return f"{base} ulong {own}n = {given.count}, {own}o = {given.offset};"

    def _check_new(self, name: str, line: int) -> None:
        if name in self._frame.scopes[-1]:
            raise wrong(line, f"{name!r} is declared twice in this block")

    def _plain(self, declared: Declared, name: str, line: int, *, outside: bool) -> str:
        frame = self._frame
        if frame.text() == "(":
            raise wrong(line, f"{name!r}: define functions outside of functions")
        if declared.kind == VOID:
            raise wrong(line, f"{name!r} cannot be void")
        self._check_new(name, line)
        kind = self._open_array(declared.kind, line)
        space = declared.space or "private"
        if space == "global" or (space == "constant" and not outside):
            raise wrong(line, f"{name!r}: a variable here must be __local or private")
        if space == "local" and declared.kind.text == "bool":
            raise wrong(line, f"{name!r}: __local memory cannot have the type bool; use uchar")
        begins = ""
        if frame.skip("="):
            if space == "local":
                raise wrong(line, f"{name!r}: __local memory cannot be initialised")
            begins = f" = {self._initial(kind, line)}"
        elif space == "private":  # uninitialised memory could have data of others
            begins = " = {0}" if isinstance(kind, (Array, Struct)) else " = 0"
        elif space == "constant":
            raise wrong(line, f"{name!r}: a constant must be initialised")
        self._count(kind, space, line)
        constant = declared.constant or space == "constant"
        level = frame.level if space == "private" else 0
        memory, own = Memory(space, constant, declared.volatile, level), frame.own(name)
        frame.scopes[-1][name] = Variable(own, kind, memory)
        words = "const " * declared.constant + "volatile " * declared.volatile
        prefix = "" if space == "private" else f"__{space} "
        return f"{prefix}{words}{_declaration(kind, own)}{begins};"

    def _open_array(self, kind: Type, line: int) -> Type:
        """The type of an array; `[]` gets the length of its initialiser."""
        frame = self._frame
        if frame.text() != "[" or frame.text(1) != "]":
            return self._array(kind, line)
        at, depth, count = frame.at + 2, 0, 1
        if [frame.text(2), frame.text(3)] != ["=", "{"]:
            raise wrong(line, "an array must have a length")
        for token in frame.tokens[at + 2 :]:
            if token.text == "}" and not depth:
                break
            depth += (token.text in "([{") - (token.text in ")]}")
            count += token.text == "," and not depth
        frame.at = at
        return Array(kind, count)

    def _initial(self, kind: Type, line: int) -> str:
        if self._frame.text() != "{":
            if isinstance(kind, Array):
                raise wrong(line, "initialise an array with values in braces")
            return self.expressions.number()
        return self._braces()

    def _braces(self) -> str:
        frame, parts = self._frame, list[str]()
        frame.enter()
        frame.expect("{")
        while not frame.skip("}"):
            nested = frame.text() == "{"
            parts.append(self._braces() if nested else self.expressions.number())
            if frame.text() != "}":
                frame.expect(",")
        frame.leave()
        return "{" + ", ".join(parts or ["0"]) + "}"

    def _count(self, kind: Type, space: str, line: int) -> None:
        if space == "local":
            self.local_bytes += kind.size
            if self.local_bytes > LOCAL_BYTES_MAX:
                raise wrong(line, f"a group shares at most {LOCAL_BYTES_MAX} bytes")
        elif space == "private":
            self._frame.reserve(max(8, kind.size), line)


def _declaration(kind: Type, name: str) -> str:
    lengths, element = "", kind
    while isinstance(element, Array):
        lengths, element = f"{lengths}[{element.length}]", element.element
    return f"{element.text} {name}{lengths}"

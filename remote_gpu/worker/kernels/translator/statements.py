"""Declarations and statements of the kernel language: parsed, checked and translated. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from remote_gpu.worker.kernels.lexer.tokens import Sort, Token, wrong
from remote_gpu.worker.kernels.lexer.words import ATTRIBUTES, BUILTINS, C_WORDS, QUALIFIERS, SPACES
from remote_gpu.worker.kernels.translator.expressions import Expressions
from remote_gpu.worker.kernels.translator.frame import Frame, PointerVariable, Variable
from remote_gpu.worker.kernels.translator.loops import counter
from remote_gpu.worker.kernels.translator.types import (
    SCALAR_BYTES,
    SCALAR_NAMES,
    VOID,
    Array,
    Scalar,
    Struct,
    Target,
    Type,
)
from remote_gpu.worker.kernels.translator.values import pointer

_STORAGE = frozenset({"static", "inline"})
_WORDS = frozenset({"signed", "unsigned", "void", *SCALAR_BYTES})
#: Of one array, and of all variables of one work item: drivers keep them on a thread's stack, and a
#: larger offset could skip the guard page at its end.
PRIVATE_BYTES_MAX = 1 << 16
LOCAL_BYTES_MAX = 1 << 22
_BLOCKS_WRITTEN = ("{", "if", "while", "do", "for", "switch")


@dataclass(frozen=True, slots=True)
class Declared:
    """The specifiers of a declaration."""

    kind: Scalar | Struct
    space: str = ""
    constant: bool = False
    volatile: bool = False


class Statements:
    """The translation of declarations and statements at the position of a frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.expressions = Expressions(frame, self._type_name)
        self.leave = "return"  #: the translation of a `return` without a value
        self.local_bytes = 0  #: of the current kernel
        self._structs: dict[str, Struct] = {}
        self._made = 0
        self._lines: list[list[str]] = [[]]

    def write(self, line: int, text: str) -> None:
        """Append a text at a line, or at the last line if that is later."""
        while len(self._lines) < line:
            self._lines.append([])
        self._lines[-1].append(text)

    def text(self) -> str:
        return "\n".join(" ".join(parts) for parts in self._lines) + "\n"

    def pragma(self, token: Token) -> None:
        """Write a `#pragma` on its own line."""
        self.write(token.line, "")
        if any(self._lines[-1]):
            self._lines.append([])
        self._lines[-1] = [" ".join(token.text.replace("\\\n", " ").split())]
        self._lines.append([])

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
        return Target(declared.space or "private", kind, constant, declared.volatile)

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
        """Define the constants of an enumeration, whose variables are ints."""
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
        self.write(line, f"typedef struct {attributes}{{ {inner} }} {made.text};")
        if tag:
            self._structs[tag] = made
        return made

    def _members(self, members: list[tuple[str, Type]]) -> None:
        frame, line = self._frame, self._frame.line
        declared = self.specifiers()
        if declared.space or declared.volatile or declared.kind == VOID:
            raise wrong(line, "a member cannot be void, volatile or in an address space")
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
        given = pointer(self.expressions.value(), line)
        self.expressions.check_target(given.target, target, line)
        frame.scopes[-1][name] = PointerVariable(name, target)
        frame.private_bytes += 24
        base = f"{target.text}{name}__b = {given.base};"
        return f"{base} ulong {name}__n = {given.count}, {name}__o = {given.offset};"

    def _plain(self, declared: Declared, name: str, line: int, *, outside: bool) -> str:
        frame = self._frame
        if frame.text() == "(":
            raise wrong(line, f"{name!r}: define functions outside of functions")
        if declared.kind == VOID:
            raise wrong(line, f"{name!r} cannot be void")
        kind = self._open_array(declared.kind, line)
        space = declared.space or "private"
        if space == "global" or (space == "constant" and not outside):
            raise wrong(line, f"{name!r}: a variable here must be __local or private")
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
        frame.scopes[-1][name] = Variable(f"{name}_", kind, space, constant, declared.volatile)
        words = "const " * declared.constant + "volatile " * declared.volatile
        prefix = "" if space == "private" else f"__{space} "
        return f"{prefix}{words}{_declaration(kind, name + '_')}{begins};"

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
            self._frame.private_bytes += max(8, kind.size)
            if self._frame.private_bytes > PRIVATE_BYTES_MAX:
                message = f"a work item has at most {PRIVATE_BYTES_MAX} bytes of variables"
                raise wrong(line, f"{message}; use a temporary buffer of the graph")

    def block(self) -> None:
        """Translate statements up to and including the closing brace."""
        frame = self._frame
        frame.scopes.append({})
        while not frame.skip("}"):
            if frame.at >= len(frame.tokens):
                raise wrong(frame.line, "a block has no closing brace")
            self.statement()
        frame.scopes.pop()

    def statement(self) -> None:
        """Translate one statement. Raises OpFailed(EINVAL)."""
        frame = self._frame
        token = frame.tokens[frame.at] if frame.at < len(frame.tokens) else frame.take()
        frame.enter()
        if token.sort is Sort.DIRECTIVE:
            self.pragma(frame.take())
        elif token.text in _BLOCKS_WRITTEN:
            getattr(self, {"{": "_braced"}.get(token.text, f"_{token.text}"))(token.line)
        elif token.text in ("break", "continue"):
            frame.take()
            frame.expect(";")
            self.write(token.line, f"{token.text};")
        elif token.text == "return":
            self._return(token.line)
        elif token.text in ("case", "default"):
            self._case(token.line)
        elif self._declares(token.text):
            declared = self.specifiers()
            if not frame.skip(";"):
                self.write(token.line, self.variable(declared))
        elif frame.skip(";"):
            self.write(token.line, ";")
        else:
            if frame.text(1) == ":":
                raise wrong(token.line, "labels are not in the subset")
            text = self.expressions.statement()
            frame.expect(";")
            self.write(token.line, f"{text};")
        frame.leave()

    def _declares(self, word: str) -> bool:
        if word == "typedef":
            raise wrong(self._frame.line, "write a typedef outside of functions")
        return word in _STORAGE or word in _WORDS or self.expressions.begins_type(word)

    def _scoped(self) -> None:
        """Translate the statement of a condition or loop in its own scope."""
        line = self._frame.line
        self._frame.scopes.append({})
        self.write(line, "{")
        self.statement()
        self.write(self._frame.tokens[self._frame.at - 1].line, "}")
        self._frame.scopes.pop()

    def _braced(self, line: int) -> None:
        self._frame.take()
        self.write(line, "{")
        self.block()
        self.write(self._frame.tokens[self._frame.at - 1].line, "}")

    def _condition(self, word: str) -> str:
        frame = self._frame
        frame.take()
        frame.expect("(")
        text = self.expressions.number()
        frame.expect(")")
        return f"{word} ({text})"

    def _if(self, line: int) -> None:
        self.write(line, self._condition("if"))
        self._scoped()
        if self._frame.text() == "else":
            self.write(self._frame.take().line, "else")
            self._scoped()

    def _while(self, line: int) -> None:
        self.write(line, self._condition("while"))
        self._scoped()

    def _do(self, line: int) -> None:
        frame = self._frame
        frame.take()
        self.write(line, "do")
        self._scoped()
        end = frame.line
        if frame.text() != "while":
            raise wrong(end, "do without while")
        self.write(end, f"{self._condition('while')};")
        frame.expect(";")

    def _switch(self, line: int) -> None:
        self.write(line, self._condition("switch"))
        self._scoped()

    def _case(self, line: int) -> None:
        word = self._frame.take().text
        value = f" {self.expressions.constant(':')}" if word == "case" else ""
        self._frame.expect(":")
        self.write(line, f"{word}{value}:")

    def _return(self, line: int) -> None:
        frame = self._frame
        frame.take()
        if frame.skip(";"):
            self.write(line, f"{{ {self.leave}; }}")
            return
        if self.leave != "return":
            raise wrong(line, "a kernel cannot return a value")
        self.write(line, f"return {self.expressions.number()};")
        frame.expect(";")

    def _for(self, line: int) -> None:
        frame = self._frame
        frame.take()
        frame.expect("(")
        frame.scopes.append({})
        counted = counter(frame)
        first, around = self._for_begins()
        condition = "" if frame.text() == ";" else self.expressions.number()
        frame.expect(";")
        after = "" if frame.text() == ")" else self.expressions.statement()
        frame.expect(")")
        head = f"for ({first} {condition}; {after})"
        if counted and isinstance(variable := frame.find(counted[0]), Variable):
            variable.below = counted[1]
        if around:
            self.write(line, f"{{ {around}")
        self.write(line, head)
        self._scoped()
        if around:
            self.write(frame.tokens[frame.at - 1].line, "}")
        frame.scopes.pop()

    def _for_begins(self) -> tuple[str, str]:
        """The first part of the head, and declarations to write before the loop."""
        frame = self._frame
        if frame.skip(";"):
            return ";", ""
        if not self._declares(frame.text()):
            text = self.expressions.statement()
            frame.expect(";")
            return f"{text};", ""
        text = self.variable(self.specifiers())
        return (text, "") if text.count(";") == 1 else (";", text)


def _declaration(kind: Type, name: str) -> str:
    lengths, element = "", kind
    while isinstance(element, Array):
        lengths, element = f"{lengths}[{element.length}]", element.element
    return f"{element.text} {name}{lengths}"

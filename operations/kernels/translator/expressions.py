"""Expressions of the kernel language: parsed, checked and translated. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from operations.kernels.lexer.constants import Evaluator, integer
from operations.kernels.lexer.tokens import Sort, Token, wrong
from operations.kernels.lexer.words import ATOMIC, BUILTINS, CONSTANTS, SPACES, check_word
from operations.kernels.translator.frame import (
    Frame,
    Function,
    PointerVariable,
    Symbol,
    Variable,
)
from operations.kernels.translator.types import (
    NUMBER,
    Array,
    Scalar,
    Struct,
    Target,
)
from operations.kernels.translator.values import (
    Element,
    Plain,
    Pointer,
    Row,
    Value,
    at,
    member,
    pointer,
    read,
    stored,
)

_BINARY = {
    sign: level
    for level, signs in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %"), 1
    )
    for sign in signs.split()
}
_ASSIGN = frozenset(["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="])
_IMPURE = ATOMIC | {"barrier", "mem_fence"}


class Expressions:
    """The parser of expressions at the position of a frame."""

    def __init__(self, frame: Frame, type_name: Callable[[], Target | Scalar | Struct]) -> None:
        """`type_name`: parses the name of a type, as in a cast."""
        self._frame = frame
        self._type_name = type_name

    def statement(self) -> str:
        """Expressions separated by commas, with unused values."""
        parts = [self._unused(self._assignment(unused=True))]
        while self._frame.skip(","):
            parts.append(self._unused(self._assignment(unused=True)))
        return ", ".join(parts)

    def number(self) -> str:
        """One expression with the value of a number or structure."""
        return self.plain().text

    def plain(self) -> Plain:
        line = self._frame.line
        return read(self.value(), self._frame.checks, line)

    def value(self) -> Value:
        """One expression, without commas outside of parentheses."""
        return self._assignment(unused=False)

    def constant(self, *ends: str) -> int:
        """A constant integer expression that ends before one of these signs."""
        frame, start = self._frame, self._frame.at
        depth = 0
        while frame.text() and (depth or frame.text() not in ends):
            depth += (frame.text() in "([") - (frame.text() in ")]")
            frame.take()
        line = frame.tokens[start].line if start < len(frame.tokens) else frame.line
        return Evaluator(self._without_sizes(start, frame.at), line, self._named).value()

    def _without_sizes(self, start: int, end: int) -> list[Token]:
        """The tokens with `sizeof (TYPE)` replaced by numbers."""
        frame, made = self._frame, list[Token]()
        frame.at = start
        while frame.at < end:
            token = frame.take()
            if token.text == "sizeof" and frame.skip("("):
                kind = self._type_name()
                frame.expect(")")
                if isinstance(kind, Struct):
                    raise wrong(
                        token.line, "sizeof of a structure is not a constant here; write a number"
                    )
                size = kind.size if isinstance(kind, Scalar) else 8
                token = Token(Sort.NUMBER, str(size), token.line)
            made.append(token)
        frame.at = end
        return made

    def _named(self, name: str) -> int:
        found = self._frame.find(name)
        if not isinstance(found, int):
            raise wrong(self._frame.line, f"{name!r} is not a constant; #define it")
        return found

    def _unused(self, value: Value) -> str:
        if isinstance(value, Pointer):
            return f"(void)({value.offset})"
        return read(value, self._frame.checks, self._frame.line).text

    def _read(self, value: Value, line: int) -> Plain:
        return read(value, self._frame.checks, line)

    def _assignment(self, *, unused: bool) -> Value:
        frame = self._frame
        frame.enter()
        left, line = self._choice(), frame.line
        if frame.text() in _ASSIGN:
            sign = frame.take().text
            right = self._assignment(unused=False)
            left = self._assign(left, sign, right, line, unused=unused)
        frame.leave()
        return left

    def _choice(self) -> Value:
        frame, line = self._frame, self._frame.line
        condition = self._binary(1)
        if not frame.skip("?"):
            return condition
        yes = self._assignment(unused=False)
        frame.expect(":")
        no = self._assignment(unused=False)
        if any(isinstance(operand, (Pointer, Row)) for operand in (yes, no)):
            raise wrong(line, "?: cannot select pointers; write if and else")
        parts = [self._read(operand, line) for operand in (condition, yes, no)]
        text = f"({parts[0].text} ? {parts[1].text} : {parts[2].text})"
        kind = parts[1].type if isinstance(parts[1].type, Struct) else NUMBER
        self._copied(kind, line)
        return Plain(text, kind, all(part.pure for part in parts))

    def _copied(self, kind: Scalar | Struct, line: int) -> None:
        if isinstance(kind, Struct):
            self._frame.reserve(kind.size, line)

    def _assign(self, left: Value, sign: str, right: Value, line: int, *, unused: bool) -> Value:
        if isinstance(left, Pointer):
            return self._assign_pointer(left, sign, right, line, unused=unused)
        value = self._read(right, line)
        if isinstance(left, Element) and isinstance(left.target.element, Scalar):
            if left.target.memory.constant:
                raise wrong(line, "const and __constant memory cannot be written")
            checks, kind = self._frame.checks, left.target.element
            if sign == "=":
                return Plain(checks.set(left, value.text, line), kind, pure=False)
            if left.pure:  # its index is written twice
                new = f"({checks.get(left, line)} {sign[:-1]} {value.text})"
                return Plain(checks.set(left, new, line), kind, pure=False)
        target = stored(left, self._frame.checks, line)
        if not unused:
            self._copied(target.type, line)
        return Plain(f"({target.text} {sign} {value.text})", target.type, pure=False)

    def _assign_pointer(
        self, left: Pointer, sign: str, right: Value, line: int, *, unused: bool
    ) -> Value:
        if not left.name or sign not in ("=", "+=", "-="):
            raise wrong(line, "only a pointer variable can be assigned a pointer")
        if sign != "=":
            by = self._read(right, line)
            text = f"({left.offset} {sign} (ulong)({by.text}))"
            return replace(left, offset=text, pure=False, name="")
        given = pointer(right, line)
        self.check_target(given.target, left.target, line)
        simple = given.base.strip("&").replace("_", "").isalnum()
        if not unused or not simple:  # its parts are assigned in sequence
            raise wrong(line, "assign a pointer in a statement of its own, or declare another one")
        if given.target.memory.level > left.target.memory.level:
            raise wrong(
                line,
                "this pointer is declared with memory that lives longer than what is assigned;"
                " declare another pointer beside that",
            )
        parts = zip(("o", "b", "n"), (given.offset, given.base, given.count), strict=True)
        return Plain("(" + ", ".join(f"{left.name}{p} = {text}" for p, text in parts) + ")")

    def check_target(self, given: Target, wanted: Target, line: int) -> None:
        """Raises OpFailed(EINVAL) unless a pointer to `given` converts to one to `wanted`."""
        have, want = given.memory, wanted.memory
        same = have.space == want.space and given.element == wanted.element
        if not same or have.constant > want.constant or have.volatile > want.volatile:
            message = f"a pointer '{given.text}' is not a '{wanted.text}'; declare both alike"
            raise wrong(line, message)

    def _binary(self, least: int) -> Value:
        left = self._unary()
        while _BINARY.get(self._frame.text(), 0) >= least:
            left = self._chain(left, _BINARY[self._frame.text()])
        return left

    def _chain(self, first: Value, level: int) -> Value:
        frame, line = self._frame, self._frame.line
        left, texts, pure = first, list[str](), True
        while _BINARY.get(frame.text()) == level:
            sign = frame.take().text
            right = self._binary(level + 1)
            if isinstance(left, (Pointer, Row)) or isinstance(right, (Pointer, Row)):
                if texts:
                    left = Plain(f"({' '.join(texts)})", NUMBER, pure)
                    texts = []
                left = self._with_pointer(left, sign, right, line)
                continue
            if not texts:
                operand = self._read(left, line)
                texts, pure = [operand.text], operand.pure
            other = self._read(right, line)
            texts += [sign, other.text]
            pure = pure and other.pure
        return Plain(f"({' '.join(texts)})", NUMBER, pure) if texts else left

    def _with_pointer(self, left: Value, sign: str, right: Value, line: int) -> Value:
        if isinstance(right, (Pointer, Row)) and isinstance(left, (Pointer, Row)):
            return self._compared(pointer(left, line), sign, pointer(right, line), line)
        if isinstance(right, (Pointer, Row)):
            if sign != "+":
                raise wrong(line, f"{sign!r} of a number and a pointer is not in the subset")
            left, right = right, left
        if sign not in ("+", "-"):
            raise wrong(line, f"{sign!r} of a pointer and a number is not in the subset")
        place, by = pointer(left, line), self._read(right, line)
        offset = f"({place.offset} {sign} (ulong)({by.text}))"
        return replace(place, offset=offset, pure=place.pure and by.pure, name="")

    def _compared(self, left: Pointer, sign: str, right: Pointer, line: int) -> Plain:
        pure = left.pure and right.pure
        spaces = left.target.memory.space, right.target.memory.space
        if spaces[0] != spaces[1] or left.target.element != right.target.element:
            raise wrong(line, "pointers to different types cannot be compared")
        if sign in ("==", "!="):
            differ = f"({left.base} != {right.base} || {left.offset} != {right.offset})"
            return Plain(differ if sign == "!=" else f"(!{differ})", NUMBER, pure)
        if sign not in ("<", ">", "<=", ">=", "-"):
            raise wrong(line, f"{sign!r} of two pointers is not in the subset")
        return Plain(f"((long)({left.offset}) {sign} (long)({right.offset}))", NUMBER, pure)

    def _unary(self) -> Value:
        frame, line = self._frame, self._frame.line
        frame.enter()
        try:
            sign = frame.text()
            if sign in ("+", "-", "~", "!"):
                frame.take()
                value = self._read(self._unary(), line)
                return Plain(f"({sign}{value.text})", NUMBER, value.pure)
            if sign in ("++", "--"):
                frame.take()
                return self._assign(self._unary(), f"{sign[0]}=", Plain("1"), line, unused=False)
            if sign == "*":
                frame.take()
                return at(self._unary(), Plain("0"), frame.checks, line)
            if sign == "&":
                frame.take()
                return self._address(self._unary(), line)
            if sign == "sizeof":
                frame.take()
                return self._size(line)
            if sign == "(" and self.begins_type(frame.text(1)):
                return self._cast(line)
            return self._postfix(self._primary(), line)
        finally:
            frame.leave()

    def _address(self, value: Value, line: int) -> Pointer:
        if isinstance(value, Element):
            return Pointer(value.base, value.count, f"({value.index})", value.target, value.pure)
        place = stored(value, self._frame.checks, line)
        target = Target(place.type, place.memory)
        return Pointer(f"&{place.text}", "(1ul + orchgpu_zero)", "0ul", target, place.pure)

    def _size(self, line: int) -> Plain:
        frame = self._frame
        if frame.text() == "(" and self.begins_type(frame.text(1)):
            frame.take()
            kind = self._type_name()
            frame.expect(")")
            return Plain(f"sizeof({'ulong' if isinstance(kind, Target) else kind.text})")
        value = self._unary()
        match value:
            case Row():
                return Plain(f"({value.type.count} * sizeof({value.type.text}))")
            case Pointer():
                return Plain("sizeof(ulong)")
            case Element():
                return Plain(f"sizeof({value.target.element.text})")
        operand = self._read(value, line)
        return Plain(f"sizeof({operand.type.text or operand.text})")

    def begins_type(self, word: str) -> bool:
        """Whether `word` begins a type."""
        if word in ("const", "volatile", "struct", "union", "enum", *SPACES):
            return True
        named = self._frame.find(word)
        return isinstance(named, (Scalar, Struct)) or (word in ("unsigned", "signed", "void"))

    def _cast(self, line: int) -> Value:
        frame = self._frame
        frame.expect("(")
        kind = self._type_name()
        frame.expect(")")
        if frame.text() == "{":
            raise wrong(line, "(TYPE){…} is not in the subset; declare a variable")
        value = self._unary()
        if isinstance(kind, Target):
            if not isinstance(value, (Pointer, Row)):
                raise wrong(
                    line, "a number cannot be cast to a pointer; pass a buffer and index it"
                )
            return self._cast_pointer(pointer(value, line), kind, line)
        if isinstance(value, (Pointer, Row)):
            raise wrong(line, "a pointer cannot be cast to a number; use indices")
        if isinstance(kind, Struct):
            raise wrong(line, "a cast to a structure is not in the subset")
        operand = self._read(value, line)
        return Plain(f"(({kind.text}){operand.text})", kind, operand.pure)

    def _cast_pointer(self, given: Pointer, wanted: Target, line: int) -> Pointer:
        old, new = given.target.element, wanted.element
        have, want = given.target.memory, wanted.memory
        if have.space != want.space:
            raise wrong(line, f"a cast cannot change the address space; write __{have.space}")
        if have.constant > want.constant or have.volatile > want.volatile:
            raise wrong(line, "a cast cannot drop const or volatile")
        ratio = 1
        if old != new:
            if not (isinstance(old, Scalar) and isinstance(new, Scalar)) or old.size % new.size:
                message = f"a pointer to {old.text} cannot be cast to one to {new.text}, which is"
                raise wrong(line, f"{message} not smaller; declare the buffer as {new.text}")
            if "bool" in (old.text, new.text):
                raise wrong(line, "a pointer to bool is not in the subset; use uchar")
            ratio = old.size // new.size
        scaled = "" if ratio == 1 else f" * {ratio}ul"
        base = f"(({wanted.text})({given.base}))"
        count, offset = f"({given.count}{scaled})", f"(({given.offset}){scaled})"
        target = replace(wanted, memory=replace(want, level=have.level))
        return Pointer(base, count, offset, target, given.pure)

    def _primary(self) -> Value:
        frame = self._frame
        token = frame.take()
        if token.text == "(":
            value = self.value()
            while frame.skip(","):
                left = self._read(value, token.line)
                right = self._read(self.value(), token.line)
                text = f"({left.text}, {right.text})"
                value = Plain(text, right.type, left.pure and right.pure)
            frame.expect(")")
            return value
        if token.sort is Sort.NUMBER:
            number = integer(token.text)
            return Plain(token.text, below=None if number is None else number + 1)
        if token.sort is Sort.TEXT and token.text[0] == "'":
            return Plain(token.text)
        if token.sort is not Sort.WORD:
            raise wrong(token.line, f"unexpected {token.text[:40]!r}")
        check_word(token.text, token.line)
        return self._word(token)

    def _word(self, token: Token) -> Value:
        found = self._frame.find(token.text)
        match found:
            case Variable(type=Array() as kind):
                return Row(found.text, kind, found.memory, pure=True)
            case Variable(type=Scalar() | Struct() as plain):
                return Plain(
                    found.text,
                    plain,
                    not found.memory.volatile,
                    stored=found.below is None,
                    memory=found.memory,
                    below=found.below,
                )
            case PointerVariable():
                name = found.text
                parts = f"{name}b", f"{name}n", f"{name}o"
                return Pointer(*parts, found.target, pure=True, name=name)
            case int():
                return Plain(f"({found})", below=found + 1 if found >= 0 else None)
        if self._frame.text() == "(":
            return self._call(token, found)
        if token.text in CONSTANTS:
            return Plain(token.text)
        if found is not None or token.text in BUILTINS:
            raise wrong(token.line, f"{token.text!r} is not a value")
        raise wrong(token.line, f"{token.text!r} is not declared here")

    def _call(self, token: Token, found: Symbol | None) -> Plain:
        frame, line = self._frame, token.line
        if not isinstance(found, Function) and token.text not in BUILTINS:
            message = f"{token.text!r} is neither defined above nor a function of the subset"
            raise wrong(line, message)
        frame.expect("(")
        given: list[Value] = []
        if not frame.skip(")"):
            given.append(self.value())
            while frame.skip(","):
                given.append(self.value())
            frame.expect(")")
        if isinstance(found, Function):
            return self._call_own(token, found, given)
        texts = [self._argument(token.text, n, operand, line) for n, operand in enumerate(given)]
        pure = token.text not in _IMPURE
        pure = pure and all(operand.pure for operand in given)
        return Plain(f"{token.text}({', '.join(texts)})", NUMBER, pure)

    def _argument(self, function: str, number: int, value: Value, line: int) -> str:
        if function not in ATOMIC or number:
            return self._read(value, line).text
        place = pointer(value, line)
        if place.target.memory.constant or place.target.memory.space not in ("global", "local"):
            raise wrong(line, f"{function} takes a pointer to __global or __local memory")
        numbers = ("int", "uint", "float")[: 3 if function == "atomic_xchg" else 2]
        if place.target.element.text not in numbers:  # compilers convert it silently
            found = place.target.element.text
            raise wrong(line, f"{function} takes a pointer to {' or '.join(numbers)}, not {found}")
        checked = self._frame.checks.index(place.offset, place.count, line)
        return f"&({place.base})[{checked}]"

    def _call_own(self, token: Token, function: Function, given: Sequence[Value]) -> Plain:
        wanted, line = function.takes, token.line
        if len(wanted) != len(given):
            message = f"{token.text!r} takes {len(wanted)} arguments, not {len(given)}"
            raise wrong(line, message)
        texts: list[str] = []
        for takes, value in zip(wanted, given, strict=True):
            if isinstance(takes, Target):
                place = pointer(value, line)
                self.check_target(place.target, takes, line)
                texts += [place.base, place.count, place.offset]
            else:
                texts.append(self._read(value, line).text)
                self._copied(takes, line)
        self._copied(function.gives, line)
        self._frame.private_bytes += function.private_bytes
        texts += ["orchgpu_bad", "orchgpu_zero"]
        return Plain(f"{function.text}({', '.join(texts)})", function.gives, pure=False)

    def _postfix(self, value: Value, line: int) -> Value:
        frame = self._frame
        while (sign := frame.text()) in ("[", ".", "->", "++", "--", "("):
            frame.take()
            if sign == "(":
                raise wrong(line, "only a function's own name can be called")
            if sign == "[":
                index = self.plain()
                frame.expect("]")
                value = at(value, index, frame.checks, line)
            elif sign in ("++", "--"):
                value = self._step(value, sign, line)
            else:
                if sign == "->":
                    value = at(value, Plain("0"), frame.checks, line)
                value = member(value, frame.name(), frame.checks, line)
        return value

    def _step(self, value: Value, sign: str, line: int) -> Value:
        if isinstance(value, Pointer):
            if not value.name:
                raise wrong(line, f"{sign} takes a variable")
            return replace(value, offset=f"({value.offset}{sign})", pure=False, name="")
        if isinstance(value, Element) and value.target.memory.constant:
            raise wrong(line, "const and __constant memory cannot be written")
        target = stored(value, self._frame.checks, line)
        return Plain(f"({target.text}{sign})", target.type, pure=False)

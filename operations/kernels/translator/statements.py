"""Statements of the kernel language: parsed, checked and translated. Pure."""

from __future__ import annotations

from operations.kernels.lexer.constants import integer
from operations.kernels.lexer.tokens import Sort, wrong
from operations.kernels.translator.declarations import Declarations
from operations.kernels.translator.frame import Frame, Lines, Variable
from operations.kernels.translator.types import VOID, Scalar, Struct

_LABELS = ("case", "default")
_HEADS = ("for", "while", "if", "switch")
_BLOCKS_WRITTEN = ("{", "if", "while", "do", "for", "switch")


class Statements:
    """The translation of statements at the position of a frame."""

    def __init__(self, frame: Frame, lines: Lines, declarations: Declarations) -> None:
        self._frame = frame
        self._write = lines.write
        self._lines = lines
        self._declarations = declarations
        self._expressions = declarations.expressions
        self.leave = "return"  #: the translation of a `return` without a value
        self.gives: Scalar | Struct = VOID  #: the type of the current function

    def block(self, *, switch: bool = False) -> None:
        """Translate statements up to and including the closing brace.

        `switch`: labels stand directly in the block, and declarations do not. Then control enters
        every other block at its beginning alone, and passes a declaration before each use of what
        it declares: no access can meet a variable without its value, count or proof.
        """
        frame = self._frame
        frame.scopes.append({})
        while not frame.skip("}"):
            if frame.at >= len(frame.tokens):
                raise wrong(frame.line, "a block has no closing brace")
            if switch and frame.text() in _LABELS:
                self._case(frame.line)
            elif switch and self._declares(frame.text()):
                message = "a switch could jump over this declaration: put the statements of the"
                raise wrong(frame.line, f"{message} case in braces, or declare before the switch")
            else:
                self.statement()
        frame.scopes.pop()

    def statement(self) -> None:
        """Translate one statement. Raises OpFailed(EINVAL)."""
        frame = self._frame
        token = frame.tokens[frame.at] if frame.at < len(frame.tokens) else frame.take()
        frame.enter()
        if token.sort is Sort.DIRECTIVE:
            self._lines.pragma(frame.take())
        elif token.text in _BLOCKS_WRITTEN:
            getattr(self, {"{": "_braced"}.get(token.text, f"_{token.text}"))(token.line)
        elif token.text in ("break", "continue"):
            frame.take()
            frame.expect(";")
            self._write(token.line, f"{token.text};")
        elif token.text == "return":
            self._return(token.line)
        elif token.text in _LABELS:
            message = f"{token.text!r} stands directly in the braces of its switch, and not in a"
            raise wrong(token.line, f"{message} block, condition or loop within them")
        elif self._declares(token.text):
            declared = self._declarations.specifiers()
            if not frame.skip(";"):
                self._write(token.line, self._declarations.variable(declared))
        elif frame.skip(";"):
            self._write(token.line, ";")
        else:
            if frame.text(1) == ":":
                raise wrong(token.line, "labels are not in the subset")
            text = self._expressions.statement()
            frame.expect(";")
            self._write(token.line, f"{text};")
        frame.leave()

    def _declares(self, word: str) -> bool:
        if word == "typedef":
            raise wrong(self._frame.line, "write a typedef outside of functions")
        return self._declarations.begins(word)

    def _scoped(self) -> None:
        line = self._frame.line
        self._frame.scopes.append({})
        self._write(line, "{")
        self.statement()
        self._write(self._frame.tokens[self._frame.at - 1].line, "}")
        self._frame.scopes.pop()

    def _braced(self, line: int) -> None:
        self._frame.take()
        self._write(line, "{")
        self.block()
        self._write(self._frame.tokens[self._frame.at - 1].line, "}")

    def _condition(self, word: str) -> str:
        frame = self._frame
        frame.take()
        frame.expect("(")
        text = self._expressions.number()
        frame.expect(")")
        return f"{word} ({text})"

    def _if(self, line: int) -> None:
        self._write(line, self._condition("if"))
        self._scoped()
        if self._frame.text() == "else":
            self._write(self._frame.take().line, "else")
            self._scoped()

    def _while(self, line: int) -> None:
        self._write(line, self._condition("while"))
        self._scoped()

    def _do(self, line: int) -> None:
        frame = self._frame
        frame.take()
        self._write(line, "do")
        self._scoped()
        end = frame.line
        if frame.text() != "while":
            raise wrong(end, "do without while")
        self._write(end, f"{self._condition('while')};")
        frame.expect(";")

    def _switch(self, line: int) -> None:
        """The value is opaque to the compiler.

        Knowing its range, a compiler could drop the comparison before a table of jumps, by C's rule
        that signed arithmetic does not overflow.
        """
        head = self._condition("switch")
        if self._frame.text() != "{":
            raise wrong(line, "a switch is written as: switch (…) { case …: … }")
        self._frame.take()
        self._write(line, f"{head[:-1]} ^ (int)orchgpu_zero) {{")
        self.block(switch=True)
        self._write(self._frame.tokens[self._frame.at - 1].line, "}")

    def _case(self, line: int) -> None:
        word = self._frame.take().text
        value = f" {self._expressions.constant(':')}" if word == "case" else ""
        self._frame.expect(":")
        self._write(line, f"{word}{value}:")

    def _return(self, line: int) -> None:
        frame = self._frame
        frame.take()
        if frame.skip(";"):
            if self.gives != VOID:
                raise wrong(line, "this function returns a value")
            self._write(line, f"{{ {self.leave}; }}")
            return
        if self.gives == VOID:
            raise wrong(line, "a kernel or void function cannot return a value")
        self._write(line, f"return {self._expressions.number()};")
        frame.expect(";")

    def _for(self, line: int) -> None:
        frame = self._frame
        frame.take()
        frame.expect("(")
        frame.scopes.append({})
        counted = _counter(frame)
        first, around = self._for_begins()
        condition = "" if frame.text() == ";" else self._expressions.number()
        frame.expect(";")
        after = "" if frame.text() == ")" else self._expressions.statement()
        frame.expect(")")
        head = f"for ({first} {condition}; {after})"
        if counted and isinstance(variable := frame.find(counted[0]), Variable):
            variable.below = counted[1]
        if around:
            self._write(line, f"{{ {around}")
        self._write(line, head)
        self._scoped()
        if around:
            self._write(frame.tokens[frame.at - 1].line, "}")
        frame.scopes.pop()

    def _for_begins(self) -> tuple[str, str]:
        frame = self._frame
        if frame.skip(";"):
            return ";", ""
        if not self._declares(frame.text()):
            text = self._expressions.statement()
            frame.expect(";")
            return f"{text};", ""
        text = self._declarations.variable(self._declarations.specifiers())
        return (text, "") if text.count(";") == 1 else (";", text)


def _counter(frame: Frame) -> tuple[str, int] | None:
    """The counter and limit of a loop `int i = A; i < B; i++)` whose body never changes i.

    i then lies in A…B - 1. Changes that the search below misses are refused later: while the proof
    holds, the counter cannot be assigned and has no address. Requiring 0 ≤ A ≤ B ≤ 2^24 rules out
    numbers that another type turns into others: 4294967295 is −1 as an int, −5 < i as a uint.
    """
    texts = [frame.text(n) for n in range(12)]
    kind, name, is_, start, end, again, less, limit, stop = texts[:9]
    fixed = (is_, end, less, stop) == ("=", ";", "<", ";") and again == name
    step = texts[9:11] in ([name, "++"], ["++", name]) and texts[11] == ")"
    if kind not in ("int", "uint") or not fixed or not step or not name.isidentifier():
        return None
    least, most = integer(start), _limit(frame, limit)
    if least is None or most is None or not 0 <= least <= most <= 1 << 24:
        return None
    body = frame.at + 12
    around = frame.tokens[body - 1 : _end_of_statement(frame, body) + 1]
    for before, token, after in zip(around, around[1:], around[2:], strict=False):
        if token.text == name and (before.text in ("&", "++", "--") or _changes(after.text)):
            return None
    return name, most


def _limit(frame: Frame, text: str) -> int | None:
    found = frame.find(text)
    return found if isinstance(found, int) else integer(text)


def _changes(sign: str) -> bool:
    return sign in ("++", "--") or (sign.endswith("=") and sign not in ("==", "<=", ">=", "!="))


def _end_of_statement(frame: Frame, at: int) -> int:
    """The position after the statement at `at`, or after a part of it for an `if` without braces;
    changes of the counter in the rest are refused later."""
    tokens = frame.tokens
    while at < len(tokens) and tokens[at].text in _HEADS:
        at = _end_of(frame, at + 1, "(", ")")
    if at < len(tokens) and tokens[at].text == "{":
        return _end_of(frame, at, "{", "}")
    return next((n + 1 for n in range(at, len(tokens)) if tokens[n].text == ";"), len(tokens))


def _end_of(frame: Frame, at: int, opening: str, closing: str) -> int:
    depth = 0
    for place in range(at, len(frame.tokens)):
        text = frame.tokens[place].text
        depth += (text == opening) - (text == closing)
        if not depth:
            return place + 1
    return len(frame.tokens)

"""Statements of the kernel language: parsed, checked and translated. Pure."""

from __future__ import annotations

from remote_gpu.worker.kernels.lexer.tokens import Sort, wrong
from remote_gpu.worker.kernels.translator.declarations import Declarations
from remote_gpu.worker.kernels.translator.frame import Frame, Variable
from remote_gpu.worker.kernels.translator.lines import Lines
from remote_gpu.worker.kernels.translator.loops import counter

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
            self._lines.pragma(frame.take())
        elif token.text in _BLOCKS_WRITTEN:
            getattr(self, {"{": "_braced"}.get(token.text, f"_{token.text}"))(token.line)
        elif token.text in ("break", "continue"):
            frame.take()
            frame.expect(";")
            self._write(token.line, f"{token.text};")
        elif token.text == "return":
            self._return(token.line)
        elif token.text in ("case", "default"):
            self._case(token.line)
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
        """Translate the statement of a condition or loop in its own scope."""
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
        self._write(line, self._condition("switch"))
        self._scoped()

    def _case(self, line: int) -> None:
        word = self._frame.take().text
        value = f" {self._expressions.constant(':')}" if word == "case" else ""
        self._frame.expect(":")
        self._write(line, f"{word}{value}:")

    def _return(self, line: int) -> None:
        frame = self._frame
        frame.take()
        if frame.skip(";"):
            self._write(line, f"{{ {self.leave}; }}")
            return
        if self.leave != "return":
            raise wrong(line, "a kernel cannot return a value")
        self._write(line, f"return {self._expressions.number()};")
        frame.expect(";")

    def _for(self, line: int) -> None:
        frame = self._frame
        frame.take()
        frame.expect("(")
        frame.scopes.append({})
        counted = counter(frame)
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
        """The first part of the head, and declarations to write before the loop."""
        frame = self._frame
        if frame.skip(";"):
            return ";", ""
        if not self._declares(frame.text()):
            text = self._expressions.statement()
            frame.expect(";")
            return f"{text};", ""
        text = self._declarations.variable(self._declarations.specifiers())
        return (text, "") if text.count(";") == 1 else (";", text)

"""The state of a parser of the kernel language: tokens, scopes and symbols. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from remote_gpu.worker.kernels.lexer.tokens import Sort, Token, wrong
from remote_gpu.worker.kernels.lexer.words import check_word
from remote_gpu.worker.kernels.translator.types import Scalar, Struct, Target, Type
from remote_gpu.worker.kernels.translator.values import Checks

#: Nested parentheses, blocks and operators: the parser recurses.
DEPTH_MAX = 40


@dataclass
class Variable:
    """A variable of a number, structure or array type."""

    text: str
    type: Type
    space: str = "private"
    constant: bool = False
    volatile: bool = False
    below: int | None = None  #: exclusive upper bound, proved within a loop


@dataclass(frozen=True)
class PointerVariable:
    """A pointer variable: three variables for a compiler."""

    text: str
    target: Target


@dataclass
class Function:
    """A function of the source."""

    text: str
    takes: tuple[Scalar | Struct | Target, ...]
    gives: Scalar | Struct
    private_bytes: int = 0  #: of its variables and of the functions that it calls


Symbol: TypeAlias = "Variable | PointerVariable | Function | int | Scalar | Struct"


@dataclass
class Frame:
    """The position in the tokens, and the symbols visible there."""

    tokens: Sequence[Token]
    at: int = 0
    scopes: list[dict[str, Symbol]] = field(default_factory=lambda: [{}])
    checks: Checks = field(default_factory=Checks)
    depth: int = 0
    private_bytes: int = 0  #: of the current function

    def text(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    @property
    def line(self) -> int:
        if not self.tokens:
            return 1
        return self.tokens[min(self.at, len(self.tokens) - 1)].line

    def take(self) -> Token:
        if self.at >= len(self.tokens):
            raise wrong(self.line, "the source ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def skip(self, text: str) -> bool:
        """Take the next token if its text is `text`."""
        if self.text() != text:
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.skip(text):
            found = self.text() or "the end of the source"
            raise wrong(self.line, f"expected {text!r} before {found[:40]!r}")

    def name(self) -> str:
        """Take a name of the user."""
        token = self.take()
        if token.sort is not Sort.WORD:
            raise wrong(token.line, f"expected a name before {token.text[:40]!r}")
        check_word(token.text, token.line)
        return token.text

    def find(self, name: str) -> Symbol | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(self.line, f"more than {DEPTH_MAX} levels of parentheses and blocks")

    def leave(self) -> None:
        self.depth -= 1

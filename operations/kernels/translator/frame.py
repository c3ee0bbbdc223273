"""The state of a parser of the kernel language: tokens, scopes and symbols. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from operations.kernels.lexer.tokens import Sort, Token, wrong
from operations.kernels.lexer.words import check_word
from operations.kernels.translator.types import Memory, Scalar, Struct, Target, Type
from operations.kernels.translator.values import Checks

#: Nested parentheses, blocks and operators: the parser recurses.
DEPTH_MAX = 40
#: Of all variables and copies of structures of one function: drivers keep them on a thread's stack,
#: and a larger offset could skip the guard page at its end.
PRIVATE_BYTES_MAX = 1 << 16
#: Scopes of the source, of the parameters and of the block of a function.
_FUNCTION_LEVEL = 3


@dataclass
class Variable:
    """A variable of a number, structure or array type."""

    text: str
    type: Type
    memory: Memory
    below: int | None = None  #: exclusive upper bound, proved within a loop


@dataclass(frozen=True)
class PointerVariable:
    """A pointer variable: three variables for a compiler."""

    text: str  #: what begins their names
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
    _declared: Counter[str] = field(default_factory=Counter)

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

    def own(self, name: str, mark: str = "_") -> str:
        """A text for a declared name that no other declaration has.

        In C the name in `int a = a;` is already the new one, before it has a value.
        """
        self._declared[name] += 1
        number = self._declared[name]
        return f"{name}{mark}{number if number > 1 else ''}"

    def reserve(self, size: int, line: int) -> None:
        """Count private memory of the current function. Raises OpFailed(EINVAL): too much."""
        self.private_bytes += size
        if self.private_bytes > PRIVATE_BYTES_MAX:
            message = f"a work item has at most {PRIVATE_BYTES_MAX} bytes of variables"
            raise wrong(line, f"{message}; use a temporary buffer of the graph")

    @property
    def level(self) -> int:
        """The level of the current block; parameters live as long as the function's block."""
        return max(len(self.scopes), _FUNCTION_LEVEL)

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise wrong(self.line, f"more than {DEPTH_MAX} levels of parentheses and blocks")

    def leave(self) -> None:
        self.depth -= 1


class Lines:
    """The lines written so far."""

    def __init__(self) -> None:
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

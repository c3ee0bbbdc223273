"""Integer constant expressions: preprocessor conditions, sizes of arrays, cases. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from operations.kernels.lexer.tokens import Sort, Token, wrong

_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([uU]?[lL]{0,2}|[lL]{1,2}[uU])")
_DEPTH_MAX = 24
_BITS_MAX = 64
_LEVELS: tuple[frozenset[str], ...] = tuple(
    frozenset(signs.split())
    for signs in ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
)
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << (b % _BITS_MAX),
    ">>": lambda a, b: a >> (b % _BITS_MAX),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def integer(text: str) -> int | None:
    """The value of an integer literal; None for any other number."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    digits = found[1]
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    try:
        return int(digits, 8 if octal else 0)
    except ValueError:
        return None


class Evaluator:
    """The evaluation of one expression."""

    def __init__(self, tokens: Sequence[Token], line: int, name: Callable[[str], int]) -> None:
        """`name`: returns the value of a word, or raises OpFailed."""
        self._tokens = tokens
        self._line = line
        self._name = name
        self._at = 0

    def value(self) -> int:
        """Raises OpFailed(EINVAL) unless all tokens are one constant integer expression."""
        value = self._choice(0)
        if self._at != len(self._tokens):
            raise self._wrong()
        return value

    def _wrong(self) -> Exception:
        shown = " ".join(token.text for token in self._tokens)[:80]
        return wrong(self._line, f"{shown!r} is not a constant integer expression")

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _choice(self, depth: int) -> int:
        value = self._level(0, depth)
        if self._peek() != "?":
            return value
        self._at += 1
        yes = self._choice(depth + 1)
        if self._peek() != ":":
            raise self._wrong()
        self._at += 1
        no = self._choice(depth + 1)
        return yes if value else no

    def _level(self, level: int, depth: int) -> int:
        if depth > _DEPTH_MAX:
            raise wrong(self._line, f"expressions are nested more than {_DEPTH_MAX} levels deep")
        if level == len(_LEVELS):
            return self._single(depth)
        value = self._level(level + 1, depth)
        while (sign := self._peek()) in _LEVELS[level]:
            self._at += 1
            right = self._level(level + 1, depth)
            if sign in "/%" and right == 0:
                raise wrong(self._line, "a constant expression divides by zero")
            value = _OPERATORS[sign](value, right)
            if value.bit_length() > _BITS_MAX:
                raise wrong(self._line, "a constant has more than 64 bits")
        return value

    def _single(self, depth: int) -> int:
        if self._at >= len(self._tokens):
            raise self._wrong()
        token = self._tokens[self._at]
        self._at += 1
        if token.text == "(":
            value = self._choice(depth + 1)
            if self._peek() != ")":
                raise self._wrong()
            self._at += 1
            return value
        if token.text in ("+", "-", "~", "!"):
            value = self._level(len(_LEVELS), depth + 1)
            return {"+": value, "-": -value, "~": ~value, "!": int(not value)}[token.text]
        if token.sort is Sort.WORD:
            return self._name(token.text)
        number = integer(token.text) if token.sort is Sort.NUMBER else None
        if number is None:
            raise self._wrong()
        return number

"""A kernel source as tokens with their lines. Pure; linear in the length of the source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from remote_gpu.wire.errors import OpCode, OpFailed

#: A compiler takes seconds for as much; what is longer was not written for one graph.
SOURCE_CHARS_MAX = 1 << 20

_TOKEN = re.compile(
    r"""
      (?P<GAP>      \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<DIRECTIVE>\#(?:[^\n\\]|\\.)* )
    | (?P<TEXT>     "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<NUMBER>   \.?\d(?:[eEpP][+-]|[\w.])* )
    | (?P<WORD>     [A-Za-z_]\w* )
    | (?P<SIGN>     /\* | [-+*/%=<>!&|^~?:;,.(){}\[\]] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Sort(Enum):
    """What a token is."""

    GAP = auto()  #: white space or a comment
    DIRECTIVE = auto()  #: a whole line for the preprocessor
    TEXT = auto()
    NUMBER = auto()
    WORD = auto()
    SIGN = auto()  #: one character


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the source; all of them joined are the source."""

    sort: Sort
    text: str
    line: int  #: from 1


def wrong(line: int, message: str) -> OpFailed:
    """The refusal of a source: EINVAL, naming the line."""
    return OpFailed(OpCode.EINVAL, f"line {line}: {message}")


def tokens_of(source: str) -> list[Token]:
    """All tokens. Raises OpFailed: E2BIG, EINVAL for a character that C does not have."""
    if len(source) > SOURCE_CHARS_MAX:
        message = f"a source has at most {SOURCE_CHARS_MAX} characters, not {len(source)}"
        raise OpFailed(OpCode.E2BIG, message)
    tokens: list[Token] = []
    at, line = 0, 1
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None or found.group() == "/*":
            what = "a comment has no end" if found else f"unexpected {source[at]!r}"
            raise wrong(line, what)
        text = found.group()
        tokens.append(Token(Sort[found.lastgroup or "GAP"], text, line))
        at = found.end()
        line += text.count("\n")
    return tokens

"""The tokens of a kernel source, with their lines. Pure; linear in the length of the source.

Text that a compiler may read differently is refused: it could hide an `#include` of a host file
from the checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from remote_gpu.wire.errors import OpCode, OpFailed, invalid

#: A compiler takes seconds for this length.
SOURCE_CHARS_MAX = 1 << 20

_TOKEN = re.compile(
    r"""
      (?P<GAP>      \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<DIRECTIVE>\#(?:[^\n\\]|\\.)* )
    | (?P<TEXT>     "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<NUMBER>   \.?\d(?:[eEpP][+-]|[\w.])* )
    | (?P<WORD>     [A-Za-z_]\w* )
    | (?P<DIGRAPH>  %: | <: | :> | <% | %> )
    | (?P<SIGN>     /\* | <<= | >>= | -> | \+\+ | -- | << | >> | && | \|\| | [-+*/%=<>!&|^]=
                  | [-+*/%=<>!&|^~?:;,.(){}\[\]] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
#: Trigraphs, a line continuation with white space, the end of a comment over two lines, characters
#: that compilers may take for the end of a line or of the source.
_HIDDEN = re.compile(r"\?\?[=/'()!<>-]|\\[ \t\v\f]+\n|\*(?:\\\n)+/|[\0-\x08\x0d-\x1f\x7f]")


class Sort(Enum):
    """The kind of a token."""

    GAP = auto()  #: white space or a comment
    DIRECTIVE = auto()  #: a whole line for the preprocessor
    TEXT = auto()
    NUMBER = auto()
    WORD = auto()
    SIGN = auto()  #: an operator or a bracket


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the source; all pieces joined are the source."""

    sort: Sort
    text: str
    line: int  #: from 1


def wrong(line: int, message: str) -> OpFailed:
    """The error for a source, OpFailed(EINVAL), with the line."""
    return invalid(f"line {line}: {message}")


def tokens_of(source: str, line: int = 1) -> list[Token]:
    """All tokens, the first one at `line`. Raises OpFailed: E2BIG, EINVAL for a character that C
    lacks, and for text that compilers may read differently."""
    if len(source) > SOURCE_CHARS_MAX:
        message = f"a source has at most {SOURCE_CHARS_MAX} characters, not {len(source)}"
        raise OpFailed(OpCode.E2BIG, message)
    if (hidden := _HIDDEN.search(source)) is not None:
        what = f"{hidden.group()!r} is not in the subset; write its meaning"
        raise wrong(line + source.count("\n", 0, hidden.start()), what)
    tokens: list[Token] = []
    at, before = 0, "GAP"
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None or found.group() == "/*":
            what = "a comment is not closed" if found else f"unexpected {source[at]!r}"
            raise wrong(line, what)
        text, sort = found.group(), found.lastgroup or "GAP"
        if sort == "DIGRAPH" or (sort == "TEXT" and before in ("WORD", "NUMBER")):
            raise wrong(line, f"unexpected {text[:20]!r}")
        if text.startswith("//") and text.endswith("\\"):
            raise wrong(line, "a comment with // cannot end with a backslash")
        tokens.append(Token(Sort[sort], text, line))
        before = sort
        at = found.end()
        line += text.count("\n")
    return tokens

"""The one hint for a mistyped word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Characters; a longer word is a mistake of another kind, and slow to compare.
_LENGTH_MAX = 200
#: Characters; a shorter one is the beginning of too many words.
_BEGINNING_MIN = 4


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """`; did you mean 'memory'?` when a known word is close or begins with it; else `otherwise`."""
    words = list(known)
    close = difflib.get_close_matches(word[:_LENGTH_MAX], words, n=1)
    if len(word) >= _BEGINNING_MIN:
        close += [candidate for candidate in words if candidate.startswith(word)]
    return f"; did you mean {close[0]!r}?" if close else otherwise


def one_of_known(word: str, known: Iterable[str]) -> str:
    """The same hint, or the list of all known words."""
    names = list(known)
    return did_you_mean(word, names, otherwise=f"; known are {', '.join(names)}")

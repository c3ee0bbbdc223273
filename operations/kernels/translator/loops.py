"""Loops with a proved upper bound of their counter. Pure."""

from __future__ import annotations

from operations.kernels.lexer.constants import integer
from operations.kernels.translator.frame import Frame

_HEADS = ("for", "while", "if", "switch")


def counter(frame: Frame) -> tuple[str, int] | None:
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

"""Listing keys as S3 does: in UTF-8 order, by prefix, rolled up at a delimiter, in pages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from corekit.values import Value

PAGE_MAX = 1000  #: entries of one page, rolled-up prefixes included
_LAST = "\U0010ffff"  #: sorts behind every character


class KeyPage(Value):
    """One page; `after` starts the next one, None at the end."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    after: str | None


def page_of_keys(
    keys: Sequence[str],
    *,
    prefix: str = "",
    delimiter: str = "",
    after: str = "",
    limit: int = PAGE_MAX,
    wanted: Callable[[str], bool] = lambda _key: True,
) -> KeyPage:
    """A page of sorted `keys`: those with the prefix, behind `after`, for which `wanted` holds.

    Keys with the delimiter behind the prefix appear once, as their common prefix.
    """
    limit = min(limit, PAGE_MAX)
    found: list[str] = []
    prefixes: list[str] = []
    last = after
    at = max(bisect_left(keys, prefix), bisect_right(keys, _behind(after, prefix, delimiter)))
    while at < len(keys) and keys[at].startswith(prefix):
        key = keys[at]
        rolled = _rolled_up(key, prefix, delimiter)
        behind = bisect_left(keys, rolled + _LAST, at) if rolled else at + 1
        if rolled and not any(wanted(keys[i]) for i in range(at, behind)):
            at = behind
            continue
        if rolled or wanted(key):
            if len(found) + len(prefixes) >= limit:
                return KeyPage(keys=tuple(found), prefixes=tuple(prefixes), after=last)
            (prefixes if rolled else found).append(rolled or key)
            last = rolled or key
        at = behind
    return KeyPage(keys=tuple(found), prefixes=tuple(prefixes), after=None)


def _rolled_up(key: str, prefix: str, delimiter: str) -> str:
    """The common prefix that stands for this key, or empty."""
    if not delimiter:
        return ""
    end = key.find(delimiter, len(prefix))
    return key[: end + len(delimiter)] if end >= 0 else ""


def _behind(after: str, prefix: str, delimiter: str) -> str:
    """A page that ended with a common prefix continues after everything below it."""
    return after + _LAST if after and _rolled_up(after, prefix, delimiter) == after else after

"""Pages of ordered lists, by cursor: a request costs the same however long the list is. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from corekit.errors import invalid
from corekit.values import Value

#: The most items of one page.
LIMIT_MAX = 200
LIMIT = 50
#: Items that one request may look at while it searches for those that match.
SCANNED_MAX = 5_000


#: Keys with an order.
KeyT = TypeVar("KeyT", str, tuple[float, str])
ItemT = TypeVar("ItemT")


class Page(Value):
    """One page as the browser gets it."""

    items: tuple[object, ...]
    next: str | None  #: the cursor of the next page; None: this is the last one
    total: int | None  #: of all pages; None: not counted, because a search would have to


def page_limit(text: str | None) -> int:
    """The number of items of a page, of a query. Raises INVALID."""
    if text is None:
        return LIMIT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LIMIT_MAX:
        raise invalid(f"limit {text!r:.40} must be a number in 1…{LIMIT_MAX}")
    return int(text)


def sliced(
    items: Sequence[ItemT], after: str | None, limit: int
) -> tuple[Sequence[ItemT], str | None]:
    """A page of a list that is at hand, and its cursor, a number. Raises INVALID."""
    text = after or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise invalid(f"after {text!r:.40} is not a cursor of this list")
    end = int(text) + limit
    return items[int(text) : end], str(end) if end < len(items) else None


class SortedKeys(Generic[KeyT]):
    """Distinct keys in order. Insertion moves machine words only: 40 µs among 100,000."""

    def __init__(self) -> None:
        self._keys: list[KeyT] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._keys)

    def add(self, key: KeyT) -> None:
        """Add a key that is not there."""
        if self._keys and self._keys[-1] < key:  # the usual case: a newer one
            self._keys.append(key)
        else:
            insort(self._keys, key)

    def remove(self, key: KeyT) -> None:
        """Remove a key that is there."""
        del self._keys[bisect_left(self._keys, key)]

    def after(self, key: KeyT | None) -> Iterator[KeyT]:
        """The keys above `key`, in order; all without one."""
        at = 0 if key is None else bisect_right(self._keys, key)
        while at < len(self._keys):
            yield self._keys[at]
            at += 1

    def before(self, key: KeyT | None) -> Iterator[KeyT]:
        """The keys below `key`, the largest first; all without one."""
        at = len(self._keys) if key is None else bisect_left(self._keys, key)
        while at > 0:
            at -= 1
            yield self._keys[at]


def search(
    keys: Iterator[KeyT],
    limit: int,
    matching: Callable[[KeyT], ItemT | None],
    *,
    scanned_max: int = SCANNED_MAX,
) -> tuple[list[ItemT], KeyT | None]:
    """The first `limit` items that match, and the key to go on after; None at the end of the list.

    It ends early after `scanned_max` keys: then the page is short, even empty, and has a cursor.
    """
    found: list[ItemT] = []
    for scanned, key in enumerate(keys, start=1):
        item = matching(key)
        if item is not None:
            found.append(item)
        if len(found) == limit or scanned == scanned_max:
            more = next(keys, None)
            return found, None if more is None else key
    return found, None

"""A limited number of places that parties share: sessions, streams, calls in line. Pure.

Beyond its own bound a party loses its oldest item; beyond the total, the party with most does. So
no party takes places from one that has fewer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Places(Generic[T]):
    """The taken places: of each party in the order of use, the longest unused first."""

    def __init__(self, each_max: int, total_max: int) -> None:
        self.each_max = each_max
        self.total_max = total_max
        self._taken: dict[str, dict[T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, party: str, item: T) -> T | None:
        """Take a place. Returns what has to go for it, which has left already."""
        gone, own = None, self._taken.get(party, {})
        if len(own) >= self.each_max:
            gone = self._first_out(party)
        elif self._count >= self.total_max:
            gone = self._first_out(max(self._taken, key=lambda one: len(self._taken[one])))
        self._taken.setdefault(party, {})[item] = None
        self._count += 1
        return gone

    def leave(self, party: str, item: T) -> None:
        """Give a place back; safe to repeat."""
        own = self._taken.get(party, {})
        if item in own:
            del own[item]
            self._count -= 1
            if not own:
                del self._taken[party]

    def used(self, party: str, item: T) -> None:
        """Note a use: the item is the party's newest now."""
        own = self._taken.get(party, {})
        if item in own:
            del own[item]
            own[item] = None

    def first(self, party: str) -> T | None:
        """The longest unused item of a party."""
        return next(iter(self._taken.get(party, ())), None)

    def _first_out(self, party: str) -> T | None:
        item = self.first(party)
        if item is not None:
            self.leave(party, item)
        return item

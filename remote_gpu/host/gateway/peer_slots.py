"""Places that are counted, in all and for every source: no single peer takes them all."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from remote_gpu.wire.errors import Refusal, Refused


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    source: str
    displaced: Callable[[], None] | None


class Slots:
    """At most `limit` at once, of one source at most `per_source`."""

    def __init__(self, limit: int, per_source: int, what: str) -> None:
        self._limit = limit
        self._per_source = per_source
        self._what = what  # is counted, for people
        self._held: Counter[str] = Counter()
        self._places: dict[_Place, None] = {}  # oldest first

    @contextlib.contextmanager
    def held(self, source: str, displaced: Callable[[], None] | None = None) -> Iterator[None]:
        """One place for the length of a block. Raises Refused(BUSY) when there is none.

        A place with `displaced` is lost to a newer one that finds all taken: the oldest of the same
        source where that has its part, else of the source that has most, so a flood from a few
        sources takes nothing from another one. Its holder is told by the call.
        """
        if self._held[source] >= self._per_source:
            text = f"{self._per_source} {self._what} are open here from {source}"
            self._make_room([place for place in self._places if place.source == source], text)
        elif len(self._places) >= self._limit:
            most_first = sorted(self._places, key=lambda place: -self._held[place.source])
            self._make_room(most_first, f"{self._limit} {self._what} are open here")
        place = _Place(source, displaced)
        self._places[place] = None
        self._held[source] += 1
        try:
            yield
        finally:
            self._leave(place)

    def _make_room(self, places: list[_Place], text: str) -> None:
        """Take the oldest of these that can be taken."""
        for place in places:
            if place.displaced is not None:
                self._leave(place)
                place.displaced()
                return
        raise Refused(Refusal.BUSY, text)

    def _leave(self, place: _Place) -> None:
        """Safe to repeat: who was displaced has left already."""
        if place in self._places:
            del self._places[place]
            self._held[place.source] -= 1
            if not self._held[place.source]:
                del self._held[place.source]

"""Accepted connections that wait to be served: each source in turn, proven sources first. Pure.

A flood costs its own connections: while more arrive than are served, the source with the most loses
its oldest, before anything of it is read. So a connection of another source waits for one portion
for each source before it, however many connections they have. Sources that proved a lease within
`PROVEN_S` have most of each portion; the rest is for the others, so that a tenant can flood only
its own kind.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from corekit.aio.admission import Admission, AdmissionLimits, source_of

T = TypeVar("T")

#: A source stays proven for this long after the last proof of a lease's secret.
PROVEN_S = 300.0
#: Sources that are remembered as proven; above it the one whose proof is the oldest is forgotten.
PROVEN_MAX = 4096
#: Connections that are served together, and how many of them may be of proven sources.
PORTION, PORTION_PROVEN = 4, 3


class Arrivals(Generic[T]):
    """At most `limit` connections, each under a token of the caller's."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._proven: dict[str, float] = {}  # source → time of its last proof, oldest first
        self._first: dict[str, deque[T]] = {}  # of proven sources, in turn
        self._others: dict[str, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def arrived(self, token: T, address: str, now_s: float) -> T | None:
        """Add a connection; returns the one to close instead, if any. "": of a Unix socket."""
        source = source_of(address) if ":" in address else address
        is_first = not source or self._proven.get(source, -PROVEN_S) > now_s - PROVEN_S
        (self._first if is_first else self._others).setdefault(source, deque()).append(token)
        self._count += 1
        return self._dropped() if self._count > self._limit else None

    def _dropped(self) -> T:
        waiting = self._others or self._first
        return self._take(waiting, max(waiting, key=lambda name: len(waiting[name])))

    def portion(self) -> list[T]:
        """Take the connections to serve now."""
        found = [*self._turn(self._first, PORTION_PROVEN)]
        found += self._turn(self._others, PORTION - len(found))
        found += self._turn(self._first, PORTION - len(found))
        return found

    def _turn(self, waiting: dict[str, deque[T]], count: int) -> Iterator[T]:
        """One connection of each source in turn; sources that have more go to the end."""
        for _ in range(count):
            if not waiting:
                return
            source = next(iter(waiting))
            token = self._take(waiting, source)
            if source in waiting:
                waiting[source] = waiting.pop(source)
            yield token

    def _take(self, waiting: dict[str, deque[T]], source: str) -> T:
        token = waiting[source].popleft()
        if not waiting[source]:
            del waiting[source]
        self._count -= 1
        return token

    def proved(self, address: str, now_s: float) -> None:
        """Note that a client at the address has proved a lease's secret."""
        source = source_of(address) if ":" in address else address
        self._proven.pop(source, None)
        self._proven[source] = now_s
        if len(self._proven) > PROVEN_MAX:
            del self._proven[next(iter(self._proven))]


class Slots:
    """At most `limit` connections at once, and at most `per_source` from one source."""

    def __init__(self, limit: int, per_source: int) -> None:
        limits = AdmissionLimits(
            authenticated_max=0,
            reserved_max=0,
            unauthenticated_max=limit,
            unauthenticated_per_source_max=per_source,
        )
        self._admission: Admission[object] = Admission(limits)
        self._evict: dict[object, Callable[[], None]] = {}

    @contextlib.contextmanager
    def held(self, address: str, evict: Callable[[], None]) -> Iterator[None]:
        """One slot for the length of a block; `evict` is called when a newer one takes it."""
        token = object()
        source = source_of(address) if ":" in address else address
        self._evict[token] = evict
        if (evicted := self._admission.connected(token, source)) is not None:
            self._evict.pop(evicted)()
        try:
            yield
        finally:
            self._evict.pop(token, None)
            self._admission.disconnected(token)

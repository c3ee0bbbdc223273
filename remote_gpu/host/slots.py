"""Places that are counted, in all and for every source: no single peer takes them all."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from remote_gpu.wire.errors import Refusal, Refused


class Slots:
    """At most `limit` at once, of one source at most `per_source`."""

    def __init__(self, limit: int, per_source: int, what: str) -> None:
        self._limit = limit
        self._per_source = per_source
        self._what = what  # is counted, for people
        self._held: Counter[str] = Counter()
        self._all = 0

    @contextlib.contextmanager
    def held(self, source: str) -> Iterator[None]:
        """One place for the length of a block. Raises Refused(BUSY) when there is none."""
        if self._all >= self._limit:
            raise Refused(Refusal.BUSY, f"{self._limit} {self._what} are open here")
        if self._held[source] >= self._per_source:
            text = f"{self._per_source} {self._what} are open here from {source}"
            raise Refused(Refusal.BUSY, text)
        self._held[source] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._held[source] -= 1
            if not self._held[source]:
                del self._held[source]

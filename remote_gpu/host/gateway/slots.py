"""Slots of connections at the gateway: a flood evicts its own connections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from corekit.aio.admission import Admission, AdmissionLimits, source_of


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

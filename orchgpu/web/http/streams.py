"""The open streams of events, of changes and of logs: each key has a bounded number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orchgpu.web.http.sessions import Session
from orchgpu.web.model.places import Places

#: Of one key; above them its oldest one ends.
STREAMS_OF_KEY_MAX = 32
#: Of all; above them the oldest one ends of the key that has most.
STREAMS_MAX = 200


class Stream:
    """One open stream; who writes it looks whether it has to end."""

    def __init__(self) -> None:
        self.evicted = False


class Streams:
    """All open streams."""

    def __init__(self) -> None:
        self._places: Places[Stream] = Places(STREAMS_OF_KEY_MAX, STREAMS_MAX)

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def open(self, session: Session) -> Iterator[Stream]:
        """A place for one stream; an older one may have to end for it."""
        stream, party = Stream(), session.party
        gone = self._places.enter(party, stream)
        if gone is not None:
            gone.evicted = True
        session.streams += 1
        try:
            yield stream
        finally:
            session.streams -= 1
            self._places.leave(party, stream)

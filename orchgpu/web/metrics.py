"""The metrics of the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from corekit.metrics import catalogue
from corekit.metrics.exposition import family, single
from orchgpu.web.http.sessions import Sessions
from orchgpu.web.http.streams import Streams
from orchgpu.web.model.picture import Picture


@dataclass(slots=True)
class ConsoleMetrics:
    """Counts since the start, and what is open now."""

    picture: Picture
    sessions: Sessions
    streams: Streams
    requests: Counter[int] = field(default_factory=Counter)  #: by status

    def lines(self) -> Iterator[str]:
        """All lines of a scrape."""
        self.sessions.drop_ended()
        yield from single(catalogue.CONSOLE_SESSIONS, len(self.sessions))
        yield from single(catalogue.CONSOLE_STREAMS, len(self.streams))
        yield from single(catalogue.CONSOLE_BATCHES, self.picture.batches.number)
        counted = sorted(self.requests.items())
        samples = (((str(status),), float(count)) for status, count in counted)
        yield from family(catalogue.CONSOLE_REQUESTS, samples)
        yield from single(catalogue.CONSOLE_CONNECTED, int(self.picture.connected))

"""The metrics of the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from corekit.metrics import family, single
from orchgpu.web.http.sessions import Sessions, Streams
from orchgpu.web.model.picture import Picture


@dataclass(slots=True)
class ConsoleMetrics:
    """Counts since the start, and what is open now."""

    picture: Picture
    sessions: Sessions
    streams: Streams
    requests: Counter[int] = field(default_factory=Counter)  #: by status

    def lines(self) -> Iterator[str]:
        self.sessions.drop_ended()
        yield from single("orchgpu_console_sessions", len(self.sessions))
        yield from single("orchgpu_console_streams", len(self.streams))
        yield from single("orchgpu_console_batches_total", self.picture.batches.number)
        counted = sorted(self.requests.items())
        samples = (((str(status),), float(count)) for status, count in counted)
        yield from family("orchgpu_console_requests_total", samples)
        yield from single("orchgpu_console_scheduler_connected", int(self.picture.connected))

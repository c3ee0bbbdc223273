"""Output of functions for CloudWatch Logs: in memory, bounded, lost with the process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from corekit.values import Value

EVENTS_MAX = 10_000  #: of one stream; the oldest go first
STREAMS_MAX = 200  #: of one group; the oldest go first


class LogEvent(Value):
    """One line."""

    at_ms: int  #: since the epoch
    message: str
    number: int  #: rises within the store


@dataclass(slots=True)
class LogStore:
    """Log groups, their streams, and their lines."""

    _groups: dict[str, dict[str, deque[LogEvent]]] = field(default_factory=dict)
    _retention: dict[str, int] = field(default_factory=dict)  #: days, by group; kept, not applied
    _count: int = 0

    def create_group(self, group: str) -> bool:
        """False when it exists."""
        if group in self._groups:
            return False
        self._groups[group] = {}
        return True

    def delete_group(self, group: str) -> bool:
        """False when it does not exist."""
        self._retention.pop(group, None)
        return self._groups.pop(group, None) is not None

    def set_retention(self, group: str, days: int) -> None:
        """Kept to be shown; nothing expires."""
        self._retention[group] = days

    def retention(self, group: str) -> int | None:
        """Days, or None when it was never set."""
        return self._retention.get(group)

    def groups(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._groups)

    def create_stream(self, group: str, stream: str) -> bool:
        """Make a stream of a group that exists; False when it has one of that name."""
        streams = self._groups[group]
        if stream in streams:
            return False
        while len(streams) >= STREAMS_MAX:
            del streams[next(iter(streams))]
        streams[stream] = deque(maxlen=EVENTS_MAX)
        return True

    def append(self, group: str, stream: str, at_s: float, message: str) -> None:
        """One line; makes the group and the stream."""
        streams = self._groups.setdefault(group, {})
        if stream not in streams:
            self.create_stream(group, stream)
        self._count += 1
        event = LogEvent(at_ms=int(at_s * 1000), message=message, number=self._count)
        streams[stream].append(event)

    def streams(self, group: str) -> dict[str, deque[LogEvent]] | None:
        """The streams of a group, oldest first; None for an unknown group."""
        return self._groups.get(group)

"""Delivery of events and messages: at least once, in any order, sometimes late.

Sources: S3 user guide, "Amazon S3 Event Notifications" (at least once; typically seconds, sometimes
a minute or longer) and "Event message structure" (no order); SQS developer guide, "At-least-once
delivery" (a server that was not available at a receive or a delete gives its copy again) and
"Standard queues" (best-effort ordering).
"""

from __future__ import annotations

from collections import deque

from local_cloud.model.weather.stream import WeatherStream

#: A receive takes one of so many messages that are next.
_SHUFFLED = 10


class EventDelivery:
    """When the events of one change of an object arrive."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream

    def delays_s(self) -> tuple[float, ...]:
        """From the change to each delivery of its event."""
        repeats = self._stream.happens("event repeated", self._stream.weather.event_repeat_rate)
        return tuple(self._delay_s() for _ in range(2 if repeats else 1))

    def _delay_s(self) -> float:
        weather = self._stream.weather
        late = self._stream.happens("event late", weather.event_late_rate)
        return self._stream.delay_s("event", weather.event_late_s if late else weather.event_s)


class MessageDelivery:
    """The copies of messages in standard queues."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream

    def shuffle(self, ready: deque[str]) -> None:
        """Another message than the oldest may be the next."""
        if self._stream.weather.unordered and len(ready) > 1:
            ready.rotate(-self._stream.below("message order", min(len(ready), _SHUFFLED)))

    def repeat_s(self) -> float | None:
        """The time after which a received or deleted message can be received again, if ever."""
        weather = self._stream.weather
        if not self._stream.happens("message repeated", weather.message_repeat_rate):
            return None
        return self._stream.delay_s("message", weather.message_repeat_s)

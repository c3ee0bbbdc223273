"""`Propagation`: the times from which changes are known elsewhere."""

from __future__ import annotations

from local_cloud.model.weather.stream import WeatherStream
from local_cloud.model.weather.weather import Span


class Propagation:
    """Times by key: of a role and a service, of a queue, of a bucket."""

    def __init__(self, stream: WeatherStream, rule: str) -> None:
        self._stream = stream
        self._rule = rule
        self._known_at_s: dict[str, float] = {}

    def changed(self, now_s: float, key: str, span: Span) -> float:
        """Draw the time from which a change that is made now is known."""
        known_at_s = now_s + self._stream.delay_s(self._rule, span)
        if known_at_s > now_s:
            self._known_at_s[key] = known_at_s
        else:
            self._known_at_s.pop(key, None)
        return known_at_s

    def known(self, now_s: float, key: str) -> bool:
        """False before that time; counts the rule then."""
        if self.settled(now_s, key):
            return True
        self._stream.count(self._rule)
        return False

    def settled(self, now_s: float, key: str) -> bool:
        """The same without counting."""
        return now_s >= self._known_at_s.get(key, now_s)

    def pending(self, now_s: float) -> list[str]:
        """The keys whose change is not known yet, sorted."""
        return sorted(key for key, at_s in self._known_at_s.items() if now_s < at_s)

    def forget(self, key: str) -> None:
        """The thing was deleted."""
        self._known_at_s.pop(key, None)

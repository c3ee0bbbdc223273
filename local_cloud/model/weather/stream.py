"""`WeatherStream`: the draws of one weather from its seed, counted by rule."""

from __future__ import annotations

from corekit.ids import IdSource
from local_cloud.model.weather.weather import NO_WEATHER, Span, Weather


class WeatherStream:
    """One stream for each rule: the draws of one never change those of another."""

    def __init__(self, weather: Weather = NO_WEATHER) -> None:
        self.weather = weather
        self.counts: dict[str, int] = {}  #: how often each rule took effect
        self._ids = IdSource(f"weather/{weather.seed}")

    def happens(self, rule: str, rate: float) -> bool:
        """Whether the rule takes effect this time."""
        if rate <= 0 or self._ids.stream(rule).random() >= rate:
            return False
        self.count(rule)
        return True

    def delay_s(self, rule: str, span: Span) -> float:
        """A delay within the span, at this weather's scale."""
        if span[1] <= 0:
            return 0.0
        return self._ids.stream(rule).uniform(*span) * self.weather.scale

    def below(self, rule: str, count: int) -> int:
        """A number from 0 up to `count` - 1."""
        return self._ids.stream(rule).randrange(count)

    def scaled_s(self, time_s: float) -> float:
        """A fixed time at this weather's scale."""
        return time_s * self.weather.scale

    def count(self, rule: str) -> None:
        """The rule took effect."""
        self.counts[rule] = self.counts.get(rule, 0) + 1

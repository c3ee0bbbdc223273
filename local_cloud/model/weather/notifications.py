"""Notification rules that take effect late.

Source: S3 user guide, "Enabling and configuring event notifications" (the notification subresource:
a change usually takes about five minutes to take effect). Until then the previous rules deliver,
and what they do not name is lost; the configuration itself is shown at once.
"""

from __future__ import annotations

from local_cloud.model.s3.notifications import Rule
from local_cloud.model.weather.propagation import Propagation
from local_cloud.model.weather.stream import WeatherStream


class RulePropagation:
    """The rules in force of every bucket."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream
        self._changes = Propagation(stream, "notification rules late")
        self._before: dict[str, tuple[Rule, ...]] = {}

    def changed(self, now_s: float, bucket: str, before: tuple[Rule, ...]) -> None:
        """The configuration of a bucket is replaced; `before` is the old one."""
        self._before[bucket] = self.in_force(now_s, bucket, before)
        self._changes.changed(now_s, bucket, self._stream.weather.notification_s)

    def in_force(self, now_s: float, bucket: str, newest: tuple[Rule, ...]) -> tuple[Rule, ...]:
        """The rules by which events are delivered now."""
        return newest if self._changes.settled(now_s, bucket) else self._before[bucket]

    def pending(self, now_s: float) -> list[str]:
        """The buckets whose newest rules are not in force."""
        return self._changes.pending(now_s)

    def count(self) -> None:
        """An event went by other rules than the newest."""
        self._stream.count("notification rules late")

    def forget(self, bucket: str) -> None:
        """The bucket was deleted, or its rules are restored."""
        self._changes.forget(bucket)
        self._before.pop(bucket, None)

"""Queues: names that stay in use after a delete, attributes that are in force late.

Sources: SQS API reference, DeleteQueue and CreateQueue (60 s, QueueDeletedRecently) and
SetQueueAttributes (up to 60 s); terraform-provider-aws `sqs/queue.go` waits for both, and
`s3/bucket_notification.go` repeats "Unable to validate the following destination configurations".
"""

from __future__ import annotations

from local_cloud.model.errors import refused
from local_cloud.model.sqs.settings import QueueSettings
from local_cloud.model.weather.propagation import Propagation
from local_cloud.model.weather.stream import WeatherStream


class QueueChanges:
    """Deleted names, and settings that are not in force yet."""

    def __init__(self, stream: WeatherStream) -> None:
        self._stream = stream
        self._names = Propagation(stream, "queue deleted recently")
        self._settings = Propagation(stream, "queue attributes late")
        self._before: dict[str, QueueSettings] = {}

    def deleted(self, now_s: float, name: str) -> None:
        """The name stays in use for a minute."""
        wait_s = self._stream.weather.queue_deleted_s
        self._names.changed(now_s, name, (wait_s, wait_s))
        self._settings.forget(name)
        self._before.pop(name, None)

    def check_name(self, now_s: float, name: str) -> None:
        """Raises QueueDeletedRecently."""
        if not self._names.known(now_s, name):
            raise refused(
                "QueueDeletedRecently",
                "You must wait 60 seconds after deleting a queue before you can create another"
                " with the same name.",
            )

    def changed(self, now_s: float, name: str, before: QueueSettings) -> None:
        """Attributes are set; `before` are the old ones."""
        self._before[name] = self.in_force(now_s, name, before)
        self._settings.changed(now_s, name, self._stream.weather.queue_attributes_s)

    def in_force(self, now_s: float, name: str, newest: QueueSettings) -> QueueSettings:
        """The settings by which other services see the queue now."""
        return newest if self._settings.settled(now_s, name) else self._before[name]

    def late(self) -> None:
        """A call was decided by older attributes than the newest."""
        self._stream.count("queue attributes late")

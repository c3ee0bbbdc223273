"""All queues of the cloud: names and dead-letter redrive."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from corekit.decode import only_known
from corekit.ids import IdSource
from local_cloud.model.arns import Account, arn_name
from local_cloud.model.errors import not_implemented, refused
from local_cloud.model.recorder import NullRecorder, Recorder, part
from local_cloud.model.sqs.queue import Message, Queue
from local_cloud.model.sqs.settings import KNOWN_ATTRIBUTES, QueueSettings
from local_cloud.model.weather import Draws, Propagation


@dataclass(slots=True)
class Queues:
    """Queues by name, and the operations that concern more than one."""

    account: Account = field(default_factory=Account)
    ids: IdSource = field(default_factory=lambda: IdSource("queues"))
    recorder: Recorder = field(default_factory=NullRecorder)
    on_message: Callable[[Queue], None] = lambda _queue: None  #: a queue got a dead letter
    draws: Draws = field(default_factory=Draws)
    check_policy: Callable[[float, str], None] = lambda _now_s, _policy: None  #: of a new policy
    _deleted: Propagation[None] = field(init=False)
    _late: Propagation[QueueSettings] = field(init=False)
    _queues: dict[str, Queue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._deleted = Propagation(self.draws, "queue deleted recently")
        self._late = Propagation(self.draws, "queue attributes late")

    def create(
        self,
        now_s: float,
        name: str,
        attributes: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Queue:
        """Make a queue, or return the one of that name when the given attributes agree with it.

        Raises QueueAlreadyExists, QueueDeletedRecently, InvalidParameterValue, and what
        QueueSettings raises.
        """
        if name.endswith(".fifo"):
            raise not_implemented("a FIFO queue")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
            raise refused("InvalidParameterValue", "A name has 1 to 80 of A-Z, a-z, 0-9, - and _.")
        settings = QueueSettings().changed(attributes or {})
        existing = self._queues.get(name)
        if existing is not None:
            if existing.settings.changed(attributes or {}) != existing.settings:
                raise refused("QueueAlreadyExists", f"{name} exists with other attributes.")
            return existing
        self._deleted.check(now_s, name)
        self.check_policy(now_s, settings.policy)
        queue = self._new(now_s, name, settings, tags or {})
        self._late.changed(now_s, name, QueueSettings())
        queue.save()
        return queue

    def _new(
        self, now_s: float, name: str, settings: QueueSettings, tags: Mapping[str, str]
    ) -> Queue:
        queue = Queue(
            name=name,
            arn=self.account.queue_arn(name),
            created_at_s=now_s,
            modified_at_s=now_s,
            ids=self.ids,
            settings=settings,
            tags=dict(tags),
            recorder=self.recorder,
            draws=self.draws,
        )
        queue.dead_letter = lambda at_s, message: self._dead_letter(queue, at_s, message)
        self._queues[name] = queue
        return queue

    def restore(
        self, name: str, created_at_s: float, attributes: Mapping[str, str], tags: dict[str, str]
    ) -> Queue:
        """Take back a recorded queue, without its messages."""
        recorded = only_known(KNOWN_ATTRIBUTES, attributes, f"queue {name}")
        settings = QueueSettings().changed(recorded)
        return self._new(created_at_s, name, settings, tags)

    def _dead_letter(self, source: Queue, now_s: float, message: Message) -> bool:
        redrive = source.settings.redrive
        target = self.by_arn(redrive.dead_letter_arn) if redrive is not None else None
        if target is None or target is source:
            return False
        target.take_over(now_s, message, source.arn)
        self.on_message(target)
        return True

    def get(self, name: str) -> Queue:
        """The queue of that name. Raises QueueDoesNotExist."""
        queue = self._queues.get(name)
        if queue is None:
            raise refused("QueueDoesNotExist", "The specified queue does not exist.")
        return queue

    def by_arn(self, arn: str) -> Queue | None:
        """The queue of that ARN, or None."""
        queue = self._queues.get(arn_name(arn))
        return queue if queue is not None and queue.arn == arn else None

    def delete(self, now_s: float, name: str) -> None:
        """Delete the queue and its messages. Raises QueueDoesNotExist."""
        queue = self.get(name)
        queue.clear()
        del self._queues[name]
        self._deleted.changed(now_s, name, None)
        self._late.forget(name)
        self.recorder.drop(f"queue/{part(name)}")

    def set_attributes(self, now_s: float, name: str, attributes: Mapping[str, str]) -> None:
        """Change settings. Raises QueueDoesNotExist and what QueueSettings raises."""
        queue = self.get(name)
        settings = queue.settings.changed(attributes)
        self.check_policy(now_s, settings.policy)
        self._late.changed(now_s, name, queue.settings)
        queue.settings = settings
        queue.modified_at_s = now_s
        queue.save()

    def settings_in_force(self, now_s: float, queue: Queue) -> QueueSettings:
        """The settings that GetQueueAttributes and other services see now."""
        self._late.known(now_s, queue.name)
        return self._late.in_force(now_s, queue.name, queue.settings)

    def names(self, prefix: str = "") -> list[str]:
        """Names with the prefix, sorted."""
        return sorted(name for name in self._queues if name.startswith(prefix))

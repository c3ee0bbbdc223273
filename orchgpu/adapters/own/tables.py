"""Queues and bucket rules as deploy and commands use them, by one connection."""

from __future__ import annotations

import time
from collections.abc import Sequence

from corekit.decode import decode_json_known, encode_json
from fdl.plan.resources import Notification, QueueResource
from orchgpu.adapters.own import statements
from orchgpu.adapters.own.database import Database
from orchgpu.adapters.own.events import name_of
from orchgpu.adapters.own.statements import message_of
from orchgpu.cloud_services import MessageCounts
from orchgpu.ports import Message

#: Between two looks of a command that waits for a message.
_LOOK_S = 0.1


class Queues:
    """The queues of one database. A queue's URL is its name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def url(self, name: str) -> str | None:
        """The URL; None for a queue that does not exist."""
        return None if self.observe(name) is None else name

    def observe(self, name: str) -> tuple[QueueResource, str] | None:
        rows = self._database.rows(statements.READ_QUEUE, {"queue": name})
        if not rows:
            return None
        queue, _ = decode_json_known(QueueResource, str(rows[0][0]).encode(), f"queue {name}")
        return queue, name

    def put(self, queue: QueueResource) -> None:
        """Make or change it; its messages stay."""
        self._database.make_tables()
        values = {
            "name": queue.name,
            "retention_s": queue.retention_s,
            "dead_letter": name_of(queue.dead_letter_arn),
            "receives_max": queue.receives_max,
            "definition": encode_json(queue).decode(),
        }
        self._database.rows(statements.PUT_QUEUE, values)

    def delete(self, name: str) -> None:
        """Delete it with its messages; an absent queue is ignored."""
        self._database.rows(statements.DELETE_QUEUE, {"queue": name})

    def messages(self, name: str) -> int:
        """The number of messages, hidden ones too; 0 for an absent queue."""
        rows = self._database.rows(statements.COUNT, {"queue": name})
        return sum(int(str(number)) for number in rows[0]) if rows else 0

    def count(self, name: str) -> MessageCounts:
        """Raises NOT_FOUND."""
        rows = self._database.rows(statements.COUNT, {"queue": name})
        if not rows:
            raise statements.no_queue(name)
        visible, hidden = (int(str(number)) for number in rows[0])
        return MessageCounts(visible=visible, in_flight=hidden, delayed=0)

    def receive(
        self, name: str, *, count_max: int, hidden_s: float, wait_s: float
    ) -> Sequence[Message]:
        """As `CloudServices.receive`."""
        ends_s = time.monotonic() + wait_s
        values = statements.received(name, count_max, hidden_s)
        while True:
            rows = self._database.rows(statements.RECEIVE, values)
            if rows:
                return [message_of(row) for row in rows]
            self.count(name)  # an absent queue is not an empty one
            if time.monotonic() >= ends_s:
                return ()
            time.sleep(_LOOK_S)

    def send(self, name: str, body: str, traceparent: str = "") -> None:
        """Raises NOT_FOUND."""
        ((count, _),) = self._database.rows(
            statements.SEND, statements.sent(name, [body], traceparent)
        )
        if not count:
            raise statements.no_queue(name)

    def hide(self, name: str, receipt_handles: Sequence[str], hidden_s: float) -> None:
        self._database.rows(statements.HIDE, statements.held(name, receipt_handles, hidden_s))

    def remove(self, name: str, receipt_handles: Sequence[str]) -> None:
        self._database.rows(statements.DELETE, statements.held(name, receipt_handles))


class Rules:
    """The rules by which uploads reach queues: the place of a bucket's own notifications.

    The listener applies them to the events of the store's webhook.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def observe(self, bucket: str) -> tuple[Notification, ...]:
        """Every rule of a bucket."""
        rows = self._database.rows(statements.READ_RULES, {"bucket": bucket})
        return tuple(rule_of(row[0]) for row in rows)

    def put(self, rule: Notification) -> None:
        self._database.make_tables()
        definition = encode_json(rule).decode()
        values = {"bucket": rule.bucket, "id": rule.id, "definition": definition}
        self._database.rows(statements.PUT_RULE, values)

    def delete(self, rule: Notification, *along: Notification) -> None:
        """Remove rules of one bucket; absent ones are ignored."""
        ids = [rule.id, *(other.id for other in along)]
        self._database.rows(statements.DELETE_RULE, {"bucket": rule.bucket, "ids": ids})


def rule_of(definition: object) -> Notification:
    """A rule as the table has it."""
    return decode_json_known(Notification, str(definition).encode(), "a bucket's rule")[0]

"""The tables of queues and of bucket rules in PostgreSQL, and every statement about them.

A message is one row. Receiving hides it (`visible_at`) and counts (`receives`); the count is part
of the receipt handle, so that a handle is stale once another receiver has the message. Rows that a
concurrent receive has locked are skipped: no two receivers wait for each other, or get one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.ports import Message

#: Notified with the name of a queue that has visible messages.
CHANNEL: Final = "orchgpu_messages"
#: One receive returns at most so many, as of SQS.
COUNT_MAX = 10

SCHEMA: LiteralString = """
CREATE TABLE IF NOT EXISTS orchgpu_queues (
  name text PRIMARY KEY,
  retention_s bigint NOT NULL,
  dead_letter text NOT NULL,
  receives_max int NOT NULL,
  definition text NOT NULL
);
CREATE TABLE IF NOT EXISTS orchgpu_messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue text NOT NULL REFERENCES orchgpu_queues ON DELETE CASCADE,
  body text NOT NULL,
  traceparent text NOT NULL,
  sent_at timestamptz NOT NULL DEFAULT now(),
  visible_at timestamptz NOT NULL DEFAULT now(),
  receives int NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS orchgpu_messages_due ON orchgpu_messages (queue, visible_at);
CREATE TABLE IF NOT EXISTS orchgpu_rules (
  bucket text NOT NULL,
  id text NOT NULL,
  definition text NOT NULL,
  PRIMARY KEY (bucket, id)
);
"""

SEND: LiteralString = """
WITH sent AS (
  INSERT INTO orchgpu_messages (queue, body, traceparent)
  SELECT q.name, b.body, %(traceparent)s
  FROM orchgpu_queues q, unnest(%(bodies)s::text[]) WITH ORDINALITY AS b (body, n)
  WHERE q.name = %(queue)s ORDER BY b.n
  RETURNING 1)
SELECT count(*), CASE WHEN count(*) > 0 THEN pg_notify(%(channel)s, %(queue)s)::text END FROM sent
"""

#: A message that was received too often moves to the queue of dead letters, where that exists.
RECEIVE: LiteralString = """
WITH due AS (
  SELECT m.id,
         q.receives_max > 0 AND m.receives >= q.receives_max AND d.name IS NOT NULL AS dead,
         q.dead_letter
  FROM orchgpu_messages m
  JOIN orchgpu_queues q ON q.name = m.queue
  LEFT JOIN orchgpu_queues d ON d.name = q.dead_letter
  WHERE m.queue = %(queue)s AND m.visible_at <= now()
  ORDER BY m.visible_at, m.id
  LIMIT %(count)s
  FOR UPDATE OF m SKIP LOCKED),
taken AS (
  UPDATE orchgpu_messages m SET
    queue = CASE WHEN due.dead THEN due.dead_letter ELSE m.queue END,
    receives = CASE WHEN due.dead THEN 0 ELSE m.receives + 1 END,
    visible_at = CASE WHEN due.dead THEN now() ELSE now() + make_interval(secs => %(hidden_s)s) END
  FROM due WHERE due.id = m.id
  RETURNING m.id, m.receives, m.body, extract(epoch FROM m.sent_at), m.traceparent, due.dead)
SELECT * FROM taken WHERE NOT dead ORDER BY id
"""

#: No row: the queue does not exist. NULL: it is empty.
NEXT_VISIBLE_S: LiteralString = """
SELECT (SELECT extract(epoch FROM min(m.visible_at) - now())
        FROM orchgpu_messages m WHERE m.queue = q.name)
FROM orchgpu_queues q WHERE q.name = %(queue)s
"""

DELETE: LiteralString = """
DELETE FROM orchgpu_messages m
USING unnest(%(ids)s::bigint[], %(receives)s::int[]) AS h (id, receives)
WHERE m.queue = %(queue)s AND m.id = h.id AND m.receives = h.receives
"""

HIDE: LiteralString = """
WITH changed AS (
  UPDATE orchgpu_messages m SET visible_at = now() + make_interval(secs => %(hidden_s)s)
  FROM unnest(%(ids)s::bigint[], %(receives)s::int[]) AS h (id, receives)
  WHERE m.queue = %(queue)s AND m.id = h.id AND m.receives = h.receives
  RETURNING 1)
SELECT CASE WHEN count(*) > 0 AND %(hidden_s)s <= 0
       THEN pg_notify(%(channel)s, %(queue)s)::text END FROM changed
"""

#: Visible, hidden. No row: the queue does not exist.
COUNT: LiteralString = """
SELECT count(m.id) FILTER (WHERE m.visible_at <= now()),
       count(m.id) FILTER (WHERE m.visible_at > now())
FROM orchgpu_queues q LEFT JOIN orchgpu_messages m ON m.queue = q.name
WHERE q.name = %(queue)s GROUP BY q.name
"""

#: Of every queue; SQS, too, deletes a message by its age alone, also a hidden one.
EXPIRE: LiteralString = """
DELETE FROM orchgpu_messages m USING orchgpu_queues q
WHERE q.name = m.queue AND m.sent_at < now() - make_interval(secs => q.retention_s)
"""

PUT_QUEUE: LiteralString = """
INSERT INTO orchgpu_queues (name, retention_s, dead_letter, receives_max, definition)
VALUES (%(name)s, %(retention_s)s, %(dead_letter)s, %(receives_max)s, %(definition)s)
ON CONFLICT (name) DO UPDATE SET retention_s = excluded.retention_s,
  dead_letter = excluded.dead_letter, receives_max = excluded.receives_max,
  definition = excluded.definition
"""
READ_QUEUE: LiteralString = "SELECT definition FROM orchgpu_queues WHERE name = %(queue)s"
DELETE_QUEUE: LiteralString = "DELETE FROM orchgpu_queues WHERE name = %(queue)s"

PUT_RULE: LiteralString = """
INSERT INTO orchgpu_rules (bucket, id, definition) VALUES (%(bucket)s, %(id)s, %(definition)s)
ON CONFLICT (bucket, id) DO UPDATE SET definition = excluded.definition
"""
READ_RULES: LiteralString = """
SELECT definition FROM orchgpu_rules WHERE bucket = %(bucket)s ORDER BY id
"""
DELETE_RULE: LiteralString = (
    "DELETE FROM orchgpu_rules WHERE bucket = %(bucket)s AND id = ANY(%(ids)s)"
)


def sent(queue: str, bodies: Sequence[str], traceparent: str) -> dict[str, object]:
    """The parameters of `SEND`. Raises INVALID for what PostgreSQL, like SQS, cannot keep."""
    if any("\0" in body for body in bodies):
        raise invalid(f"queue {queue}: a message cannot contain the character U+0000")
    return {
        "queue": queue,
        "bodies": list(bodies),
        "traceparent": traceparent,
        "channel": CHANNEL,
    }


def received(queue: str, count_max: int, hidden_s: float) -> dict[str, object]:
    """The parameters of `RECEIVE`."""
    return {"queue": queue, "count": max(1, min(count_max, COUNT_MAX)), "hidden_s": hidden_s}


def held(queue: str, receipt_handles: Sequence[str], hidden_s: float = 0.0) -> dict[str, object]:
    """The parameters of `DELETE` and `HIDE`; what is not a handle is left out, as a stale one.

    Rows are locked in the order of ids, so that two calls do not wait for each other.
    """
    pairs = sorted(pair for pair in map(_pair, receipt_handles) if pair is not None)
    return {
        "queue": queue,
        "ids": [number for number, _ in pairs],
        "receives": [receives for _, receives in pairs],
        "hidden_s": hidden_s,
        "channel": CHANNEL,
    }


def _pair(receipt_handle: str) -> tuple[int, int] | None:
    number, _, receives = receipt_handle.partition(":")
    if not (number.isdecimal() and receives.isdecimal()):
        return None
    pair = int(number), int(receives)
    return pair if pair[0] < 2**63 and pair[1] < 2**31 else None


def message_of(row: Sequence[object]) -> Message:
    """A row of `RECEIVE`."""
    number, receives, body, sent_at_s, traceparent = row[:5]
    return Message(
        id=str(number),
        receipt_handle=f"{number}:{receives}",
        body=str(body),
        sent_at_s=float(str(sent_at_s)),
        traceparent=str(traceparent),
    )


def no_queue(queue: str) -> AppError:
    return AppError(
        ErrorCode.NOT_FOUND, f"queue {queue!r} does not exist: `orchgpu deploy` makes it"
    )

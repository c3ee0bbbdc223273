"""`JobQueue` over PostgreSQL. A queue's URL is its name in the database of `ORCHGPU_QUEUES`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import psycopg
from psycopg import sql

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from orchgpu.adapters.own import statements
from orchgpu.adapters.own.database import Pool
from orchgpu.adapters.own.statements import CHANNEL, message_of
from orchgpu.ports import Message

logger = logging.getLogger(__name__)

#: The shortest pause between two looks: another receive may have locked what is visible.
LOOK_S = 0.02
#: Between two looks of a parked receive while no notification can come, and of the connection that
#: listens for them.
BLIND_LOOK_S = 1.0
#: Old messages are deleted this often.
EXPIRE_EVERY_S = 60.0


class PostgresQueue:
    """A parked receive holds no connection: one connection listens for all of them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._parked: dict[str, set[asyncio.Event]] = {}  #: by queue
        self._listens = False

    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        values = statements.received(queue_url, count_max, visibility_s)
        ends_s = asyncio.get_running_loop().time() + wait_s
        arrival = asyncio.Event()
        parked = self._parked.setdefault(queue_url, set())
        parked.add(arrival)
        try:
            while True:
                arrival.clear()
                rows = await self.pool.rows(statements.RECEIVE, values)
                if rows:
                    return [message_of(row) for row in rows]
                next_s = await self._next_visible_s(queue_url)
                left_s = ends_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return ()
                await self._arrived(arrival, min(left_s, next_s))
        finally:
            parked.discard(arrival)
            if not parked:
                self._parked.pop(queue_url, None)

    async def _next_visible_s(self, queue_url: str) -> float:
        """Seconds until a message of the queue becomes visible by itself. Raises NOT_FOUND."""
        rows = await self.pool.rows(statements.NEXT_VISIBLE_S, {"queue": queue_url})
        if not rows:
            raise statements.no_queue(queue_url)
        next_s = rows[0][0]
        return float("inf") if next_s is None else max(LOOK_S, float(str(next_s)))

    async def _arrived(self, arrival: asyncio.Event, within_s: float) -> None:
        within_s = within_s if self._listens else min(within_s, BLIND_LOOK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await arrival.wait()

    async def delete(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        await self.pool.rows(statements.DELETE, statements.held(queue_url, receipt_handles))

    async def set_visibility(
        self, queue_url: str, receipt_handles: Sequence[str], visibility_s: float
    ) -> None:
        values = statements.held(queue_url, receipt_handles, visibility_s)
        await self.pool.rows(statements.HIDE, values)

    async def send(self, queue_url: str, bodies: Sequence[str], *, traceparent: str = "") -> None:
        if not bodies:
            return
        values = statements.sent(queue_url, bodies, traceparent)
        ((count, _),) = await self.pool.rows(statements.SEND, values)
        if not count:
            raise statements.no_queue(queue_url)

    async def backlog(self, queue_url: str) -> int:
        rows = await self.pool.rows(statements.COUNT, {"queue": queue_url})
        if not rows:
            raise statements.no_queue(queue_url)
        return int(str(rows[0][0]))

    # ------------------------------------------------------------------ notifications

    async def listen(self) -> None:
        """Wake parked receives when messages come; without end. A lost connection is opened again,
        and until then they look every `BLIND_LOOK_S`."""
        while True:
            try:
                await self._listen()
            except (AppError, psycopg.Error, OSError) as error:
                text = "notifications of queues are lost: %s"
                logger.warning(text, error, extra={"event": "queue_notifications_lost"})
            finally:
                self._listens = False
                self._wake_all()
            await asyncio.sleep(BLIND_LOOK_S)

    async def _listen(self) -> None:
        connection = await self.pool.connect()
        try:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
            self._listens = True
            self._wake_all()  # what was sent before is not notified
            async for notice in connection.notifies():
                self._wake(notice.payload)
        finally:
            await connection.close()

    def _wake(self, queue_url: str) -> None:
        for arrival in self._parked.get(queue_url, ()):
            arrival.set()

    def _wake_all(self) -> None:
        for queue_url in self._parked:
            self._wake(queue_url)

    async def expire(self) -> None:
        """Delete messages older than their queue keeps them; without end."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                await self.pool.rows(statements.EXPIRE)
            except AppError as error:
                text = "old messages were not deleted: %s"
                logger.warning(text, error.message, extra={"event": "expiry_failed"})


@contextlib.asynccontextmanager
async def open_queue(conninfo: str) -> AsyncIterator[PostgresQueue]:
    """The queues of a database. Entering raises AppError when it refuses access."""
    pool = Pool(conninfo)
    queue = PostgresQueue(pool)
    try:
        await pool.rows("SELECT 1")
        async with Nursery("queues") as nursery:
            nursery.start_loop(queue.listen, "listen")
            nursery.start_loop(queue.expire, "expire")
            yield queue
    finally:
        await pool.close()

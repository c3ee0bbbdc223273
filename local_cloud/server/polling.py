"""Long polling: receivers wait until a message is visible, and are woken when one is.

Each wake-up goes to one waiter; one that finds more messages wakes the next. A waiter whose client
left (its handler is cancelled) passes its wake-up on, so no message goes to a dead connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from local_cloud.model.sqs.queue import Queue


class Pollers:
    """The waiting receivers of all queues."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def wait(self, queue: Queue, timeout_s: float) -> None:
        """Return when the queue may have a visible message, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.setdefault(queue.name, deque()).append(future)
        expiry = loop.call_later(timeout_s, _resolve, future)
        self.touched(queue)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake(queue)
            raise
        finally:
            expiry.cancel()
            self._leave(queue.name, future)

    def wake(self, queue: Queue) -> None:
        """A message became visible: wake one waiter."""
        for future in self._waiters.get(queue.name, ()):
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self, name: str) -> None:
        """Wake all waiters of a queue that changed as a whole (deleted)."""
        for future in self._waiters.get(name, ()):
            _resolve(future)

    def touched(self, queue: Queue) -> None:
        """A deadline of the queue may have changed: wake a waiter when the next one passes."""
        timer = self._timers.pop(queue.name, None)
        if timer is not None:
            timer.cancel()
        at_s = queue.next_visible_at_s()
        if queue.has_visible(self._now_s()):
            self.wake(queue)
        elif at_s is not None and self._waiters.get(queue.name):
            delay_s = max(at_s - self._now_s(), 0.0) + 0.001  # not a hair too early
            loop = asyncio.get_running_loop()
            self._timers[queue.name] = loop.call_later(delay_s, self.touched, queue)

    def close(self) -> None:
        """Let every waiter go with an empty answer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for name in list(self._waiters):
            self.wake_all(name)

    def _leave(self, name: str, future: asyncio.Future[None]) -> None:
        waiters = self._waiters[name]
        waiters.remove(future)
        if not waiters:
            del self._waiters[name]
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

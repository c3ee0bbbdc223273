"""Wake-ups: messages to the queues of orchestrators that are away and have something to do.

The message is `{"orchgpu": {"wake": {"job": …}}}`. It is sent once the change is durable; it may
come twice, or be lost with this program: the scan for jobs without an owner finds the job then.
The journal waits for no message.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from itertools import islice

from corekit.aio.backoff import Backoff
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from gpu_scheduler.core import actions as do

logger = logging.getLogger(__name__)

#: Sends messages, at most `BATCH_MAX`, to the queue of a name. Blocks; raises AppError. A
#: repetition may send some twice.
Sender = Callable[[str, Sequence[str]], None]

BATCH_MAX = 10
#: Jobs whose wake-ups wait for their receiver; more are dropped, oldest first.
PENDING_MAX = 100_000
_PLUGINS = ("orchgpu.wakers", "gpu_scheduler.daemon.wakers", "open_sender")


def sender_of(address: str) -> Sender:
    """The sender of `SCHEME:ADDRESS`, such as `sqs:URL`. Raises INVALID, NOT_FOUND."""
    scheme, colon, where = address.partition(":")
    points = find_plugins(*_PLUGINS)
    point = points.get(scheme)
    if point is None or not colon or not where:
        known = sorted(points)
        text = f"--wake {address}: expected {known[0]}:ADDRESS"
        raise invalid(text + one_of_known(scheme, known))
    try:
        sender: Sender = point.load()(where)
    except ImportError as error:
        text = f"--wake: {scheme}: needs a library that is not installed ({error.name})"
        raise AppError(ErrorCode.NOT_FOUND, text) from None
    return sender


class Waker:
    """Sends the wake-ups of the core in the background."""

    def __init__(self, send: Sender, budget: Budget) -> None:
        self._send = send
        self._backoff = Backoff(budget.reconnect_base_s, budget.reconnect_s_max)
        self._pending: dict[str, str] = {}  #: job → queue
        self._some = asyncio.Event()

    def wake(self, action: do.Wake) -> None:
        """Send a wake-up soon; one that is not sent yet serves for both."""
        self._pending.setdefault(action.holder, action.queue)
        if len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        self._some.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._some.wait()
            queue = next(iter(self._pending.values()))
            alike = (job for job, its in self._pending.items() if its == queue)
            jobs = list(islice(alike, BATCH_MAX))
            try:
                await asyncio.to_thread(self._send, queue, [_message(job) for job in jobs])
            except AppError as error:
                pause_s = self._backoff.next_s()
                text = "wake-ups wait, %d of them; the next try is in %.1f s: %s"
                extra = {"event": "wake_failed"}
                logger.warning(text, len(self._pending), pause_s, error.message, extra=extra)
                await asyncio.sleep(pause_s)
                continue
            self._backoff.reset()
            for job in jobs:
                self._pending.pop(job, None)
            if not self._pending:
                self._some.clear()


def _message(job: str) -> str:
    return json.dumps({"orchgpu": {"wake": {"job": job}}})

"""Wake-ups: messages to the queues of orchestrators that are away and have something to do.

The message is `{"orchgpu": {"wake": {"job": …}}}`. It is sent once the change is durable; it may
come twice, or be lost with this program: the scan for jobs without an owner finds the job then.
The journal waits for no message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from corekit.aio.backoff import Backoff
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from gpu_scheduler.core import actions as do

logger = logging.getLogger(__name__)

#: Sends messages, at most `BATCH_MAX`, to the queue of a name. Blocks; raises AppError, NOT_FOUND
#: when there is no such queue. A repetition may send some twice.
Sender = Callable[[str, Sequence[str]], None]

BATCH_MAX = 10
#: Jobs whose wake-ups wait for their receiver; more are dropped, oldest of a queue first.
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


@dataclass(slots=True)
class _Queue:
    """The wake-ups for one queue."""

    backoff: Backoff
    due_s: float  #: time of the next try
    jobs: dict[str, float] = field(default_factory=dict)  #: with the time of each, oldest first


class Waker:
    """Sends the wake-ups of the core in the background.

    A queue that fails is tried again later, and the others go on. A wake-up is dropped when its
    queue does not exist, and after `accept_away_s`: its grant has passed on by then.
    """

    def __init__(self, send: Sender, budget: Budget) -> None:
        self._send = send
        self._budget = budget
        self._queues: dict[str, _Queue] = {}  #: those that wake-ups wait for
        self._new = asyncio.Event()

    def wake(self, action: do.Wake) -> None:
        """Send a wake-up soon; one that is not sent yet serves for both."""
        now_s = time.monotonic()
        queue = self._queues.get(action.queue)
        if queue is None:
            backoff = Backoff(self._budget.reconnect_base_s, self._budget.reconnect_s_max)
            queue = self._queues[action.queue] = _Queue(backoff, now_s)
        queue.jobs.setdefault(action.holder, now_s)
        if sum(len(one.jobs) for one in self._queues.values()) > PENDING_MAX:
            longest = max(self._queues.values(), key=lambda one: len(one.jobs)).jobs
            del longest[next(iter(longest))]
        self._new.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            self._new.clear()
            due = min(self._queues.items(), key=lambda one: one[1].due_s, default=None)
            if due is not None and due[1].due_s <= time.monotonic():
                await self._serve(*due)
                continue
            pause_s = None if due is None else due[1].due_s - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._new.wait()

    async def _serve(self, name: str, queue: _Queue) -> None:
        """One try for one queue."""
        oldest_s = time.monotonic() - self._budget.accept_away_s
        queue.jobs = {job: at_s for job, at_s in queue.jobs.items() if at_s >= oldest_s}
        sent = dict(islice(queue.jobs.items(), BATCH_MAX))
        for job in sent:
            del queue.jobs[job]  # what changes from now on needs a wake-up of its own
        try:
            if sent:
                await asyncio.to_thread(self._send, name, [_message(job) for job in sent])
            queue.backoff.reset()
            queue.due_s = time.monotonic()
        except AppError as error:
            pause_s = queue.backoff.next_s()
            queue.due_s = time.monotonic() + pause_s
            queue.jobs = {**sent, **queue.jobs} if error.code is not ErrorCode.NOT_FOUND else {}
            text = "wake-ups for %s failed, %d wait; the next try is in %.1f s: %s"
            extra = {"event": "wake_failed"}
            logger.warning(text, name, len(queue.jobs), pause_s, error.message, extra=extra)
        if not queue.jobs:
            del self._queues[name]


def _message(job: str) -> str:
    return json.dumps({"orchgpu": {"wake": {"job": job}}})

"""A visit: an orchestrator that lives for some messages, and leaves their jobs when nothing is due.

It is the same machine with the same effects as `loops.Replica`, without its loops: the caller has
the messages, the scheduler wakes the next visit (`hand_back` with `away`), and a job's own message
is its timer: it stays in its queue, hidden, until the machine deletes it last, as everywhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from corekit.ids import JobId
from corekit.values import Value
from gpu_scheduler.model import Step
from gpu_scheduler.protocol import ops
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.completion import read_completion
from orchgpu.core.function import Function
from orchgpu.core.job import AT_REST, Job, Phase
from orchgpu.ports import Message
from orchgpu.replica.acting import Acting, tolerated
from orchgpu.replica.actions.handing_back import NOT_AWAY

logger = logging.getLogger(__name__)


class Arrival(Value):
    """A message that Lambda received."""

    queue: str  #: the name of its queue
    message: Message


class Visit(Acting):
    """One session: `begin`, then `serve` once, and `search` with the time that is left."""

    cut = False  #: it ran out of time, and handed back what was not done
    _ends_s = 0.0  #: by the loop's clock

    async def begin(self) -> None:
        """Read what is deployed. Raises AppError."""
        self._functions = dict(await self._registry.functions())
        self._machine.set_functions(self._functions)
        self._begin()
        await self._learn_hosts()

    async def serve(
        self, arrivals: Sequence[Arrival], *, within_s: float, sweep: bool = False
    ) -> list[str]:
        """Do all that these messages lead to; the ids of those that stay in their queues.

        `sweep`: also for jobs without an owner. After `within_s` what is not done is handed back,
        which takes at most `drain_s`.
        """
        stay = [arrival.message.id for arrival in arrivals]
        self._ends_s = asyncio.get_running_loop().time() + within_s
        try:
            async with asyncio.timeout_at(self._ends_s):
                for arrival in arrivals:
                    if await self._arrived(arrival):
                        stay.remove(arrival.message.id)
                if sweep:
                    await self._adopt()
                await self._until(self._rests)
                self._driver.submit(on.LeaveRequested(**self._now()))
                await self._until(lambda job: job.phase is Phase.ADOPTING)
        except TimeoutError:
            self.cut = True
            logger.warning("the visit ends early", extra={"event": "visit_cut"})
            await self.drain()
        return stay

    async def search(self) -> None:
        """Search for uploads whose events were lost, until the time of `serve` is over."""
        self._reconciler.load(self._functions)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_s):
                await self._reconciler.run_due()

    # ------------------------------------------------------------------ messages

    async def _arrived(self, arrival: Arrival) -> bool:
        """Handle one message; False: it stays in its queue."""
        for function in self._functions.values():
            if arrival.queue == _name(function.queue_url):
                self._submit_message(function, arrival.message)
                return False  # the machine deletes it
            if arrival.queue == _name(function.completion_url):
                return await tolerated(self._completed(function, arrival.message)) is True
        text = "a message of the queue %s, which is of no deployed function"
        logger.warning(text, arrival.queue, extra={"event": "visit_foreign"})
        return False

    async def _completed(self, function: Function, message: Message) -> bool:
        job = _woken(message.body)
        if job is not None:
            await self._take_up(job)  # else another session acts for it already
            return True
        notice = self._runs.notices.take(function, message)
        if notice is not None:
            await notice  # it deletes or hides its message
            return False
        for about in read_completion(message.body, function, self._now()):
            event: on.Event | None = about if isinstance(about, on.Event) else None
            if isinstance(about, do.Action):
                work = self._performer.perform(about)
                event = None if work is None else await work
            if isinstance(event, on.CallFailed):
                return False
            if not isinstance(event, on.JobEvent) or isinstance(event, on.AttemptStarted):
                continue
            if not await self._take_up(event.job):
                handles, again_s = [message.receipt_handle], self._budget.busy_again_s
                await self._queue.set_visibility(function.completion_url, handles, again_s)
                return False
            self._submit(event)
        return True

    async def _take_up(self, job: str) -> bool:
        """Adopt a job, if there is something to adopt; False: another session acts for it."""
        if job in self._machine.jobs:
            return True
        record = (await self._scheduler.ask(ops.RecordOf(holder=JobId(job)))).record
        if record is None or record.step is Step.ENDED:
            return True
        if not record.is_open:
            return False
        name = record.block.get("function")
        if isinstance(name, str) and name in self._functions:
            found = on.Orphaned(**self._now(), job=job, function=name, record=record)
            self._driver.submit(found)
            await self._driver.drained()
        return True

    # ------------------------------------------------------------------ its end

    async def _until(self, is_so: Callable[[Job], bool]) -> None:
        """Wait until nothing runs, and it is so of all jobs in hand."""
        while True:
            await self._driver.drained()
            self._progress.clear()
            if all(is_so(job) for job in self._machine.jobs.values()):
                return
            await self._progress.wait()

    def _rests(self, job: Job) -> bool:
        """Nothing is due for it soon. A pause before an adoption may be long."""
        due_s = self._performer.due_in_s(job.id, NOT_AWAY)
        soon = due_s is not None and due_s <= self._budget.visit_stay_s
        if job.phase is Phase.ADOPTING:
            return due_s is not None and not soon
        return job.phase in AT_REST and not soon


def _name(queue_url: str) -> str:
    return queue_url.rpartition("/")[2]


def _woken(body: str) -> str | None:
    """The job that a wake-up of the scheduler names (`gpu_scheduler/daemon/waker.py`)."""
    try:
        job = json.loads(body)["orchgpu"]["wake"]["job"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return job if isinstance(job, str) else None

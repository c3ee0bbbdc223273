"""One replica: loops that bring events in, the driver that decides, timers, and the drain.

receivers (one per function)      ─▶ MessageReceived
completion receivers              ─▶ ResultNoticed, FunctionFailed
scheduler pushes                  ─▶ AttemptGranted, LeaseChanged, ReceiptHandleRenewed, …
look for orphans                  ─▶ Orphaned
timers                            ─▶ TimerFired
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from corekit.aio.clock import Clock
from corekit.aio.driver import Driver, NoJournal
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.protocol import ops
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.attempt import NEXT_ATTEMPT
from orchgpu.core.completion import InvocationFailed, ObjectWasWritten, read_completion
from orchgpu.core.function import Function
from orchgpu.core.job import Phase
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.window import Window
from orchgpu.job_timing import Story
from orchgpu.performer import FAULTS, Performer
from orchgpu.ports import JobQueue, Message, Registry, Scheduler
from orchgpu.pushes import Clocks, event_of_push

logger = logging.getLogger(__name__)

#: Jobs received beyond those running: enough that a freed device never waits for a receive.
WINDOW_PER_DEVICE = 2
WINDOW_MIN = 2
WINDOW_MAX = 1000
ORPHANS_PER_LOOK = 100
#: After events were handed in, before the next poll: preparing one is milliseconds of processor
#: time, and the calls that a job waits for come first. Up to 10 messages come with each poll.
AFTER_EVENTS_S = 0.02
#: Notices are deleted this much later, many at once; what they told comes first.
FORGET_NOTICES_S = 0.1
#: Phases that a drain waits for: they end by themselves, in moments.
_SOON_OVER = frozenset(
    {
        Phase.ACCEPTING,
        Phase.STAGING,
        Phase.RECORDING,
        Phase.CHECKING,
        Phase.EXPLAINING,
        Phase.FAILING,
        Phase.CONCLUDING,
        Phase.DEAD_LETTERING,
        Phase.FINISHING,
        Phase.DELETING,
    }
)


class Replica:
    """Everything one orchestrator process does. `run` returns after `drain` is done."""

    def __init__(
        self,
        *,
        machine: OrchestratorMachine,
        performer: Performer,
        queue: JobQueue,
        scheduler: Scheduler,
        registry: Registry,
        clock: Clock,
        budget: Budget,
        nursery: Nursery,
    ) -> None:
        self._machine = machine
        self._performer = performer
        self._queue = queue
        self._scheduler = scheduler
        self._registry = registry
        self._clock = clock
        self._budget = budget
        self._nursery = nursery
        self._driver = Driver(machine, NoJournal[None](), self._perform, nursery)
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._functions: dict[str, Function] = {}
        self._loops: dict[str, list[asyncio.Task[Any]]] = {}
        self._windows: dict[str, Window] = {}
        self._progress = asyncio.Event()  #: set whenever a job may have made room
        self._stories: dict[str, Story] = {}
        self._spent: dict[str, list[str]] = {}  #: function → handles of notices that were read

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Load what is deployed and start every loop."""
        await self._load_functions()
        self._nursery.start_eternal(self._driver.run(), "driver")
        self._nursery.start_eternal(self._pushes(), "pushes")
        self._nursery.start_eternal(self._every(self._budget.adopt_every_s, self._adopt), "adopt")
        self._nursery.start_eternal(
            self._every(self._budget.registry_poll_s, self._load_functions), "registry"
        )

    async def drain(self) -> None:
        """SIGTERM: stop receiving, hand back what has not started, finish what is nearly done."""
        for task in [task for tasks in self._loops.values() for task in tasks]:
            task.cancel()
        self._driver.submit(on.DrainRequested(**self._now()))
        deadline_s = self._clock.monotonic_s() + self._budget.drain_s * 0.8
        while self._clock.monotonic_s() < deadline_s:
            await self._driver.drained()
            if not any(job.phase in _SOON_OVER for job in self._machine.jobs.values()):
                return
            await self._progressed(deadline_s)

    async def _progressed(self, deadline_s: float) -> None:
        self._progress.clear()
        try:
            async with asyncio.timeout(max(0.0, deadline_s - self._clock.monotonic_s())):
                await self._progress.wait()
        except TimeoutError:
            return

    def _now(self) -> Clocks:
        return {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}

    async def _every(self, pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except AppError as error:
                logger.warning("%s", error, extra={"event": "call_failed"})
            except FAULTS:
                logger.exception("a regular look", extra={"event": "fault"})
            await asyncio.sleep(pause_s)

    # ------------------------------------------------------------------ what is deployed

    async def _load_functions(self) -> None:
        found = dict(await self._registry.functions())
        for name, known in self._functions.items():
            if found.get(name) == known:
                found[name] = known  # its loops go on
            else:
                self._loops.pop(name, None)  # they end by themselves: see `_serves`
        self._functions = found
        self._machine.set_functions(found)
        self._progress.set()
        for name, function in found.items():
            devices = await self._scheduler.device_count(function.request)
            full = min(max(WINDOW_MIN, WINDOW_PER_DEVICE * devices), WINDOW_MAX)
            self._windows.setdefault(name, Window(full)).resize(full)
            if name not in self._loops:
                logger.info(
                    "serving %s%s", name, _note(function), extra={"event": "function_loaded"}
                )
                self._loops[name] = [
                    self._nursery.start(self._receive(function), f"receive/{name}"),
                    self._nursery.start(self._complete(function), f"complete/{name}"),
                ]

    def _serves(self, function: Function) -> bool:
        """False once it was changed or undeployed. Its loops finish their receive and end then: one
        cancelled in flight may have taken messages along, which nobody sees for `visibility_s`."""
        return self._functions.get(function.name) is function

    # ------------------------------------------------------------------ events in

    async def _receive(self, function: Function) -> None:
        while self._serves(function):
            room = self._room(function)
            if room <= 0:
                self._progress.clear()
                await self._progress.wait()
                continue
            messages = await self._poll(function.queue_url, room)
            if messages and not self._serves(function):
                await self._return(function, messages)
                return
            for message in messages:
                self._submit_message(function, message)
            await asyncio.sleep(AFTER_EVENTS_S)

    def _room(self, function: Function) -> int:
        """How many jobs may be received now."""
        room = self._windows[function.name].size - self._machine.waiting_count(function.name)
        if function.concurrency_max is None:
            return room
        return min(room, function.concurrency_max - self._machine.count(function.name))

    async def _return(self, function: Function, messages: tuple[Message, ...]) -> None:
        """Whoever serves the function as it is now gets them, at once."""
        try:
            handles = [message.handle for message in messages]
            await self._queue.set_visibility(function.queue_url, handles, 0)
        # the queue went with the function, or they come back later
        except (AppError, *FAULTS) as error:
            logger.warning("%s", error, extra={"event": "call_failed"})

    async def _poll(self, queue_url: str, count_max: int) -> tuple[Message, ...]:
        try:
            return tuple(
                await self._queue.receive(
                    queue_url,
                    count_max=count_max,
                    wait_s=self._budget.receive_wait_s,
                    visibility_s=self._budget.visibility_s,
                )
            )
        except AppError as error:
            logger.warning("%s", error, extra={"event": "receive_failed"})
        except FAULTS:  # an answer that no library can read ends one poll, not the replica
            logger.exception("receive", extra={"event": "fault"})
        await asyncio.sleep(self._budget.reconnect_s_max / 5)
        return ()

    def _submit_message(self, function: Function, message: Message) -> None:
        self._driver.submit(
            on.MessageReceived(
                **self._now(),
                function=function.name,
                message_id=message.id,
                handle=message.handle,
                body=message.body,
            )
        )

    async def _complete(self, function: Function) -> None:
        while self._serves(function):
            messages = await self._poll(function.completion_url, 10)
            for message in messages:
                self._notice(function, message)
            await asyncio.sleep(AFTER_EVENTS_S)

    def _notice(self, function: Function, message: Message) -> None:
        failures = []
        for notice in read_completion(message.body):
            if isinstance(notice, InvocationFailed):
                failures.append(notice)
                continue
            if isinstance(notice, ObjectWasWritten):
                self._driver.submit(
                    on.ObjectNoticed(**self._now(), bucket=notice.bucket, key=notice.key)
                )
                continue
            event = on.ResultNoticed(**self._now(), job=notice.job)
            self._note_end(event)
            self._driver.submit(event)
        if failures:
            record = self._record_failures(function, failures, message.handle)
            self._nursery.start(record, f"failures/{function.name}")
        else:
            self._forget_soon(function, [message.handle])

    async def _record_failures(
        self, function: Function, failures: list[InvocationFailed], handle: str
    ) -> None:
        """Lambda tells of a failure once: the message goes only when the report is stored.

        Any replica does this for any job; the job's owner finds the report.
        """
        for failure in failures:
            event = await self._performer.perform(
                do.RecordFunctionFailure(
                    job=failure.job,
                    function=function,
                    attempt=failure.attempt,
                    reason=failure.reason,
                    detail=failure.detail,
                )
            )
            if event is None or isinstance(event, on.CallFailed):
                return  # it comes again when its visibility ends
            self._driver.submit(event)
        self._forget_soon(function, [handle])

    def _forget_soon(self, function: Function, handles: list[str]) -> None:
        spent = self._spent.get(function.name)
        if spent is None:
            spent = self._spent[function.name] = []
            self._nursery.start(self._forget_notices(function), f"forget/{function.name}")
        spent.extend(handles)

    async def _forget_notices(self, function: Function) -> None:
        await asyncio.sleep(FORGET_NOTICES_S)
        handles = self._spent.pop(function.name)
        try:
            await self._queue.delete(function.completion_url, handles)
        except (AppError, *FAULTS) as error:  # they come again and say nothing new
            logger.warning("%s", error, extra={"event": "call_failed"})

    async def _pushes(self) -> None:
        async for push in self._scheduler.pushes():
            event = event_of_push(push, self._now())
            if event is not None:
                self._note_end(event)
                self._driver.submit(event)

    async def _adopt(self) -> None:
        orphans = await self._scheduler.ask(ops.Orphans(limit=ORPHANS_PER_LOOK))
        for record in orphans.records:
            name = record.block.get("function")
            if isinstance(name, str) and name in self._functions:
                self._driver.submit(
                    on.Orphaned(**self._now(), job=record.holder, function=name, record=record)
                )

    # ------------------------------------------------------------------ actions out

    async def _perform(self, action: do.Action) -> on.Event | None:
        if isinstance(action, do.ArmTimer):
            self._arm(action)
            return None
        if isinstance(action, do.ForgetJob):
            self._forget(action.job)
            return None
        if isinstance(action, do.ReadInput):
            self._stories.setdefault(action.job, Story(received_s=self._clock.monotonic_s()))
        story = self._stories.get(action.job)
        if story is not None:
            story.tell()
        event = await self._performer.perform(action)
        self._progress.set()
        self._note_call(action, event)
        return event

    def _arm(self, action: do.ArmTimer) -> None:
        key = (action.job, action.timer)
        self._cancel(key)
        if action.timer == NEXT_ATTEMPT and action.job in self._stories:
            self._stories[action.job].pause(self._clock.monotonic_s(), action.in_s)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(action.in_s, self._fire, key)

    def _cancel(self, key: tuple[str, str]) -> None:
        handle = self._timers.pop(key, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, key: tuple[str, str]) -> None:
        self._timers.pop(key, None)
        self._driver.submit(on.TimerFired(**self._now(), job=key[0], timer=key[1]))

    def _forget(self, job: str) -> None:
        for key in [k for k in self._timers if k[0] == job]:
            self._cancel(key)
        self._performer.forget(job)
        self._stories.pop(job, None)
        self._progress.set()

    # ------------------------------------------------------------------ what people read

    def _note_end(self, event: on.Event) -> None:
        """Whichever comes first, the result's notice or its lease's end, is our turn again."""
        if not isinstance(event, (on.ResultNoticed, on.LeaseChanged)):
            return
        story = self._stories.get(event.job)
        if story is None:
            return
        if isinstance(event, on.ResultNoticed):
            story.noticed_s = story.noticed_s or event.at_s
        elif event.state == "ENDED":
            story.ended_s.setdefault(event.attempt, event.at_s)

    def _note_call(self, action: do.Action, event: on.Event | None) -> None:
        now_s = self._clock.monotonic_s()
        if isinstance(action, do.OpenAttempt):
            self._note_attempt(action.job, event)
        if isinstance(event, on.CallFailed):
            logger.warning(
                "%s: %s",
                type(action).__name__,
                event.message,
                extra={"event": "call_failed", "job": action.job},
            )
        story = self._stories.get(action.job)
        if story is None:
            return
        if isinstance(event, on.StagedRecorded):
            story.staged_s[event.attempt] = now_s
        if isinstance(event, on.Finished) and isinstance(action, do.FinishJob):
            self._log_finished(action, story, now_s)

    def _note_attempt(self, job: str, event: on.Event | None) -> None:
        """Back-pressure: less is received while the scheduler is at a limit."""
        known = self._machine.jobs.get(job)
        window = None if known is None else self._windows.get(known.function.name)
        if window is None:
            return
        if not isinstance(event, on.CallFailed):
            window.admitted()
        elif event.exhausted:
            window.refused()

    def _log_finished(self, action: do.FinishJob, story: Story, now_s: float) -> None:
        """The one canonical line of a job."""
        logger.info(
            "%s %s",
            action.job,
            action.outcome,
            extra={
                "event": "job_finished",
                "job": action.job,
                "outcome": action.outcome,
                "reason": action.reason,
                "own_ms": round(story.own_s(now_s) * 1000, 3),
                "in_hand_s": round(now_s - story.received_s, 4),
            },
        )


def _note(function: Function) -> str:
    """What people should know of a function whose image a local cloud cannot run."""
    if function.image is None:
        return ""
    return f" (image {function.image}: on a local cloud its script runs on this machine's files)"

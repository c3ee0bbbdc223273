"""One replica: the loops that bring events in, the driver of the job machine, and the drain.

receivers (one per function)      ─▶ MessageReceived
completion receivers              ─▶ ResultNoticed, ObjectNoticed, FunctionFailureRecorded
scheduler pushes                  ─▶ AttemptGranted, LeaseChanged, ReceiptHandleRenewed, …
scan for orphaned records         ─▶ Orphaned
reconciler                        ─▶ a message, for an upload whose event was lost
timers                            ─▶ TimerFired
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from corekit.aio.clock import Clock
from corekit.aio.driver import Driver, NoJournal
from corekit.aio.supervise import Nursery, contained
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import JobId, RandomStream, split_attempt
from corekit.tracing.span import Tracer
from gpu_scheduler.client import Connected, Disconnected, PushWord
from gpu_scheduler.protocol import answers, ops
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.completion import read_completion
from orchgpu.core.function import Function
from orchgpu.core.job import UNSTAGED_SOON, Phase
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.runs.actions import EndRun
from orchgpu.ports import (
    FunctionStarter,
    JobQueue,
    Message,
    NoticeSender,
    ObjectStore,
    Registry,
    Scheduler,
)
from orchgpu.replica.actions.performer import Performer, Render
from orchgpu.replica.actions.timers import Timers
from orchgpu.replica.metrics import EmbeddedMetrics, OrchestratorMetrics
from orchgpu.replica.observer import Observer, Performed, Progress, Windows
from orchgpu.replica.own_time import OwnTimes
from orchgpu.replica.reconciling import Reconciler, Search
from orchgpu.replica.runs import Runs
from orchgpu.replica.spans import JobSpans

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Jobs received beyond those running: enough that a freed device never waits for a receive.
WINDOW_PER_DEVICE = 2
WINDOW_MIN = 2
WINDOW_MAX = 1000
ORPHANS_PER_SCAN = 100
#: The pause after events were handed in: the next poll takes processor time, and the calls that a
#: job waits for come first. Up to 10 messages come with each poll.
AFTER_EVENTS_S = 0.02
#: Notices are deleted this much later, many in one call: their events are handled first.
FORGET_NOTICES_S = 0.1
#: Parts of `drain_s`: for what is nearly done, and for handing back the rest. Connections close in
#: what is left of it.
DRAIN_SHARE, DRAIN_LAST_SHARE = 0.6, 0.3
#: Phases that a drain waits for: they end by themselves within moments.
_SOON_OVER = frozenset(
    {
        *UNSTAGED_SOON,
        Phase.RECORDING,
        Phase.CLOSING,
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
    """One orchestrator process: every loop, from `start` to `drain`."""

    def __init__(
        self,
        *,
        machine: OrchestratorMachine,
        queue: JobQueue,
        store: ObjectStore,
        functions: FunctionStarter,
        scheduler: Scheduler,
        registry: Registry,
        render: Render,
        clock: Clock,
        budget: Budget,
        nursery: Nursery,
        jitter: RandomStream,
        tracer: Tracer | None = None,
        notices: NoticeSender | None = None,
    ) -> None:
        self._machine = machine
        self._queue = queue
        self._scheduler = scheduler
        self._registry = registry
        self._clock = clock
        self._budget = budget
        self._nursery = nursery
        self.metrics = OrchestratorMetrics(clock, machine.jobs)
        self._progress, self._windows = Progress(), Windows()
        self._spans = JobSpans(tracer, clock) if tracer is not None and tracer.enabled else None
        self._observers: list[Observer] = [
            self._progress,
            self._windows,
            self.metrics,
            OwnTimes(clock, self.metrics.own_time_of),
            *([] if self._spans is None else [self._spans]),
        ]
        self._driver = Driver(machine, NoJournal[None](), self._perform, nursery)
        self._runs = Runs(
            queue=queue,
            store=store,
            scheduler=scheduler,
            clock=clock,
            budget=budget,
            nursery=nursery,
            functions=lambda: self._functions,
            finished=self._run_finished,
            notified=self.metrics.notified,
            sender=notices,
        )
        self._performer = Performer(
            queue=queue,
            store=store,
            functions=functions,
            scheduler=scheduler,
            timers=Timers(self._driver.submit),
            render=render,
            clock=clock,
            budget=budget,
            advance=self._runs.advance,
            strict=nursery.strict,
        )
        self._reconciler = Reconciler(
            queue=queue,
            search=Search(store, self._has_record),
            clock=clock,
            budget=budget,
            jitter=jitter,
        )
        self._functions: dict[str, Function] = {}
        self._loops: dict[str, list[asyncio.Task[None]]] = {}
        #: function → receipt handles of notices that were read
        self._read_notices: dict[str, list[str]] = {}

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        await self._load_functions()
        self._nursery.start_eternal(self._driver.run(), "driver")
        self._nursery.start_loop(self._pushes, "pushes")
        self._start_every(self._budget.adopt_every_s, self._adopt, "adopt")
        self._start_every(self._budget.registry_poll_s, self._load_functions, "registry")
        self._start_every(self._budget.registry_poll_s, self._reconciler.run_due, "reconcile")

    def start_metrics(self, *, emf: str | None) -> None:
        """Measure the queues from now on; log the metrics for CloudWatch's namespace `emf`."""
        self._start_every(self._budget.metrics_poll_s, self._measure, "metrics")
        if emf is not None:
            embedded = EmbeddedMetrics(emf)

            async def log() -> None:
                metrics, wall_s = self.metrics, self._clock.wall_s()
                for line in embedded.lines(metrics.families(), metrics.histograms(), wall_s):
                    logger.info("metrics", extra=line)

            self._start_every(self._budget.emf_every_s, log, "emf")

    async def _measure(self) -> None:
        for name, function in list(self._functions.items()):
            for queue, url in (
                ("jobs", function.queue_url),
                ("completion", function.completion_url),
                ("dead_letters", function.dead_letter_url),
            ):
                size = await tolerated(self._queue.backlog(url), "backlog_unknown")
                if size is not None and name in self._functions:
                    self.metrics.backlog[name, queue] = size

    async def drain(self) -> None:
        """SIGTERM: stop receiving, hand back what has not started, finish what is nearly done.

        At most `drain_s`, also when the cloud does not answer: what cannot be packed in time is
        handed back, and what runs is adopted from its record.
        """
        for task in [task for tasks in self._loops.values() for task in tasks]:
            task.cancel()
        self._driver.submit(on.DrainRequested(**self._now()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._budget.drain_s * DRAIN_SHARE):
                await self._nearly_done()
        self._driver.submit(on.DrainRequested(**self._now(), last=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._budget.drain_s * DRAIN_LAST_SHARE):
                await self._driver.drained()

    async def _nearly_done(self) -> None:
        """Wait until no job in hand is about to be over, or staged."""
        while True:
            self._progress.clear()
            if not any(job.phase in _SOON_OVER for job in self._machine.jobs.values()):
                return await self._driver.drained()
            await self._progress.wait()

    def _now(self) -> on.EventTimes:
        return {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}

    def _start_every(self, pause_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def repeat() -> None:
            while True:
                await tolerated(work())
                await asyncio.sleep(pause_s)

        self._nursery.start_loop(repeat, name)

    # ------------------------------------------------------------------ what is deployed

    async def _load_functions(self) -> None:
        found = dict(await self._registry.functions())
        for name, known in self._functions.items():
            if found.get(name) == known:
                found[name] = known  # its loops continue
            else:
                self._loops.pop(name, None)  # they end by themselves: see `_serves`
        self._functions = found
        self._machine.set_functions(found)
        self.metrics.serves(found)
        workflows = self._registry.workflows()
        self._reconciler.load(found, workflows)
        for task in self._runs.load(workflows):
            self._loops.setdefault("", []).append(task)
        self._progress.set()
        for name, function in found.items():
            full = await self._window_of(function)
            self._windows.of[name].resize(full)
            if name not in self._loops:
                logger.info(
                    "serving %s%s", name, _remark(function), extra={"event": "function_loaded"}
                )
                self._loops[name] = [
                    self._nursery.start_loop(partial(self._receive, function), f"receive/{name}"),
                    self._nursery.start_loop(partial(self._complete, function), f"complete/{name}"),
                ]

    async def _window_of(self, function: Function) -> int:
        if not function.with_device:
            return self._in_hand_max(function) or WINDOW_MAX
        devices = await self._scheduler.device_count(function.request)
        return min(max(WINDOW_MIN, WINDOW_PER_DEVICE * devices), WINDOW_MAX)

    def _in_hand_max(self, function: Function) -> int | None:
        return function.in_hand_max(self._budget.jobs_without_device_max)

    def _serves(self, function: Function) -> bool:
        """False once it was changed or undeployed. Its loops finish their call and end then: a call
        that is cancelled in flight may have received messages, hidden for `visibility_s`."""
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
            self.metrics.received[(function.name,)] += len(messages)
            for message in messages:
                self._submit_message(function, message)
            await asyncio.sleep(AFTER_EVENTS_S)

    def _room(self, function: Function) -> int:
        room = self._windows.of[function.name].size - self._machine.waiting_count(function.name)
        in_hand_max = self._in_hand_max(function)
        if in_hand_max is None:
            return room
        return min(room, in_hand_max - self._machine.count(function.name))

    async def _return(self, function: Function, messages: Sequence[Message]) -> None:
        """Make the messages visible at once: the loops of the newest revision receive them."""
        receipt_handles = [message.receipt_handle for message in messages]
        # the queue may be gone; otherwise the messages reappear by themselves
        await tolerated(self._queue.set_visibility(function.queue_url, receipt_handles, 0))

    async def _poll(self, queue_url: str, count_max: int) -> Sequence[Message]:
        receiving = self._queue.receive(
            queue_url,
            count_max=count_max,
            wait_s=self._budget.receive_wait_s,
            visibility_s=self._budget.visibility_s,
        )
        messages = await tolerated(receiving, "receive_failed")
        if messages is None:
            await asyncio.sleep(self._budget.reconnect_s_max / 5)
            return ()
        return messages

    def _run_finished(self, action: EndRun) -> None:
        self.metrics.run_finished(action)
        if self._spans is not None:
            self._spans.run_finished(action)

    def _submit_message(self, function: Function, message: Message) -> None:
        self._driver.submit(
            on.MessageReceived(
                **self._now(),
                function=function.name,
                message_id=message.id,
                receipt_handle=message.receipt_handle,
                body=message.body,
                sent_at_s=message.sent_at_s,
                trace=None if self._spans is None else self._spans.received(message),
            )
        )

    async def _complete(self, function: Function) -> None:
        while self._serves(function):
            messages = await self._poll(function.completion_url, 10)
            for message in messages:
                self._notice(function, message)
            await asyncio.sleep(AFTER_EVENTS_S)

    def _notice(self, function: Function, message: Message) -> None:
        if self._runs.notices.take(function, message):
            return
        works: list[do.Action] = []
        for notice in read_completion(message.body, function, self._now()):
            if isinstance(notice, do.Action):
                works.append(notice)
            else:
                self._submit(notice)
        if works:
            record = self._record_notices(function, works, message.receipt_handle)
            self._nursery.start(record, f"notices/{function.name}")
        else:
            self._forget_soon(function, [message.receipt_handle])

    async def _record_notices(
        self, function: Function, works: list[do.Action], receipt_handle: str
    ) -> None:
        """A start or a failure is reported once: delete the message only when it is recorded.

        Any replica does this for any job; the job's owner finds the report.
        """
        for action in works:
            work = self._performer.perform(action)
            event = None if work is None else await work
            if isinstance(event, on.CallFailed):
                return  # the message comes again when its visibility ends
            if event is not None:
                self._driver.submit(event)
        self._forget_soon(function, [receipt_handle])

    def _forget_soon(self, function: Function, receipt_handles: list[str]) -> None:
        spent = self._read_notices.get(function.name)
        if spent is None:
            spent = self._read_notices[function.name] = []
            self._nursery.start(self._forget_notices(function), f"forget/{function.name}")
        spent.extend(receipt_handles)

    async def _forget_notices(self, function: Function) -> None:
        await asyncio.sleep(FORGET_NOTICES_S)
        receipt_handles = self._read_notices.pop(function.name)
        # a message that stays comes again and changes nothing
        await tolerated(self._queue.delete(function.completion_url, receipt_handles))

    async def _pushes(self) -> None:
        async for push in self._scheduler.pushes():
            self.metrics.connected = not isinstance(push, Disconnected)
            event = event_of_push(push, self._now())
            if event is not None:
                self._submit(event)

    async def _adopt(self) -> None:
        orphans = await self._scheduler.ask(ops.Orphans(limit=ORPHANS_PER_SCAN))
        for record in orphans.records:
            name = record.block.get("function")
            if isinstance(name, str) and name in self._functions:
                self._driver.submit(
                    on.Orphaned(**self._now(), job=record.holder, function=name, record=record)
                )

    async def _has_record(self, job: str) -> bool:
        answer = await self._scheduler.ask(ops.RecordOf(holder=JobId(job)))
        return answer.record is not None

    # ------------------------------------------------------------------ actions out

    def _submit(self, event: on.Event) -> None:
        """Hand in an event that came from outside."""
        for observer in self._observers:
            observer.noticed(event)
        self._driver.submit(event)

    def _perform(self, action: do.Action) -> Awaitable[on.Event | None] | None:
        job = self._machine.jobs.get(action.job)
        for observer in self._observers:
            observer.starting(job, action)
        work = self._performer.perform(action)
        if work is None:
            self._performed(action, None, self._now())
            return None
        return self._observed(action, work)

    async def _observed(
        self, action: do.Action, work: Awaitable[on.Event | None]
    ) -> on.Event | None:
        began = self._now()
        event = await work
        self._performed(action, event, began)
        return event

    def _performed(self, action: do.Action, event: on.Event | None, began: on.EventTimes) -> None:
        done = Performed(self._machine.jobs.get(action.job), action, event, began)
        with contained(f"figures of {type(action).__name__}"):
            for observer in self._observers:
                observer.performed(done)


def event_of_push(push: PushWord, now: on.EventTimes) -> on.Event | None:
    """The event of a push of the scheduler; None for one that changes no job."""
    if isinstance(push, Connected):
        return on.SchedulerReturned(**now)
    others = Disconnected | answers.RecordPush | answers.PromisePush
    if isinstance(push, others) or push.holder is None:
        return None
    job = push.holder
    match push:
        case answers.HandlePush():
            return on.ReceiptHandleRenewed(**now, job=job, receipt_handle=push.handle)
        case answers.DisownedPush():
            return on.Disowned(**now, job=job)
        case answers.GrantedPush():
            return on.AttemptGranted(
                **now,
                job=job,
                attempt=split_attempt(push.attempt)[1],
                granted=push.granted,
                record=None,
                pushed=True,
            )
        case answers.ImpossiblePush() | answers.BusyPush():
            return on.AttemptImpossible(
                **now,
                job=job,
                explanation=push.explanation,
                busy=isinstance(push, answers.BusyPush),
                attempt=split_attempt(push.attempt)[1],
            )
        case answers.LeasePush():
            return on.LeaseChanged(
                **now,
                job=job,
                attempt=split_attempt(push.attempt)[1],
                state=push.state,
                reason=push.reason,
                detail=push.detail,
                ahead=bool(push.after),
            )


async def tolerated(work: Awaitable[T], event: str = "call_failed") -> T | None:
    """The value of a call; None after a failure, which is logged and ends nothing else."""
    try:
        return await work
    except AppError as error:
        logger.warning("%s", error, extra={"event": event})
    except Exception:
        logger.exception("a call failed", extra={"event": "fault"})
    return None


def _remark(function: Function) -> str:
    """A remark on a function whose image a local cloud cannot run."""
    if function.image is None:
        return ""
    return (
        f" (image {function.image}: a local cloud runs its script with the files of this machine)"
    )

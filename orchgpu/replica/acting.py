"""The common part of orchestrator processes: the machine with its driver, effects and observers.

`loops.Replica` serves queues until it is stopped; `visit.Visit` lives for some messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
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
from orchgpu.core.function import Function
from orchgpu.core.job import UNSTAGED_SOON, Phase
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.core.runs.actions import EndRun
from orchgpu.ports import (
    BatchQueue,
    FunctionCredentials,
    FunctionStarter,
    JobQueue,
    Message,
    NoticeSender,
    ObjectStore,
    Registry,
    RunStarter,
    Scheduler,
)
from orchgpu.replica.actions.performer import Performer, Render
from orchgpu.replica.actions.starting import HostStarts
from orchgpu.replica.actions.timers import Timers
from orchgpu.replica.host_facts import host_facts
from orchgpu.replica.metrics import OrchestratorMetrics
from orchgpu.replica.observer import Observer, Performed, Progress, Windows
from orchgpu.replica.own_time import OwnTimes
from orchgpu.replica.reconciling import Reconciler, Search
from orchgpu.replica.runs import Runs
from orchgpu.replica.spans import JobSpans

logger = logging.getLogger(__name__)

T = TypeVar("T")

ORPHANS_PER_SCAN = 100
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


class Acting:
    """One session that acts for jobs."""

    def __init__(
        self,
        *,
        machine: OrchestratorMachine,
        queue: JobQueue,
        store: ObjectStore,
        functions: FunctionStarter,
        runs: RunStarter | None = None,
        credentials: FunctionCredentials | None = None,
        batch: BatchQueue | None = None,
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
            orders=HostStarts(runs, credentials, clock, batch, functions),
            scheduler=scheduler,
            timers=Timers(self._driver.submit),
            render=render,
            clock=clock,
            budget=budget,
            advance=self._runs.advance,
            strict=nursery.strict,
        )
        search = Search(store, self._has_record)
        self._reconciler = Reconciler(
            queue=queue, search=search, clock=clock, budget=budget, jitter=jitter
        )
        self._functions: dict[str, Function] = {}
        self._loops: dict[str, list[asyncio.Task[None]]] = {}  #: by function
        self._read_notices: dict[str, list[str]] = {}  #: receipt handles, by function

    def _begin(self) -> None:
        self._nursery.start_eternal(self._driver.run(), "driver")
        self._nursery.start_loop(self._pushes, "pushes")

    async def _learn_hosts(self) -> None:
        """For functions that may run on a host; what was known stays when the scheduler is away."""
        facts = await tolerated(host_facts(self._scheduler, self._functions.values()))
        if facts is not None:
            self._machine.set_hosts(facts)

    def _now(self) -> on.EventTimes:
        return {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}

    async def drain(self) -> None:
        """Hand back what has not started, finish what is nearly done.

        At most `drain_s`, also when the cloud does not answer: what cannot be packed in time is
        handed back, and what runs is adopted from its record.
        """
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

    # ------------------------------------------------------------------ events in

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

    def _run_finished(self, action: EndRun) -> None:
        self.metrics.run_finished(action)
        if self._spans is not None:
            self._spans.run_finished(action)

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

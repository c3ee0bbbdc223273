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
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from corekit.errors import AppError
from gpu_scheduler.floors import WarmFloor, first_within
from gpu_scheduler.protocol.codec import PAGE_BYTES_MAX
from gpu_scheduler.protocol.ops import KeepWarm
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.completion import read_completion
from orchgpu.core.function import Function
from orchgpu.ports import Message
from orchgpu.replica.acting import Acting, tolerated
from orchgpu.replica.metrics import EmbeddedMetrics

logger = logging.getLogger(__name__)

#: Jobs received beyond those running: enough that a freed device never waits for a receive.
WINDOW_PER_DEVICE = 2
WINDOW_MIN = 2
WINDOW_MAX = 1000
#: The pause after events were handed in: the next poll takes processor time, and the calls that a
#: job waits for come first. Up to 10 messages come with each poll.
AFTER_EVENTS_S = 0.02
#: Notices are deleted this much later, many in one call: their events are handled first.
FORGET_NOTICES_S = 0.1


class Replica(Acting):
    """One orchestrator process: every loop, from `start` to `drain`."""

    _keeps_warm = False  #: the scheduler knows floors of this session
    _floor_faults: Mapping[str, object] = {}  #: logged already

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        await self._load_functions()
        self._begin()
        self._start_every(self._budget.adopt_every_s, self._adopt, "adopt")
        self._start_every(self._budget.registry_poll_s, self._load_functions, "registry")
        self._start_every(self._budget.registry_poll_s, self._reconciler.run_due, "reconcile")
        self._start_every(self._budget.registry_poll_s, self._keep_warm, "warm floors")

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

    async def drain(self) -> None:
        """SIGTERM: receive nothing more, then as `Acting.drain`."""
        for task in [task for tasks in self._loops.values() for task in tasks]:
            task.cancel()
        await super().drain()

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
        await self._learn_hosts()
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

    async def _keep_warm(self) -> None:
        """Declare the warm floors of all functions, again and again: a new scheduler has none."""
        floors, faults = list[WarmFloor](), dict[str, object]()

        def note(what: str, why: str, cause: object) -> None:
            faults[what] = cause
            if self._floor_faults.get(what) != cause:
                logger.warning("%s: %s", what, why, extra={"event": "floor_refused"})

        for name, function in self._functions.items():
            try:
                floors += [] if function.floor is None else [function.floor]
            except AppError as error:
                note(f"function {name} is not kept warm", error.message, error.message)
        declared = first_within(floors, PAGE_BYTES_MAX)
        if left_out := len(floors) - len(declared):
            note("functions are not kept warm", f"a message has no room for {left_out}", left_out)
        if declared or self._keeps_warm:
            try:
                refused = (await self._scheduler.ask(KeepWarm(floors=declared))).refused
                self._keeps_warm = bool(declared)
                for one in refused:
                    what = f"workload {one.workload} (tenant {one.tenant}) is not kept warm"
                    note(what, one.why, one.why)
            except AppError as error:
                note("no function is kept warm", error.message, (error.code, declared))
        self._floor_faults = faults

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


def _remark(function: Function) -> str:
    """A remark on a function whose image a local cloud cannot run."""
    if function.image is None:
        return ""
    return (
        f" (image {function.image}: a local cloud runs its script with the files of this machine)"
    )

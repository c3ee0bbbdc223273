"""Invocation of functions: environments reused last in first out, logs and errors as on AWS."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery, contained
from local_cloud.model.functions.environments import Environment, EnvironmentPool
from local_cloud.model.functions.function import Invocation, Outcome
from local_cloud.sandbox.environment import Crashed, ExecutionEnvironment, NotStarted
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.process_tree import kill, processes_in
from local_cloud.sandbox.runtime import RunSpec, Runtime
from local_cloud.sandbox.runtime_api import RuntimeApi, Work, error_payload
from local_cloud.sandbox.starts import Starts

logger = logging.getLogger(__name__)

_TAIL_LINES = 100
_SWEEP_S = 5.0  #: between two sweeps of idle environments
#: The log stream of what befalls events before they run; on AWS it is in metrics alone.
EVENTS_STREAM = "asynchronous-events"


class _Gone(Exception):
    """A warm environment ended while it was idle: the run did not begin."""


@dataclass(slots=True)
class _Live:
    slot: Environment
    process: ExecutionEnvironment
    stream: str
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))


class Sandbox:
    """Runs functions. `revisions` names the current revision of every function that exists.

    `on_free` is called when an environment became idle or ended: concurrency is left again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        runtime: Runtime,
        pool: EnvironmentPool,
        logs: LogStore,
        clock: Clock,
        revisions: Callable[[], dict[str, str]],
        starts_max: int | None = None,
    ) -> None:
        """`starts_max`: environments that start at the same time; None = one for each core."""
        self.pool = pool
        self.logs = logs
        self.on_free: Callable[[], None] = lambda: None
        self._starts = Starts(starts_max or len(os.sched_getaffinity(0)))
        self._folder = folder.resolve()
        self._runtime = runtime
        self._clock = clock
        self._revisions = revisions
        self._api = RuntimeApi()
        self._nursery = Nursery("sandbox")
        self._live: dict[int, _Live] = {}

    async def __aenter__(self) -> Sandbox:
        # environments of a killed predecessor died with it; their children may live
        kill(*await asyncio.to_thread(processes_in, self._folder))
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        await self._api.start()
        await self._nursery.__aenter__()
        self._nursery.start_loop(self._sweep, "sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._starts.close()
        await self._nursery.close()
        for number in list(self._live):
            with contained(f"the end of environment {number}"):
                await self._end(number)
        await self._api.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def invoke(self, spec: RunSpec, request_id: str, payload: str) -> tuple[Outcome, str]:
        """Run once; the outcome and the last lines of the log. Throttled: nothing was run.

        Raises nothing: whatever goes wrong is the outcome of this invocation. An idle environment
        that ended meanwhile is replaced by a fresh one, as on AWS.
        """
        while (slot := self.pool.acquire(spec.name, spec.revision)) is not None:
            environment, is_new = slot
            if is_new and (idle := await self._starts.turn(environment)) is not None:
                self._free(environment.id)
                environment, is_new = idle, False
            live = self._make(environment, spec) if is_new else self._live[environment.id]
            live.tail.clear()
            outcome = await self._outcome(live, is_new, spec, request_id, payload)
            if outcome is not None:
                return outcome, "\n".join(live.tail)
            logger.warning(
                "an idle environment of %s had ended; another one takes its work",
                spec.name,
                extra={"event": "environment_gone"},
            )
        return Outcome(payload="", throttled=True), ""

    async def _outcome(
        self, live: _Live, is_new: bool, spec: RunSpec, request_id: str, payload: str
    ) -> Outcome | None:
        """The outcome of the run; None: the environment had ended before, the run did not begin."""
        keep, outcome = False, None
        try:
            outcome = await self._run(live, is_new, spec, request_id, payload)
            keep = True
        except Crashed as crash:
            outcome = crash.outcome
        except NotStarted:
            outcome = Outcome(payload="", throttled=True)  # not an attempt: nothing was run
        except _Gone:
            self.pool.discard(live.slot.id)  # immediately: it may hold the last free slot
        except Exception as error:  # no process, port or folder available, or an internal error
            logger.exception("%s cannot be run", spec.name, extra={"event": "sandbox_failed"})
            message = f"{spec.name} could not be started: {error}"
            self._line(live, spec, f"RequestId: {request_id} Error: {message}")
            payload = error_payload("Sandbox.Failure", message)
            outcome = Outcome(payload=payload, error="Unhandled")
        finally:
            # Answering need not wait until the environment is idle again, or gone.
            if keep:
                self._nursery.start(self._rest(live.slot.id), f"rest/{spec.name}")
            else:
                self._discard(live.slot.id)
        return outcome

    def _make(self, slot: Environment, spec: RunSpec) -> _Live:
        stream = f"{slot.id:05d}[$LATEST]{spec.revision.replace('-', '')}"
        tail: deque[str] = deque(maxlen=_TAIL_LINES)

        def log(line: str) -> None:
            tail.append(line)
            self.logs.append(spec.log_group, stream, self._clock.wall_s(), line)

        process = ExecutionEnvironment(spec, self._folder / f"{slot.id}", log)
        live = _Live(slot=slot, process=process, stream=stream, tail=tail)
        self._live[slot.id] = live
        return live

    async def _run(
        self, live: _Live, is_new: bool, spec: RunSpec, request_id: str, payload: str
    ) -> Outcome:
        init = f"\tInit Duration: {await self._start(live, spec):.2f} ms" if is_new else ""
        if not is_new and not live.process.alive:
            raise _Gone
        started_s = self._clock.monotonic_s()
        self._line(live, spec, f"START RequestId: {request_id} Version: $LATEST")
        work = Work(
            request_id=request_id, payload=payload, function_arn=spec.arn, timeout_s=spec.timeout_s
        )
        status = ""
        try:
            return await live.process.run(work)
        except Crashed as crash:
            status = f"\t{_status(crash.outcome)}"
            raise
        finally:
            ran_ms = (self._clock.monotonic_s() - started_s) * 1000
            self._line(live, spec, f"END RequestId: {request_id}")
            self._line(
                live,
                spec,
                f"REPORT RequestId: {request_id}\tDuration: {ran_ms:.2f} ms"
                f"\tMemory Size: {spec.memory_mib} MB{init}{status}",
            )

    async def _start(self, live: _Live, spec: RunSpec) -> float:
        """Start its process; the milliseconds that it took. Raises Crashed, NotStarted.

        A failure is a line of the function's log in Lambda's form
        (<https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html>).
        """
        began_s, failure = self._clock.monotonic_s(), ""
        try:
            await live.process.start(self._api, self._runtime, live.stream)
        except Crashed as crash:
            failure = _status(crash.outcome)
            raise
        except NotStarted:
            failure = "Status: repeated, the machine is too busy"
            raise
        finally:
            self._starts.ended()
            took_ms = (self._clock.monotonic_s() - began_s) * 1000
            if failure:
                report = f"INIT_REPORT Init Duration: {took_ms:.2f} ms\tPhase: init\t{failure}"
                self._line(live, spec, report)
                logger.warning("%s: %s", spec.name, report, extra={"event": "start_failed"})
        return took_ms

    def note(self, function: str, group: str, invocation: Invocation, condition: str) -> None:
        """Log why an asynchronous event does not run, in the function's log and the cloud's."""
        text = f"RequestId: {invocation.request_id} {condition} after {invocation.runs} runs"
        self.logs.append(group, EVENTS_STREAM, self._clock.wall_s(), text)
        logger.warning("%s: %s", function, text, extra={"event": "event_not_run"})

    def _line(self, live: _Live, spec: RunSpec, text: str) -> None:
        live.tail.append(text)
        self.logs.append(spec.log_group, live.stream, self._clock.wall_s(), text)

    async def _rest(self, number: int) -> None:
        live = self._live.get(number)
        if live is None:
            return  # ended right after its run, with the sandbox
        rests = False
        with contained(f"the rest of environment {number}"):
            rests = await live.process.rest()
        if not rests:
            self._discard(number)
        elif not self._starts.offer(live.slot):
            self.pool.release(self._clock.monotonic_s(), number)
            self.on_free()

    def _discard(self, number: int) -> asyncio.Task[None]:
        """End an environment: until its processes have ended it has its place."""
        return self._nursery.start_end(partial(self._end, number), f"end/{number}")

    async def _end(self, number: int) -> None:
        live = self._live.get(number)
        if live is not None:
            await live.process.end(self._api)
            self._live.pop(number, None)
            self._free(number)

    def _free(self, number: int) -> None:
        self.pool.discard(number)
        self.on_free()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """End outdated environments now (after a function was changed or deleted)."""
        outdated = self.pool.outdated(self._clock.monotonic_s(), self._revisions())
        for number in outdated:
            self.pool.discard(number)  # before the first of them is waited for: none takes work
        if outdated:
            await asyncio.wait([self._discard(number) for number in outdated])


def _status(outcome: Outcome) -> str:
    """The end of a run or a start, as Lambda's reports have it."""
    try:
        kind = json.loads(outcome.payload)["errorType"]
    except (ValueError, KeyError, TypeError):  # a function may report any text as its error
        kind = "Runtime.Unknown"
    return "Status: timeout" if kind == "Sandbox.Timedout" else f"Status: error\tError Type: {kind}"

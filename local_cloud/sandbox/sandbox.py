"""Invocation of functions: environments reused last in first out, logs and errors as on AWS."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from local_cloud.model.functions.environments import Environment, EnvironmentPool
from local_cloud.model.functions.function import Outcome
from local_cloud.sandbox.environment import Crashed, ExecutionEnvironment
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.process_tree import kill, processes_in
from local_cloud.sandbox.runtime import RunSpec, Runtime
from local_cloud.sandbox.runtime_api import RuntimeApi, Work, error_payload

logger = logging.getLogger(__name__)

_TAIL_LINES = 100
_SWEEP_S = 5.0  #: between two sweeps of idle environments


class _Gone(Exception):
    """A warm environment ended while it was idle: the run did not begin."""


@dataclass(slots=True)
class _Live:
    """An environment of the pool with its process and its log."""

    slot: Environment
    process: ExecutionEnvironment
    stream: str
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))


class Sandbox:
    """Runs functions. `revisions` names the current revision of every function that exists."""

    def __init__(
        self,
        folder: Path,
        *,
        runtime: Runtime,
        pool: EnvironmentPool,
        logs: LogStore,
        clock: Clock,
        revisions: Callable[[], dict[str, str]],
    ) -> None:
        self.pool = pool
        self.logs = logs
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
        self._nursery.start_eternal(self._sweep(), "sweep")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nursery.close()
        for number in list(self._live):
            await self._discard(number)
        await self._api.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def invoke(self, spec: RunSpec, request_id: str, payload: str) -> tuple[Outcome, str]:
        """Run once; the outcome and the last lines of the log. Throttled: nothing was run.

        Raises nothing: whatever goes wrong is the outcome of this invocation. An idle environment
        that ended meanwhile is replaced by a fresh one, as on AWS.
        """
        while (slot := self.pool.acquire(spec.name, spec.revision)) is not None:
            environment, is_new = slot
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
        except _Gone:
            self.pool.discard(live.slot.id)  # immediately: it may hold the last free slot
        except Exception as error:  # no process, port or folder available, or an internal error
            logger.exception("%s cannot be run", spec.name, extra={"event": "sandbox_failed"})
            payload = error_payload("Sandbox.Failure", f"{spec.name} could not be started: {error}")
            outcome = Outcome(payload=payload, error="Unhandled")
        finally:
            # Answering need not wait until the environment is idle again, or gone.
            after = self._rest if keep else self._discard
            self._nursery.start(self._contained(after, live.slot.id), f"after/{spec.name}")
        return outcome

    async def _contained(self, work: Callable[[int], Awaitable[None]], number: int) -> None:
        """Contain errors of one environment: neither its neighbours nor the cloud end."""
        try:
            await work(number)
        except Exception:
            logger.exception(
                "cleaning up environment %s failed", number, extra={"event": "sandbox_failed"}
            )

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
        began_s = self._clock.monotonic_s()
        if is_new:
            await live.process.start(self._api, self._runtime, live.stream)
        if not is_new and not live.process.alive:
            raise _Gone
        started_s = self._clock.monotonic_s()
        self._line(live, spec, f"START RequestId: {request_id} Version: $LATEST")
        work = Work(
            request_id=request_id, payload=payload, function_arn=spec.arn, timeout_s=spec.timeout_s
        )
        try:
            return await live.process.run(work)
        finally:
            ran_ms = (self._clock.monotonic_s() - started_s) * 1000
            init = f"\tInit Duration: {(started_s - began_s) * 1000:.2f} ms" if is_new else ""
            self._line(live, spec, f"END RequestId: {request_id}")
            self._line(
                live,
                spec,
                f"REPORT RequestId: {request_id}\tDuration: {ran_ms:.2f} ms"
                f"\tMemory Size: {spec.memory_mib} MB{init}",
            )

    def _line(self, live: _Live, spec: RunSpec, text: str) -> None:
        live.tail.append(text)
        self.logs.append(spec.log_group, live.stream, self._clock.wall_s(), text)

    async def _rest(self, number: int) -> None:
        live = self._live[number]
        if await live.process.rest():
            self.pool.release(self._clock.monotonic_s(), number)
        else:
            await self._discard(number)

    async def _discard(self, number: int) -> None:
        live = self._live.pop(number, None)
        if live is not None:
            try:
                await live.process.end(self._api)
            finally:
                self.pool.discard(number)

    async def _sweep(self) -> None:
        """End environments that are idle for long, or of outdated code."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """End outdated environments now (after a function was changed or deleted)."""
        outdated = self.pool.outdated(self._clock.monotonic_s(), self._revisions())
        for number in outdated:
            self.pool.discard(number)  # before the first of them is waited for: none takes work
        for number in outdated:
            await self._contained(self._discard, number)

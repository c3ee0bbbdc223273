"""Carries out the actions of runs: one method per action. Any replica may, and repeat them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import singledispatchmethod

from contract.result import Result
from contract.run import admission_key, inputs_key, run_key, run_result_key, started_key
from contract.states import JobState
from corekit.aio.clock import Clock
from corekit.decode import decode_json_known, encode, encode_json
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol import ops
from orchgpu.core.function import Function
from orchgpu.core.notify import Notice, notice_bodies
from orchgpu.core.prices import Prices
from orchgpu.core.promises import promise_name, promised_steps
from orchgpu.core.runs.actions import (
    Admit,
    ClosedJob,
    CloseJobs,
    EndRun,
    ResendLost,
    RunAction,
    StartStep,
    WaiveSteps,
)
from orchgpu.core.runs.machine import list_body
from orchgpu.core.runs.newest import newest_key
from orchgpu.core.runs.records import Admission, Frozen, Inputs
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import JobQueue, ObjectStore, Scheduler, Tolerating
from orchgpu.replica.actions.admitting import refused, request_promise
from orchgpu.replica.actions.function_failures import record_of
from orchgpu.replica.actions.objects import close_claim, put_once, write_result
from orchgpu.replica.actions.run_facts import RECORD_BYTES_MAX, together

logger = logging.getLogger(__name__)

#: Calls of one action at once: SQS and S3 take more, but other jobs come first.
CALLS_AT_ONCE = 8
#: Messages that one call of the port sends; an adapter sends them in batches of its own.
MESSAGES_PER_CALL = 50


class RunPerformer:
    """Performs the actions of the runs of a workflow. Raises AppError: then all is repeated."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        store: ObjectStore,
        scheduler: Scheduler,
        clock: Clock,
        functions: Callable[[], Mapping[str, Function]],
        ended: Callable[[EndRun], None],
    ) -> None:
        """`ended`: called once for each end of a run that this replica has written."""
        self._queue = queue
        self._store = store
        self._scheduler = scheduler
        self._clock = clock
        self._functions = functions
        self._report_end = ended

    async def freeze(self, workflow: Workflow, frozen: Frozen) -> bool:
        """Begin a run; False when it has begun before."""
        name, body = frozen.workflow.name, encode_json(frozen)
        named = newest_key(name, frozen.run, frozen.stored_at_s)
        await put_once(self._store, workflow.bucket, named, b"{}")
        with Tolerating(ErrorCode.CONFLICT):
            await self._store.put(workflow.bucket, run_key(frozen.run), body, if_absent=True)
            return True
        return False

    async def perform(self, workflow: Workflow, action: RunAction) -> None:
        await self._perform(action, workflow)

    @singledispatchmethod
    async def _perform(self, action: RunAction, workflow: Workflow) -> None:
        """Call the method of an action: the one that is registered below for its class."""
        raise NotImplementedError(type(action).__name__)

    # ------------------------------------------------------------------ promises

    @_perform.register
    async def _admit(self, action: Admit, workflow: Workflow) -> None:
        """The first answer that is stored counts, whichever replica asked."""
        promise = promise_name(action.run, action.retries)
        admission = await self._requested(action, promise)
        bucket, key = workflow.bucket, admission_key(action.run, action.retries)
        try:
            await self._store.put(bucket, key, encode_json(admission), if_absent=True)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            stored = await self._store.get(bucket, key, bytes_max=RECORD_BYTES_MAX)
            admission, _ = decode_json_known(Admission, stored.body or b"", key)
        if not admission.granted:
            await self._scheduler.ask(ops.Waive(run=promise))
        logger.info(
            "%s of %s is %s: %s",
            action.run,
            action.workflow.name,
            "promised" if admission.granted else "refused",
            admission.why,
            extra={
                "event": "run_admission",
                "run": action.run,
                "workflow": action.workflow.name,
                "outcome": admission.outcome.value,
            },
        )

    @_perform.register
    async def _waive(self, action: WaiveSteps, _workflow: Workflow) -> None:
        for job in action.jobs:
            await self._scheduler.ask(ops.Waive(run=action.promise, job=job))

    async def _requested(self, action: Admit, promise: str) -> Admission:
        wall_s = self._clock.wall_s()
        try:
            steps = promised_steps(
                action.workflow, self._functions(), Prices(), run=action.run, done=action.done
            )
        except AppError as error:  # the step is gone, or no longer what a promise can hold
            return refused(error.message, wall_s)
        return await request_promise(
            self._scheduler,
            promise,
            steps,
            action.slo,
            gone_s=max(0.0, wall_s - action.begun_at_s),
            wall_s=wall_s,
        )

    # ------------------------------------------------------------------ jobs begin

    @_perform.register
    async def _start(self, action: StartStep, workflow: Workflow) -> None:
        bodies: Sequence[str] = action.bodies
        if action.inputs is not None:
            bodies = [await self._listed(action, action.inputs, workflow)]
        await self._send(self._function(action.step), bodies)
        key = started_key(action.run, action.retries, action.step)
        at_s = self._clock.wall_s()
        await put_once(self._store, workflow.bucket, key, encode_json({"at_s": at_s}))

    async def _listed(self, action: StartStep, inputs: Inputs, workflow: Workflow) -> str:
        """Store the list of files, unless one of as many retries is there; the job's message."""
        bucket, key = workflow.bucket, inputs_key(action.run, action.step)
        await put_once(self._store, bucket, key, encode_json(inputs))
        stored = await self._store.get(bucket, key, bytes_max=RECORD_BYTES_MAX)
        standing, _ = decode_json_known(Inputs, stored.body or b"", key)
        if standing.retry < inputs.retry:
            with Tolerating(ErrorCode.CONFLICT):
                await self._store.put(bucket, key, encode_json(inputs), if_match=stored.etag)
            stored = await self._store.head(bucket, key)
        return list_body(
            action,
            bucket=bucket,
            etag=stored.etag,
            version=stored.version_id,
            size=stored.size,
        )

    async def _send(self, function: Function, bodies: Sequence[str]) -> None:
        at_once = asyncio.Semaphore(CALLS_AT_ONCE)

        async def send(some: Sequence[str]) -> None:
            async with at_once:
                await self._queue.send(function.queue_url, some)

        parts = range(0, len(bodies), MESSAGES_PER_CALL)
        await together(send(bodies[n : n + MESSAGES_PER_CALL]) for n in parts)

    @_perform.register
    async def _resend(self, action: ResendLost, workflow: Workflow) -> None:
        """Only when the queue is empty: what waits there has no record yet."""
        function = self._function(action.step)
        if await self._queue.backlog(function.queue_url):
            return
        records = await together(record_of(self._scheduler, job) for job in action.jobs)
        lost = [record is None or record.outcome is not None for record in records]
        if not any(lost):
            return
        logger.warning(
            "step %s of %s: %d jobs have no message; they are sent again",
            action.step,
            action.run,
            sum(lost),
            extra={"event": "step_lost", "run": action.run},
        )
        start = action.start
        bodies = [body for body, gone in zip(start.bodies, lost, strict=False) if gone]
        if start.inputs is not None:
            bodies = [await self._listed(start, start.inputs, workflow)]
        await self._send(function, bodies)

    def _function(self, step: str) -> Function:
        function = self._functions().get(step)
        if function is None:  # since the fold
            raise AppError(ErrorCode.UNAVAILABLE, f"function {step} is not deployed at present")
        return function

    # ------------------------------------------------------------------ jobs and runs end

    @_perform.register
    async def _close(self, action: CloseJobs, _workflow: Workflow) -> None:
        function, at_once = self._functions().get(action.step), asyncio.Semaphore(CALLS_AT_ONCE)

        async def close(job: ClosedJob) -> None:
            async with at_once:
                if function is None:
                    await self._end_unknown(action, job)
                else:
                    await self._close_job(function, action, job)

        await together(close(job) for job in action.jobs)

    async def _close_job(self, function: Function, action: CloseJobs, closed: ClosedJob) -> None:
        """As a cancel does: its result, then its lease or its record."""
        bucket, wall_s = function.intermediate_bucket, self._clock.wall_s()
        record = await record_of(self._scheduler, closed.job)
        result = _cancelled(closed.job, action, 0 if record is None else record.attempt, wall_s)
        standing = await write_result(self._store, bucket, result, closed.replace_etag, wall_s)
        if standing.state == JobState.CANCELLED and record is not None and record.outcome is None:
            await self._end(function, action, record)

    async def _end_unknown(self, action: CloseJobs, closed: ClosedJob) -> None:
        """End the record of a job whose function was removed, and its lease with it."""
        record = await record_of(self._scheduler, closed.job)
        if record is not None and record.outcome is None:
            await self._finish(action, record)

    async def _end(self, function: Function, action: CloseJobs, record: Record) -> None:
        """End what a job holds: its owner finishes it when its lease ends, or finds the result."""
        if record.lease is not None:
            with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.CONFLICT):
                await self._scheduler.ask(ops.Release(lease=record.lease, detail=action.detail))
            return
        if not record.with_device and record.step in (Step.STAGED, Step.RUNNING):
            bucket, wall_s = function.intermediate_bucket, self._clock.wall_s()
            if not function.object_bucket:
                await close_claim(self._store, bucket, record.holder, record.attempt, wall_s)
            return
        await self._finish(action, record)

    async def _finish(self, action: CloseJobs, record: Record) -> None:
        await self._scheduler.ask(
            ops.Finish(
                holder=JobId(record.holder),
                outcome=JobState.CANCELLED.value,
                reason=action.reason.value,
                detail=action.detail,
                committed_ago_s=0.0,
            )
        )

    @_perform.register
    async def _end_run(self, action: EndRun, workflow: Workflow) -> None:
        if action.promise:
            await self._scheduler.ask(ops.Waive(run=action.promise))
        await self._notify(action, workflow)
        key, body = run_result_key(action.run), encode_json(action.result)
        etag = action.replace_etag
        with Tolerating(ErrorCode.CONFLICT):
            await self._store.put(workflow.bucket, key, body, if_absent=etag is None, if_match=etag)
            self._report_end(action)

    async def _notify(self, action: EndRun, workflow: Workflow) -> None:
        """Before the result is there, so that no end is lost; a notice waits for its result."""
        end: dict[str, object] = encode(action.result.in_short)
        notice = Notice(target="", run=action.run, retries=action.result.retries, end=end)
        bodies = notice_bodies(workflow.notify, notice)
        if bodies:
            await self._queue.send(workflow.queue_url, bodies)


def _cancelled(job: str, action: CloseJobs, attempt: int, wall_s: float) -> Result:
    return Result(
        job_id=job,
        state=JobState.CANCELLED.value,
        reason=action.reason.value,
        attempt=attempt,
        nonce="",
        exit_code=None,
        files=[],
        times={},
        log_tail="",
        detail=action.detail,
        ended_at_s=wall_s,
    )

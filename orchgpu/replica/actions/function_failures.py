"""Lambda's own record of a failed start, stored as the report of its attempt."""

from __future__ import annotations

import asyncio

from contract.keys import report_key
from contract.result import Report
from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.model import EndReason, Record, Step
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import RecordAnswer
from orchgpu.core import actions as do
from orchgpu.core.job import UNCOUNTED
from orchgpu.ports import ObjectStore, Scheduler
from orchgpu.replica.actions.objects import close_claim, put_once


class FunctionFailures:
    """Stores failures of functions. Any replica may do so for any job; idempotent."""

    def __init__(
        self, store: ObjectStore, scheduler: Scheduler, clock: Clock, budget: Budget
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._clock = clock
        self._budget = budget

    async def record(self, action: do.RecordFunctionFailure) -> None:
        """Store the report, and end the lease of a function that never opened its session."""
        if await self._is_of_another_start(action):
            return
        report = Report(
            job_id=action.job,
            attempt=action.attempt,
            nonce="",
            reason=action.reason.value,
            exit_code=None,
            detail=action.detail,
            log_tail="",
            times={},
        )
        key = report_key(action.job, action.attempt)
        # the runner's own report stays
        await put_once(self._store, action.function.intermediate_bucket, key, report.to_json())
        if _is_unopened(await record_of(self._scheduler, action.job), action):
            # Lambda may deliver an event twice: another delivery may just have opened the session,
            # and its host's report is on its way. This delivery must not end that lease.
            await asyncio.sleep(self._budget.failure_grace_s)
            record = await record_of(self._scheduler, action.job)
            if record is not None and record.lease is not None and _is_unopened(record, action):
                await self._scheduler.ask(
                    ops.Release(
                        lease=record.lease, reason=EndReason.NOT_STARTED, detail=action.detail
                    )
                )

    async def _is_of_another_start(self, action: do.RecordFunctionFailure) -> bool:
        """True when Lambda dropped one of the two starts of an attempt, and the other one runs it.

        Of an attempt without a device none runs from now on, if this one did or none has yet:
        Lambda may deliver an event twice, and the other delivery may come later.
        """
        function = action.function
        if action.with_device and action.reason in UNCOUNTED:
            return not _is_unopened(await record_of(self._scheduler, action.job), action)
        if action.with_device or function.object_bucket:
            return False
        bucket, wall_s = function.intermediate_bucket, self._clock.wall_s()
        claim = await close_claim(self._store, bucket, action.job, action.attempt, wall_s)
        return claim.request not in ("", action.request)


async def record_of(scheduler: Scheduler, job: str) -> Record | None:
    return (await scheduler.ask(ops.RecordOf(holder=JobId(job)))).record


def present(answer: RecordAnswer) -> Record:
    """The record of an answer. Raises NOT_FOUND."""
    if answer.record is None:
        raise AppError(ErrorCode.NOT_FOUND, "the job record is gone")
    return answer.record


def _is_unopened(record: Record | None, action: do.RecordFunctionFailure) -> bool:
    if record is None or record.lease is None:
        return False
    return record.step is Step.STAGED and record.attempt == action.attempt

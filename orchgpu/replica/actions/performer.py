"""Carries out the machine's actions: one method per action, at most one event back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import singledispatchmethod
from typing import Any

from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import RETRY_AT, GrantedLease
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.execution import Place
from orchgpu.core.routing import InputEvent
from orchgpu.ports import (
    NO_BODY,
    FunctionStarter,
    JobQueue,
    ObjectStore,
    Scheduler,
    StoredObject,
)
from orchgpu.replica.actions.admitting import promise_of_job
from orchgpu.replica.actions.function_failures import FunctionFailures, present, record_of
from orchgpu.replica.actions.handing_back import NOT_AWAY, hand_back, leave
from orchgpu.replica.actions.objects import (
    close_claim,
    committed_target,
    metadata_of,
    note_target,
    put_envelope,
    read_claim,
    read_report,
    read_result,
    remove_envelope,
    write_result,
)
from orchgpu.replica.actions.packing import packed
from orchgpu.replica.actions.starting import DirectStarts, HostStarts
from orchgpu.replica.actions.timers import Timers

logger = logging.getLogger(__name__)

#: Inputs read early are kept for packing up to this size in total; others are read again.
KEPT_BYTES_MAX = 64 * 2**20

Render = Callable[[str, GrantedLease], Mapping[str, object]]


class Performer:
    """Stateless, except for the inputs that it keeps between reading and packing."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        store: ObjectStore,
        functions: FunctionStarter,
        orders: HostStarts,
        scheduler: Scheduler,
        timers: Timers,
        render: Render,
        clock: Clock,
        budget: Budget,
        advance: Callable[[do.AdvanceRun], Awaitable[None]],
        strict: bool = False,
    ) -> None:
        """`advance`: lets the run of an ended job continue, or raises AppError.

        `strict`: a broken assertion fails the process, as simulations want it, not its job.
        """
        self._strict = strict
        self._queue = queue
        self._store = store
        self._starts = DirectStarts(functions, clock, budget)
        self._orders = orders
        self._scheduler = scheduler
        self._timers = timers
        self._render = render
        self._clock = clock
        self._budget = budget
        self._advance = advance
        self._failures = FunctionFailures(store, scheduler, clock, budget)
        self._kept: dict[str, StoredObject] = {}
        self._kept_bytes = 0

    def perform(self, action: do.Action) -> Awaitable[on.Event | None] | None:
        """Start the action. None: it is done, and no event follows from it directly.

        An expected failure is an event like any other outcome.
        """
        work = self._begin(action)
        return None if work is None else self._outcome(action, work)

    @singledispatchmethod
    def _begin(self, action: do.Action) -> Awaitable[on.Event | None] | None:
        """Call the method of an action: the one that is registered below for its class."""
        raise NotImplementedError(type(action).__name__)

    async def _outcome(
        self, action: do.Action, work: Awaitable[on.Event | None]
    ) -> on.Event | None:
        try:
            return await work
        except AppError as error:
            expected = self._expected(action, error)
            if expected is not None:
                return expected
            logger.warning(
                "%s: %s",
                type(action).__name__,
                error,
                extra={"event": "call_failed", "job": action.job},
            )
            return on.CallFailed(
                **self._about(action),
                action=action,
                retryable=error.retryable,
                message=str(error),
                exhausted=error.code is ErrorCode.EXHAUSTED,
            )
        except Exception as error:
            if self._strict and isinstance(error, AssertionError):
                raise
            logger.exception(
                "%s", type(action).__name__, extra={"event": "fault", "job": action.job}
            )
            message = f"{type(error).__name__}: {str(error)[:500]}"
            return on.CallFailed(
                **self._about(action), action=action, retryable=False, message=message
            )

    def _expected(self, action: do.Action, error: AppError) -> on.Event | None:
        """The event for an error that means: another owner was faster, or the lease has ended."""
        if error.code not in (ErrorCode.NOT_FOUND, ErrorCode.CONFLICT):
            return None
        match action:
            case (
                do.OpenAttempt() | do.AdoptRecord() | do.ReopenRecord() | do.RecordAttemptFailure()
            ):
                return on.RecordConflict(**self._about(action), record=error.details.get("record"))
            case do.Leave():
                return on.HandedBack(**self._about(action))
            case do.RenewLease() | do.RecordStaged():
                return on.LeaseGone(**self._about(action), attempt=action.attempt)
        return None

    def due_in_s(self, job: str, but: Collection[str] = ()) -> float | None:
        """As `Timers.next_in_s`."""
        return self._timers.next_in_s(job, but)

    # ------------------------------------------------------------------ this process alone

    @_begin.register
    def _arm(self, action: do.ArmTimer) -> None:
        def due() -> on.JobEvent:
            return on.TimerFired(**self._about(action), timer=action.timer)

        self._timers.arm(action.job, action.timer, action.in_s, due)

    @_begin.register
    def _repeat_later(self, action: do.RepeatLater) -> None:
        def due() -> on.JobEvent:
            return on.RepeatDue(**self._about(action), action=action.action)

        name = f"repeat {type(action.action).__name__}"
        self._timers.arm(action.job, name, action.in_s, due)

    @_begin.register
    def _forget(self, action: do.ForgetJob) -> None:
        self._timers.forget(action.job)
        self._drop_input(action.job)

    def _drop_input(self, job: str) -> None:
        kept = self._kept.pop(job, None)
        if kept is not None and kept.body is not None:
            self._kept_bytes -= len(kept.body)

    def _about(self, action: do.Action) -> dict[str, Any]:
        return {
            "job": action.job,
            "at_s": self._clock.monotonic_s(),
            "wall_s": self._clock.wall_s(),
        }

    def _since(self, at_s: float) -> float:
        return max(0.0, self._clock.monotonic_s() - at_s)

    # ------------------------------------------------------------------ reading

    async def _get_input(self, source: InputEvent, *, inline: bool) -> StoredObject:
        return await self._store.get(
            source.bucket,
            source.key,
            version_id=source.version_id,
            if_match=source.etag if source.version_id is None else None,
            bytes_max=self._budget.inline_input_bytes_max if inline else NO_BODY,
        )

    @_begin.register
    async def _read_input(self, action: do.ReadInput) -> on.Event:
        try:
            stored = await self._get_input(action.input, inline=action.inline)
        except AppError as error:
            return self._input_lost(action, error)
        size = len(stored.body or b"")
        if self._kept_bytes + size <= KEPT_BYTES_MAX:
            self._drop_input(action.job)
            self._kept[action.job] = stored
            self._kept_bytes += size
        return on.InputRead(
            **self._about(action),
            etag=stored.etag,
            version_id=stored.version_id,
            last_modified=stored.last_modified,
            size=stored.size,
        )

    def _input_lost(self, action: do.Action, error: AppError) -> on.Event:
        if error.code is ErrorCode.NOT_FOUND:
            return on.InputMissing(**self._about(action))
        if error.code is ErrorCode.CONFLICT:
            return on.InputChanged(**self._about(action))
        raise error

    @_begin.register
    async def _read_result(self, action: do.ReadResult) -> on.Event:
        store, wall_s = self._store, self._clock.wall_s()
        result, etag = await read_result(store, action.bucket, action.job, wall_s)
        absent = result is None or (etag and etag == action.replace_etag)
        if absent and action.target is not None and action.attempt:
            made = await committed_target(store, action, wall_s)
            if made is not None:
                result = await write_result(store, action.bucket, made, action.replace_etag, wall_s)
                etag = ""
        return on.ResultRead(**self._about(action), result=result, etag=etag)

    @_begin.register
    async def _read_report(self, action: do.ReadReport) -> on.Event:
        report = await read_report(self._store, action.bucket, action.job, action.attempt)
        return on.ReportRead(**self._about(action), attempt=action.attempt, report=report)

    # ------------------------------------------------------------------ records and leases

    @_begin.register
    async def _read_record(self, action: do.ReadRecord) -> on.Event:
        record = await record_of(self._scheduler, action.job)
        return on.RecordConflict(**self._about(action), record=record)

    @_begin.register
    async def _open_attempt(self, action: do.OpenAttempt) -> on.Event:
        answer = await self._scheduler.ask(
            ops.Attempt(
                holder=JobId(action.job),
                n=action.attempt,
                revision=action.revision,
                handle=action.receipt_handle,
                block=action.payload,
                request=action.request,
                received_ago_s=self._since(action.received_at_s),
                hold=action.hold,
            )
        )
        about = self._about(action)
        if answer.granted is not None:
            return on.AttemptGranted(
                **about, attempt=action.attempt, granted=answer.granted, record=answer.record
            )
        if answer.outcome is Outcome.OPENED and answer.record is not None:
            return on.AttemptOpened(**about, attempt=action.attempt, record=answer.record)
        assert answer.explanation is not None, "an attempt is granted, opened or explained"
        if answer.outcome is Outcome.WAITING and answer.record is not None:
            return on.AttemptWaiting(**about, record=answer.record, explanation=answer.explanation)
        busy = answer.outcome is Outcome.BUSY
        return on.AttemptImpossible(**about, explanation=answer.explanation, busy=busy)

    @_begin.register
    async def _request_promise(self, action: do.RequestPromise) -> on.Event:
        admission = await promise_of_job(self._scheduler, action, self._clock.wall_s())
        return on.PromiseAnswered(**self._about(action), admission=admission)

    @_begin.register
    async def _adopt(self, action: do.AdoptRecord) -> on.Event:
        adopted = await self._scheduler.ask(
            ops.Adopt(
                holder=JobId(action.job), revision=action.revision, handle=action.receipt_handle
            )
        )
        return on.Adopted(**self._about(action), record=adopted.record, granted=adopted.granted)

    @_begin.register
    async def _reopen(self, action: do.ReopenRecord) -> on.Event:
        answer = await self._scheduler.ask(
            ops.Reopen(
                holder=JobId(action.job), revision=action.revision, handle=action.receipt_handle
            )
        )
        return on.Reopened(**self._about(action), record=present(answer))

    @_begin.register
    async def _store_handle(self, action: do.StoreReceiptHandle) -> None:
        await self._scheduler.ask(
            ops.Handle(holder=JobId(action.job), handle=action.receipt_handle)
        )

    @_begin.register
    async def _renew(self, action: do.RenewLease) -> on.Event:
        await self._scheduler.ask(ops.Renew(lease=LeaseId(action.lease)))
        return on.LeaseRenewed(**self._about(action), attempt=action.attempt)

    @_begin.register
    async def _record_staged(self, action: do.RecordStaged) -> on.Event:
        await self._scheduler.ask(
            ops.StagedOp(
                holder=JobId(action.job),
                lease=None if action.lease is None else LeaseId(action.lease),
                connect_by_s=action.connect_by_s,
            )
        )
        return on.StagedRecorded(**self._about(action), attempt=action.attempt)

    @_begin.register
    async def _record_started(self, action: do.RecordStarted) -> on.Event | None:
        claim = await read_claim(self._store, action.bucket, action.job, action.attempt)
        if claim is None or not claim.request:
            return None
        await self._scheduler.ask(ops.StartedOp(holder=JobId(action.job), n=action.attempt))
        return on.AttemptStarted(**self._about(action), attempt=action.attempt, claim=claim)

    @_begin.register
    async def _close_attempt(self, action: do.CloseAttempt) -> on.Event:
        wall_s = self._clock.wall_s()
        claim = await close_claim(self._store, action.bucket, action.job, action.attempt, wall_s)
        return on.AttemptClosed(**self._about(action), attempt=action.attempt, claim=claim)

    @_begin.register
    async def _release(self, action: do.ReleaseLease) -> None:
        detail = "released by the orchestrator"
        await self._scheduler.ask(ops.Release(lease=LeaseId(action.lease), detail=detail))

    @_begin.register
    async def _report_throttled(self, action: do.ReportThrottled) -> None:
        with contextlib.suppress(AppError):  # a scheduler that is away grants nothing ahead
            await self._scheduler.ask(ops.Beat(throttled_s=action.pause_s))

    @_begin.register
    async def _record_attempt_failure(self, action: do.RecordAttemptFailure) -> on.Event:
        record = await record_of(self._scheduler, action.job)
        if record is None or record.attempt != action.attempt or record.outcome is not None:
            return on.RecordConflict(**self._about(action), record=record)
        answer = await self._scheduler.ask(
            ops.FailAttempt(
                holder=JobId(action.job),
                revision=record.revision,
                reason=action.reason.value,
                detail=action.detail,
                retry_at_s=self._clock.wall_s() + action.pause_s,
            )
        )
        recorded = present(answer)  # a failure that was reported before keeps its first pause
        left_s = recorded.times.get(RETRY_AT, 0.0) - self._clock.wall_s()
        return on.AttemptFailureRecorded(
            **self._about(action), record=recorded, pause_s=max(0.0, left_s)
        )

    @_begin.register
    async def _finish(self, action: do.FinishJob) -> on.Event:
        await self._scheduler.ask(
            ops.Finish(
                holder=JobId(action.job),
                outcome=action.outcome,
                reason=action.reason,
                detail=action.detail,
                block=action.payload,
                received_ago_s=self._since(action.received_at_s),
                committed_ago_s=self._since(action.committed_at_s),
                way_s=action.way_s,
                workload=None if action.way_s is None else action.workload,
            )
        )
        if action.promise:
            await self._scheduler.ask(ops.Waive(run=action.promise))
        return on.Finished(**self._about(action))

    # ------------------------------------------------------------------ envelope, report, result

    @_begin.register
    async def _stage(self, action: do.StageEnvelope) -> on.Event:
        stored = self._kept.get(action.job)
        if stored is None:
            try:
                inline = action.function.inline or action.input.lists_files
                stored = await self._get_input(action.input, inline=inline)
            except AppError as error:
                return self._input_lost(action, error)
        metadata = await metadata_of(self._store, action.input, stored)
        stored = replace(stored, metadata=metadata)
        if action.target is not None:
            await note_target(self._store, action)
        body = await self._pack(action, stored)
        key = await put_envelope(self._store, action, body)
        if action.place is Place.LAMBDA:  # on a host it is ordered, also by an adopter
            await self._starts.start(action.function, key)
        self._drop_input(action.job)
        return on.EnvelopeStaged(**self._about(action), attempt=action.attempt)

    @_begin.register
    async def _order_run(self, action: do.OrderRun) -> on.Event:
        again_in_s = await self._orders.order(action)
        return on.RunOrdered(**self._about(action), attempt=action.attempt, again_in_s=again_in_s)

    @_begin.register
    async def _read_runs(self, action: do.ReadRuns) -> on.Event:
        runs = await self._orders.in_batch(action)
        return on.RunsRead(**self._about(action), attempt=action.attempt, runs=runs)

    @_begin.register
    async def _end_runs(self, action: do.EndRuns) -> None:
        await self._orders.end_in_batch(action)

    @_begin.register
    async def _remove_envelope(self, action: do.RemoveEnvelope) -> None:
        await remove_envelope(self._store, action)

    async def _pack(self, action: do.StageEnvelope, stored: StoredObject) -> bytes:
        environment = None
        if action.granted is not None:
            environment = self._render(action.function.middleware, action.granted)
        times = {"staged_at_s": self._clock.wall_s(), "connect_by_s": self._budget.connect_by_s}
        return await packed(action, stored, environment, **times)

    @_begin.register
    async def _record_function_failure(self, action: do.RecordFunctionFailure) -> on.Event:
        await self._failures.record(action)
        return on.FunctionFailureRecorded(**self._about(action), attempt=action.attempt)

    @_begin.register
    async def _write_result(self, action: do.WriteResult) -> on.Event:
        result = await write_result(
            self._store, action.bucket, action.result, action.replace_etag, self._clock.wall_s()
        )
        return on.ResultWritten(**self._about(action), result=result)

    # ------------------------------------------------------------------ messages

    @_begin.register
    async def _send_dead_letter(self, action: do.SendDeadLetter) -> on.Event:
        await self._queue.send(action.queue_url, [action.body], traceparent=action.traceparent)
        return on.DeadLetterSent(**self._about(action))

    @_begin.register
    async def _delete(self, action: do.DeleteMessages) -> on.Event:
        advance = action.advance
        if advance is not None:
            await self._advance(advance)
        if action.notices is not None:
            await self._queue.send(action.notices.queue_url, action.notices.bodies)
        if action.receipt_handles:
            await self._queue.delete(action.queue_url, action.receipt_handles)
        return on.MessagesDeleted(**self._about(action))

    @_begin.register
    async def _extend(self, action: do.ExtendVisibility) -> None:
        receipt_handles = [h for h in action.receipt_handles if h]
        if receipt_handles:
            visibility_s = self._budget.visibility_s
            await self._queue.set_visibility(action.queue_url, receipt_handles, visibility_s)

    @_begin.register
    async def _hand_back(self, action: do.HandBack) -> on.Event | None:
        is_free = await hand_back(self._queue, self._scheduler, action)
        return on.HandedBack(**self._about(action)) if is_free else None

    @_begin.register
    async def _leave(self, action: do.Leave) -> on.Event:
        due_s = self._timers.next_in_s(action.job, NOT_AWAY)
        away_s = self._budget.away_s
        hidden_s = away_s if due_s is None else min(max(0.0, due_s), away_s)
        await leave(self._queue, self._scheduler, action, hidden_s)
        return on.HandedBack(**self._about(action))

    @_begin.register
    async def _split(self, action: do.SplitMessage) -> None:
        await self._queue.send(action.queue_url, action.bodies, traceparent=action.traceparent)
        await self._queue.delete(action.queue_url, [action.receipt_handle])

    @_begin.register
    async def _quarantine(self, action: do.QuarantineMessage) -> None:
        await self._queue.send(action.dead_letter_url, [action.body])
        await self._queue.delete(action.queue_url, [action.receipt_handle])

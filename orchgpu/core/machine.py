"""The job machine: the decisions of one replica about the jobs in hand.

Theory of operation
-------------------
Durable truth lives outside: the message in SQS, the record and the leases in the scheduler's
journal, the result in the intermediate bucket. This machine holds only what one replica needs for
its next action, so its death loses nothing: any replica adopts the record and resumes at its step.

    READING ─▶ OPENING ─▶ (WAITING ─▶ ACCEPTING) ─▶ STAGING ─▶ RECORDING ─▶ RUNNING ─▶ CHECKING ─┬─▶ FINISHING ─▶ DELETING
       │          ▲                                                                              │
       │          └── RECHECKING ◀── BACKOFF ◀── FAILING ◀── EXPLAINING ◀────────────────────────┤ no result
       │                                                         ▲ GRACE ◀───────────────────────┘
       └─ gone, overwritten, impossible, attempts used up ─▶ CONCLUDING ─▶ (DEAD_LETTERING) ─▶ FINISHING

Invariants:
1. A message is deleted only after `FinishJob` was answered, and a job is finished only with a result.
2. Attempt n+1 is opened only after attempt n's leases ended and a new read found no result.
3. A failed call is an event; it is repeated with a back-off and never dropped.
4. A replica that is not the owner passes the receipt handle on and forgets the job.
"""  # noqa: E501 - a diagram

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from contract.keys import job_id
from corekit.budget import Budget
from corekit.ids import IdSource, RandomStream
from corekit.machine import Decision
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseState, Record, Step
from orchgpu.core import actions as do
from orchgpu.core import attempt, ending, without_device
from orchgpu.core import events as on
from orchgpu.core.function import Function
from orchgpu.core.isolation import Isolation, adoption
from orchgpu.core.job import (
    NOT_STARTED,
    UNSTAGED,
    UNSTAGED_SOON,
    Job,
    Phase,
    input_from_payload,
)
from orchgpu.core.routing import Ignored, InputEvent, Rejected, Several, classify
from orchgpu.core.target import Target

NON_RETRYABLE_TRIES_MAX = 5  #: this many refusals of a read or a request end the job
RETRY_S_MAX = 10.0  #: a failed call is repeated at least this often (scaled with the budget)

#: Phases in which the lease expires unless this replica renews it.
_MAY_EXPIRE = (Phase.ACCEPTING, Phase.STAGING, Phase.RECORDING)

#: Phases that only a push of the scheduler ends.
_AWAITING_PUSHES = (Phase.WAITING, Phase.RUNNING)

#: Phases without an open attempt: the next attempt uses the function deployed by then.
_BETWEEN_ATTEMPTS = (Phase.READING, Phase.BACKOFF, Phase.RECHECKING)


class OrchestratorMachine:
    """The decisions of one replica: events in, actions out, for every job in hand."""

    def __init__(self, *, budget: Budget, session: str, ids: IdSource) -> None:
        self._budget = budget
        self._session = session  #: the name of this replica as owner of records
        self._jitter: RandomStream = ids.stream("jitter")
        self._functions: dict[str, Function] = {}
        self._draining = False
        self._isolation = Isolation()
        self.jobs: dict[str, Job] = {}

    def set_functions(self, functions: Mapping[str, Function]) -> None:
        """Replace the deployed functions. An attempt keeps the one it was opened with."""
        self._functions = dict(functions)

    def waiting_count(self, function: str) -> int:
        """The number of jobs of a function that wait for a device; it limits receiving."""
        return sum(
            j.function.name == function and j.phase in NOT_STARTED for j in self.jobs.values()
        )

    def count(self, function: str) -> int:
        """The number of jobs of a function in hand, waiting or running."""
        return sum(j.function.name == function for j in self.jobs.values())

    def apply(self, change: None) -> None:
        """Do nothing: this machine has no durable changes."""

    def handle(self, event: on.Event) -> Decision[None, do.Action]:
        actions = tuple(self._route(event))
        return Decision(actions=tuple(self._isolation.admitted(actions, self.jobs)))

    # ------------------------------------------------------------------ routing of events

    def _route(self, event: on.Event) -> Iterable[do.Action]:
        match event:
            case on.MessageReceived():
                return self._message(event)
            case on.DrainRequested():
                return self._drain(event)
            case on.SchedulerReturned():
                return self._resynchronise()
            case on.ObjectNoticed():
                return self._object(event)
            case on.Orphaned():
                return self._orphan(event)
            case on.JobEvent():
                job = self.jobs.get(event.job)
                return () if job is None else self._job_event(job, event)
        return ()

    def _job_event(self, job: Job, event: on.JobEvent) -> Iterable[do.Action]:
        if not isinstance(event, on.CallFailed | on.TimerFired | on.RepeatDue):
            job.failures.clear()
        if job.phase in _BETWEEN_ATTEMPTS:
            now = self._functions.get(job.function.name)
            if now is not None and now.endpoints == job.function.endpoints:
                job.function = now  # its code is deployed already: so are variables and limits
        return self._dispatch(job, event)

    def _dispatch(  # noqa: C901 - one flat table
        self, job: Job, event: on.JobEvent
    ) -> Iterable[do.Action]:
        budget, jitter = self._budget, self._jitter
        match event:
            case on.CallFailed():
                return self._call_failed(job, event)
            case on.RepeatDue():
                return [event.action]
            case on.TimerFired():
                return self._timer(job, event)
            case on.InputRead() | on.InputMissing() | on.InputChanged():
                return self._input(job, event)
            case on.ResultRead():
                return self._result(job, event)
            case on.RecordConflict():
                return self._conflict(job, event)
            case on.Adopted():
                return self._adopted(job, event)
            case on.Reopened():
                return attempt.reopened(job, event)
            case on.AttemptGranted():
                return attempt.granted(job, event, budget)
            case on.AttemptOpened():
                return without_device.opened(job, event, budget)
            case on.AttemptStarted():
                return without_device.started(job, event)
            case on.AttemptClosed():
                return without_device.closed(job, event, budget)
            case on.AttemptWaiting():
                return attempt.waiting(job, event, budget)
            case on.AttemptImpossible():
                return ending.impossible(job, event, budget, jitter)
            case on.LeaseRenewed():
                return attempt.renewed(job, event, budget)
            case on.EnvelopeStaged():
                return attempt.staged(job, event, budget)
            case on.StagedRecorded():
                if not job.with_device:
                    return without_device.recorded(job, event, budget)
                return attempt.recorded(job, event, budget)
            case on.LeaseChanged():
                return self._lease(job, event)
            case on.LeaseGone():
                return self._lease_gone(job, event)
            case on.ResultNoticed() | on.ReportNoticed() if not job.with_device:
                return without_device.noticed(job)
            case on.ResultNoticed():
                return attempt.look_for_result(job)
            case on.ReportNoticed():
                return ()  # the end of its lease comes
            case on.ReportRead():
                return ending.report_read(job, event, budget, jitter)
            case on.FunctionFailureRecorded():
                return ending.function_failure_recorded(job, event)
            case on.AttemptFailureRecorded():
                return ending.failure_recorded(job, event)
            case on.ResultWritten():
                return ending.result_written(job, event)
            case on.DeadLetterSent():
                return ending.dead_letter_sent(job)
            case on.Finished():
                return ending.finished(job)
            case on.ReceiptHandleRenewed():
                return attempt.receipt_handle_renewed(job, event)
            case on.Disowned() | on.HandedBack() | on.MessagesDeleted():
                return self._forget(job)
        raise AssertionError(f"no case for {type(event).__name__}")

    # ------------------------------------------------------------------ intake

    def _message(self, event: on.MessageReceived) -> list[do.Action]:
        function = self._functions.get(event.function)
        if function is None:
            return []  # undeployed since then: the message reappears when its visibility ends
        verdict = classify(event.body, function)
        token = event.message_id
        match verdict:
            case Ignored():
                return [
                    do.DeleteMessages(
                        job=token,
                        queue_url=function.queue_url,
                        receipt_handles=(event.receipt_handle,),
                    )
                ]
            case Rejected():
                body = ending.dead_letter_body(
                    event.body, None, verdict.reason, verdict.detail, event.wall_s
                )
                return [
                    do.QuarantineMessage(
                        job=token,
                        queue_url=function.queue_url,
                        body=body,
                        receipt_handle=event.receipt_handle,
                        dead_letter_url=function.dead_letter_url,
                    )
                ]
            case Several():
                return [
                    do.SplitMessage(
                        job=token,
                        queue_url=function.queue_url,
                        bodies=verdict.bodies,
                        receipt_handle=event.receipt_handle,
                        traceparent="" if event.trace is None else event.trace.parent,
                    )
                ]
            case InputEvent():
                return self._input_message(event, verdict, function)
        assert_never(verdict)

    def _input_message(
        self, event: on.MessageReceived, source: InputEvent, function: Function
    ) -> list[do.Action]:
        if self._draining:
            receipt_handles = (event.receipt_handle,)
            return [
                do.HandBack(
                    job="",
                    queue_url=function.queue_url,
                    receipt_handles=receipt_handles,
                    revision=0,
                )
            ]
        name = event.message_id  # until the version, and so the job, is known
        if source.version_id is not None:
            name = job_id(source.bucket, source.key, source.version_id, function.name)
        known = self.jobs.get(name)
        if known is not None:
            known.add_receipt_handle(event.message_id, event.receipt_handle)
            return []
        job = Job(
            id=name,
            function=function,
            input=source,
            received_at_s=event.at_s,
            receipt_handles={event.message_id: event.receipt_handle},
            sent_at_s=event.sent_at_s,
            trace=event.trace,
        )
        self.jobs[name] = job
        reads: list[do.Action] = [do.ReadInput(job=name, input=source, inline=function.inline)]
        if source.version_id is not None:
            reads.append(do.ReadResult(job=name, bucket=function.intermediate_bucket))
        return [
            *reads,
            do.ArmTimer(job=name, timer=do.Timer.BEAT, in_s=self._budget.visibility_beat_s),
        ]

    def _input(
        self, job: Job, event: on.InputRead | on.InputMissing | on.InputChanged
    ) -> Iterable[do.Action]:
        if isinstance(event, on.InputMissing) and ending.may_be_late(job, event, self._budget):
            self._isolation.survived(job.id)
            return attempt.read_input_again(job, self._budget)
        if job.phase is not Phase.READING:
            return ending.input_lost(job, event)
        if job.input.version_id is None and job.id in job.receipt_handles:
            return self._identify(job, event)
        if not isinstance(event, on.InputRead):
            return ending.input_lost(job, event)
        job.input_known = True
        return self._read(job)

    def _identify(
        self, job: Job, event: on.InputRead | on.InputMissing | on.InputChanged
    ) -> Iterable[do.Action]:
        """Name a job whose event has no version: by the version, or etag and date, of one read."""
        version = f"{job.input.etag}@{job.input.event_time}"
        if isinstance(event, on.InputRead):
            version = event.version_id or f"{event.etag}@{event.last_modified}"
            job.input = replace(job.input, version_id=event.version_id)
        token, name = job.id, job_id(job.input.bucket, job.input.key, version, job.function.name)
        del self.jobs[token]
        known = self.jobs.get(name)
        if known is not None:
            for message, receipt_handle in job.receipt_handles.items():
                known.add_receipt_handle(message, receipt_handle)
            return [do.ForgetJob(job=token)]
        job.id = name
        self.jobs[name] = job
        opening: list[do.Action] = [
            do.ForgetJob(job=token, known_as=name),
            do.ArmTimer(job=name, timer=do.Timer.BEAT, in_s=self._budget.visibility_beat_s),
        ]
        if not isinstance(event, on.InputRead):
            return [*opening, *ending.input_lost(job, event)]
        job.input_known = True
        return [*opening, do.ReadResult(job=name, bucket=job.function.intermediate_bucket)]

    def _result(self, job: Job, event: on.ResultRead) -> Iterable[do.Action]:
        if job.phase is not Phase.READING:
            return ending.result_read(job, event)
        job.result_known, job.result = True, event.result
        if event.result is not None:
            if not ending.may_replace(job, event):
                return ending.already_decided(job, event.result, event.at_s)
            job.replace_etag, job.result = event.etag, None
            # its record may be forgotten, but claims and reports of its attempts still stand
            job.attempt, job.first_attempt = event.result.attempt, event.result.attempt + 1
        return self._read(job)

    def _read(self, job: Job) -> Iterable[do.Action]:
        if not (job.input_known and job.result_known):
            return ()
        return attempt.open_next(job)

    # ------------------------------------------------------------------ ownership

    def _conflict(self, job: Job, event: on.RecordConflict) -> Iterable[do.Action]:
        record = event.record
        if record is None:
            return self._no_record(job)
        if record.outcome is not None:
            return self._terminal_conflict(job, record)
        if record.owner is not None and record.owner != self._session:
            passing = do.StoreReceiptHandle(job=job.id, receipt_handle=job.newest_receipt_handle)
            return [passing, *self._forget(job)]
        if record.owner == self._session and job.phase is Phase.OPENING and job.revision > 0:
            job.revision = record.revision  # our own newer write: the scheduler moved the record
            return attempt.open_next(job)
        job.phase = Phase.ADOPTING
        return [adoption(job, record, event.wall_s, self._budget, job.newest_receipt_handle)]

    def _no_record(self, job: Job) -> Iterable[do.Action]:
        """The record was never written, or was forgotten long after its end."""
        if job.result is not None and job.result.attempt == 0:
            # its dead letter may have been sent: twice is better than not at all
            return ending.finish_as(job, job.result, job.committed_at_s)
        if job.result is not None:  # decided and finished: only the message is left
            return ending.delete(job)
        job.revision = 0
        return attempt.open_next(job) if job.phase is Phase.OPENING else self._forget(job)

    def _terminal_conflict(self, job: Job, record: Record) -> Iterable[do.Action]:
        if job.replace_etag is not None and job.phase is Phase.OPENING:
            return [
                do.ReopenRecord(
                    job=job.id, revision=record.revision, receipt_handle=job.newest_receipt_handle
                )
            ]
        job.phase = Phase.DELETING
        return ending.delete(job)

    def _object(self, event: on.ObjectNoticed) -> list[do.Action]:
        """Find the job by the object's key; another replica finds its job by its own checks."""
        target = Target(bucket=event.bucket, key=event.key)
        waiting = [j for j in self.jobs.values() if j.phase is Phase.RUNNING]
        return [a for j in waiting if j.target == target for a in attempt.look_for_result(j)]

    def _orphan(self, event: on.Orphaned) -> Iterable[do.Action]:
        function = self._functions.get(event.function)
        source = input_from_payload(event.record.block)
        known = self.jobs.get(event.job)
        if known is not None and known.phase in _AWAITING_PUSHES:
            return [do.ReadRecord(job=known.id)]  # its owner no longer, by a push that was lost
        if self._draining or known is not None or function is None or source is None:
            return ()
        job = Job(
            id=event.job,
            function=function,
            input=source,
            received_at_s=event.at_s,
            receipt_handles={"record": event.record.handle},
            phase=Phase.ADOPTING,
        )
        self.jobs[job.id] = job
        # a beat at once: the last owner may have died just before its own
        adopting = adoption(job, event.record, event.wall_s, self._budget, None)
        return [adopting, *self._beat(job)]

    def _adopted(self, job: Job, event: on.Adopted) -> Iterable[do.Action]:
        record = event.record
        if job.phase is not Phase.ADOPTING:
            return ()  # its lease ended meanwhile, which is handled
        attempt.remember(job, record)
        job.granted = event.granted
        if job.result is not None:
            return ending.finish_as(job, job.result, job.committed_at_s)
        match record.step:
            case Step.ENDED:
                return ending.delete(job)
            case Step.WAITING:
                return attempt.wait(job, self._budget)
            case _ if record.packing and record.strikes > self._budget.strikes_max:
                return ending.poison(job, record.strikes, event.wall_s)
            case Step.RECEIVED if record.packing:
                return attempt.stage(job, self._budget)
            case Step.STAGED | Step.RUNNING if not record.with_device:
                return without_device.resume(job, record, event.wall_s, self._budget)
            case Step.RESERVED if event.granted is not None:
                return attempt.stage(job, self._budget)
            case Step.STAGED | Step.RUNNING | Step.COMMITTED if event.granted is not None:
                return attempt.watch(job, self._budget, running=record.step is not Step.STAGED)
            case Step.RECEIVED:
                return attempt.resume_between_attempts(job, record, event.wall_s, self._budget)
        return ending.lease_ended(
            job,
            job.attempt,
            attempt.end_reason(record),
            "the lease ended while no orchestrator watched it",
        )

    def _lease(self, job: Job, event: on.LeaseChanged) -> Iterable[do.Action]:
        if event.attempt != job.attempt:
            return ()
        if event.reason is EndReason.NOT_ACCEPTED:
            return ()  # nothing was tried: the request keeps its place, a new grant comes
        if event.state is LeaseState.ENDED and job.phase is Phase.WAITING:
            # its grant was pushed before the answer that the request waits, and was passed over
            return [do.ReadRecord(job=job.id)]
        if event.state is LeaseState.ENDED:
            return ending.lease_ended(job, event.attempt, event.reason, event.detail)
        return attempt.lease_moved(job, event)

    def _resynchronise(self) -> list[do.Action]:
        """Read the records of all waiting jobs: pushes may be lost while the scheduler is away."""
        waiting = [job for job in self.jobs.values() if job.phase in _AWAITING_PUSHES]
        return [do.ReadRecord(job=job.id) for job in waiting]

    def _lease_gone(self, job: Job, event: on.LeaseGone) -> Iterable[do.Action]:
        """The lease ended before its push came; the record has the reason."""
        if event.attempt != job.attempt or job.phase not in _MAY_EXPIRE:
            return ()
        return [do.ReadRecord(job=job.id)]

    # ------------------------------------------------------------------ time, failure, drain

    def _timer(self, job: Job, event: on.TimerFired) -> Iterable[do.Action]:
        if event.timer is do.Timer.BEAT:
            return self._beat(job)
        if event.timer is do.Timer.DEADLINE:  # of an earlier attempt, if this one has a device
            return () if job.with_device else without_device.deadline_passed(job, self._budget)
        if event.timer is do.Timer.CHECK and not job.with_device:
            return without_device.check(job)
        return attempt.timer(job, event, self._budget)

    def _beat(self, job: Job) -> list[do.Action]:
        handles = tuple(job.receipt_handles.values())
        return [
            do.ExtendVisibility(
                job=job.id, queue_url=job.function.queue_url, receipt_handles=handles
            ),
            do.ArmTimer(job=job.id, timer=do.Timer.BEAT, in_s=self._budget.visibility_beat_s),
        ]

    def _call_failed(self, job: Job, event: on.CallFailed) -> Iterable[do.Action]:
        self._isolation.survived(job.id)
        name = type(event.action).__name__
        job.failures[name] = tries = job.failures.get(name, 0) + 1
        job.looking = job.looking and not isinstance(event.action, do.ReadResult)
        if not event.retryable and isinstance(event.action, do.StageEnvelope):
            return ending.staging_failed(job, event, self._budget, self._jitter)
        if not event.retryable and tries >= NON_RETRYABLE_TRIES_MAX:
            refused = ending.refused(job, event)
            if refused:
                return refused
        pause_s = min(self._budget.reconnect_base_s * 2 ** min(tries, 16), self._budget.retry_s_max)
        pause_s = min(pause_s, RETRY_S_MAX * self._budget.reconnect_s_max / 5.0)
        pause_s *= self._jitter.uniform(0.5, 1.0)
        return [do.RepeatLater(job=job.id, action=event.action, in_s=pause_s)]

    def _drain(self, event: on.DrainRequested) -> Iterable[do.Action]:
        """Hand jobs back; one that is being opened or packed has some time, as it nearly runs."""
        self._draining = True
        phases = UNSTAGED if event.last else NOT_STARTED - UNSTAGED_SOON
        unstaged = [job for job in self.jobs.values() if job.phase in phases]
        return [
            action
            for job in unstaged
            for action in (*attempt.hand_back(job, even_granted=True), *self._forget(job))
        ]

    def _forget(self, job: Job) -> Iterable[do.Action]:
        self.jobs.pop(job.id, None)
        return [do.ForgetJob(job=job.id)]

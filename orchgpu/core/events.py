"""The events of the job machine: one class per outcome."""

from __future__ import annotations

from typing import TypedDict

from contract.claim import Claim
from contract.result import Report, Result
from corekit.tracing.job import JobTrace
from corekit.values import Value
from gpu_scheduler.model import EndReason, GrantedLease, LeaseState, Record
from gpu_scheduler.verdicts import Explanation
from orchgpu.core.actions import Action, Timer
from orchgpu.core.batch import BatchRun
from orchgpu.core.runs.records import Admission


class EventTimes(TypedDict):
    """The times of an event, by both clocks."""

    at_s: float
    wall_s: float


class Event(Value):
    at_s: float  #: monotonic seconds, read by the driver
    wall_s: float  #: seconds since the epoch, for results and dead-letter copies


class MessageReceived(Event):
    """A message of a function's job queue was received; its visibility timeout runs."""

    function: str
    message_id: str
    receipt_handle: str
    body: str
    sent_at_s: float | None = None  #: wall clock of the queue; None = not known
    trace: JobTrace | None = None  #: of a new job; None = no traces are recorded


class JobEvent(Event):
    """An event about one job; ignored when this replica does not act for the job."""

    job: str


class AttemptEvent(JobEvent):
    """An event about one attempt; ignored when it is not the job's current one."""

    attempt: int


class InputRead(JobEvent):
    etag: str
    version_id: str | None
    last_modified: str
    size: int


class InputMissing(JobEvent):
    """404: the input was deleted before it was read."""


class InputChanged(JobEvent):
    """The input has another etag than in the event: it was overwritten before it was read."""


class ResultRead(JobEvent):
    result: Result | None
    etag: str = ""


class PromiseAnswered(JobEvent):
    """The promise of a job, or its refusal; None: the job has begun already."""

    admission: Admission | None


class ReportRead(AttemptEvent):
    report: Report | None


class AttemptGranted(JobEvent):
    """A lease, at once or as a push after waiting (then it must be accepted within `accept_s`)."""

    attempt: int
    granted: GrantedLease
    record: Record | None  #: None in a push
    pushed: bool = False


class AttemptOpened(JobEvent):
    """An attempt without a device: it is staged at once."""

    attempt: int
    record: Record


class AttemptWaiting(JobEvent):
    record: Record
    explanation: Explanation


class AttemptImpossible(JobEvent):
    """The request is permanently infeasible, or it waited for `max_wait_s` (then `busy`)."""

    explanation: Explanation
    busy: bool = False
    attempt: int | None = None  #: of a push; None = the answer to OpenAttempt


class RecordConflict(JobEvent):
    """A compare-and-set failed; `record` is the current one (None: it was forgotten)."""

    record: Record | None


class Adopted(JobEvent):
    record: Record
    granted: GrantedLease | None


class Reopened(JobEvent):
    record: Record


class Orphaned(JobEvent):
    """A record without a live owner, found by the regular scan."""

    function: str
    record: Record


class EnvelopeStaged(AttemptEvent):
    pass


class StagedRecorded(AttemptEvent):
    """The scheduler knows that the envelope is stored; `connect_by` runs."""


class RunOrdered(AttemptEvent):
    """The host of the attempt has the order of its run."""

    again_in_s: float | None  #: until its credentials must be renewed; None = they do not end


class RunsRead(AttemptEvent):
    """The runs of an attempt in Batch, also those that are over; None: Batch did not answer."""

    runs: tuple[BatchRun, ...] | None


class AttemptStarted(AttemptEvent):
    """The function of an attempt without a device has claimed it."""

    claim: Claim


class AttemptClosed(AttemptEvent):
    """The claim of an attempt without a device that stands now; it may be a start's."""

    claim: Claim


class LeaseRenewed(AttemptEvent):
    """The lease is renewed; a pushed grant is accepted."""


class LeaseGone(AttemptEvent):
    """The scheduler answers that the lease has ended."""


class LeaseChanged(AttemptEvent):
    """A push of the scheduler about the lease of one attempt."""

    state: LeaseState
    reason: EndReason | None
    detail: str
    ahead: bool = False  #: it waits for shares that another lease still has


class ResultNoticed(JobEvent):
    """The completion queue reports that a result was written."""


class ReportNoticed(JobEvent):
    """The completion queue reports that the report of an attempt was written."""

    attempt: int


class ObjectNoticed(Event):
    """The completion queue reports an object that is not a result."""

    bucket: str
    key: str


class FunctionFailureRecorded(AttemptEvent):
    """Lambda's own failure record is stored as the attempt's report."""


class AttemptFailureRecorded(JobEvent):
    record: Record
    pause_s: float  #: until the next attempt, as in the record


class ResultWritten(JobEvent):
    """The result that stands now: the written one, or the one that was there first."""

    result: Result


class DeadLetterSent(JobEvent):
    pass


class Finished(JobEvent):
    pass


class MessagesDeleted(JobEvent):
    pass


class Disowned(JobEvent):
    """Another replica acts for this job now."""


class HandedBack(JobEvent):
    """Job and messages are free for any replica."""


class ReceiptHandleRenewed(JobEvent):
    """Another replica received the job's message again; this is the newest receipt handle."""

    receipt_handle: str


class CallFailed(JobEvent):
    """An action failed. It is repeated with a back-off until it succeeds, if it can."""

    action: Action
    retryable: bool
    message: str
    exhausted: bool = False  #: the other side is at a limit: wait, and receive less


class TimerFired(JobEvent):
    timer: Timer


class RepeatDue(JobEvent):
    """The pause before a failed call is repeated is over."""

    action: Action


class DrainRequested(Event):
    """SIGTERM: hand back jobs that have not started; others are adopted from their records."""

    last: bool = False  #: the time is over: hand back also jobs that are being packed


class LeaveRequested(Event):
    """A visit is over: leave the jobs that wait, run or pause until the scheduler wakes another."""


class SchedulerReturned(Event):
    """The connection to the scheduler is back: pushes may have been lost."""

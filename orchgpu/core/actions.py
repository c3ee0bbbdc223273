"""The actions of the job machine, as imperatives. Most end in an event of `events.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from contract.result import Result
from contract.states import Reason
from corekit.values import Value
from gpu_scheduler.model import GrantedLease, LeaseLifetime, Request
from orchgpu.core.execution import Place
from orchgpu.core.function import Function, Target
from orchgpu.core.promised import Promised
from orchgpu.core.routing import InputEvent


class Action(Value):
    job: str  #: job id, or the message id while the job is not known


class ReadInput(Action):
    """One GET, pinned by version or `If-Match`; small bodies are kept for packing.

    → InputRead | InputMissing | InputChanged
    """

    input: InputEvent
    inline: bool = True  #: False: the body is not needed here


class ReadResult(Action):
    """→ ResultRead. With a `target`, a changed target object first becomes the result."""

    bucket: str
    attempt: int = 0  #: the attempt whose stored target etag is compared
    target: Target | None = None
    replace_etag: str | None = None  #: of the failed result that a redrive replaces


class ReadReport(Action):
    """→ ReportRead"""

    bucket: str
    attempt: int


class OpenAttempt(Action):
    """Compare-and-set the record on `revision` (0: must not exist) and queue a share request.

    → AttemptGranted | AttemptWaiting | AttemptImpossible | RecordConflict
    """

    attempt: int
    revision: int
    receipt_handle: str
    payload: Mapping[str, object]
    request: Request
    hold: LeaseLifetime
    received_at_s: float  #: monotonic


class RequestPromise(Action):
    """Request the promise of a job that has no open record. → PromiseAnswered"""

    promise: str  #: its name
    function: Function
    begun_at_s: float  #: wall clock: from then on its latency counts


class ReadRecord(Action):
    """→ RecordConflict (with the record, or None)"""


class AdoptRecord(Action):
    """→ Adopted | RecordConflict"""

    revision: int
    receipt_handle: str | None
    suspect: bool = False  #: the owner died while packing this or, at the same time, another job


class ReopenRecord(Action):
    """Give a redriven job a new budget of attempts. → Reopened | RecordConflict"""

    revision: int
    receipt_handle: str


class StoreReceiptHandle(Action):
    """Pass a newer receipt handle to the record's owner. → nothing"""

    receipt_handle: str


class RenewLease(Action):
    """Keep a RESERVED lease; the first one accepts a pushed grant. → LeaseRenewed | LeaseGone"""

    attempt: int
    lease: str


class StageEnvelope(Action):
    """Pack and PUT with If-None-Match. → EnvelopeStaged | InputMissing | InputChanged"""

    attempt: int
    function: Function
    input: InputEvent
    granted: GrantedLease | None  #: None: an attempt without a device
    replace_etag: str | None
    target: Target | None = None  #: its etag is noted before the envelope is stored
    traceparent: str = ""  #: of the function's span; "" = no trace
    cost: Mapping[str, float] | None = None  #: of a job that counts it: see `contract.envelope`
    place: Place = Place.LAMBDA  #: a host starts its run by an order (`OrderRun`)
    form: str = "zip"  #: `Function.envelope_form` when the attempt opened


class OrderRun(Action):
    """Order the run of a staged attempt on the first host of its lease, or in Batch. → RunOrdered

    Idempotent on a host; in Batch two orders at once may start two runs, of which one claims it.
    """

    attempt: int
    function: Function
    granted: GrantedLease | None  #: None: in Batch
    form: str = "zip"  #: of its envelope
    queue: str = ""  #: Batch's, when the attempt opened; "" = the function's


class ReadRuns(Action):
    """Ask Batch for the runs of an attempt. → RunsRead"""

    attempt: int
    function: Function
    queue: str = ""  #: as in `OrderRun`


class EndRuns(Action):
    """End the runs of an attempt that is over; one that is missed claims nothing. → nothing"""

    attempt: int
    function: Function
    queue: str = ""  #: as in `OrderRun`
    keep: str = ""  #: the run that ends by itself: it has committed the result


class RemoveEnvelope(Action):
    """Delete the envelope of a finished attempt. Expiry does it a day later: no repetition.

    → nothing
    """

    attempt: int
    function: Function
    #: 0: without a device. None: another replica had the lease, and every envelope is deleted.
    fence: int | None
    form: str = "zip"


class RecordStaged(Action):
    """→ StagedRecorded | LeaseGone"""

    attempt: int
    lease: str | None  #: None: an attempt without a device
    connect_by_s: float


class RecordStarted(Action):
    """Report that a function has claimed its attempt, which has no device. Any replica may do so.

    → AttemptStarted, or nothing for a claim of an orchestrator
    """

    attempt: int
    bucket: str


class CloseAttempt(Action):
    """Take the claim of an attempt without a device unless a start has it. → AttemptClosed"""

    attempt: int
    bucket: str


class ReleaseLease(Action):
    """→ nothing: the end of the lease arrives as a push"""

    lease: str


class RecordFunctionFailure(Action):
    """Store Lambda's failure as the attempt's report (If-None-Match) and, when the function never
    opened its session, end the lease. Any replica may do so. → FunctionFailureRecorded

    Without a device, the failure of another start than the one with the claim is not stored.
    """

    function: Function
    attempt: int
    reason: Reason
    detail: str
    request: str = ""  #: Lambda's id of the start that failed
    with_device: bool = True  #: of the attempt; the function may have changed since


class RecordAttemptFailure(Action):
    """→ AttemptFailureRecorded | RecordConflict"""

    attempt: int
    reason: Reason
    detail: str
    pause_s: float  #: until the next attempt


class WriteResult(Action):
    """Commit a terminal result unless one exists. → ResultWritten (the result that stands)"""

    bucket: str
    result: Result
    replace_etag: str | None


class SendDeadLetter(Action):
    """Send a copy that a redrive can return to the job queue. → DeadLetterSent"""

    queue_url: str
    body: str
    traceparent: str = ""  #: of the job's span: the trace of a redrive continues it


class FinishJob(Action):
    """End the record and all its leases, in one journal entry. → Finished"""

    outcome: str
    reason: str
    detail: str
    payload: Mapping[str, object] | None  #: of a job without a record, which gets a terminal one
    received_at_s: float  #: monotonic
    committed_at_s: float  #: monotonic: the result was seen
    promise: str = ""  #: ends with the job; "" = it has none
    promised: Promised | None = None  #: what became of it
    way_s: float | None = None  #: of a success: its time outside of its lease and its waiting
    workload: str | None = None  #: for which that is learned


class AdvanceRun(Value):
    """A job of a workflow's step has ended: fold its run, or send the message to its queue."""

    workflow: str
    body: str
    result: Result | None = None  #: as it is stored


class SendNotices(Value):
    """Messages about the end of a job: one for each target."""

    queue_url: str
    bodies: tuple[str, ...]


class DeleteMessages(Action):
    """→ MessagesDeleted"""

    queue_url: str
    receipt_handles: tuple[str, ...]
    advance: AdvanceRun | None = None  #: first
    notices: SendNotices | None = None  #: sent first as well


class ExtendVisibility(Action):
    """Extend the visibility of the messages in hand; an old receipt handle is ignored. → nothing"""

    queue_url: str
    receipt_handles: tuple[str, ...]


class HandBack(Action):
    """Release the job and its messages to any replica (the record keeps its place in the queue).

    → HandedBack, or nothing when a grant came first, or the job runs
    """

    queue_url: str
    receipt_handles: tuple[str, ...]
    revision: int  #: 0: there is no record yet
    even_granted: bool = False  #: also a job whose grant came first: its lease is released


class Leave(Action):
    """Leave the job to the scheduler's wake-up, and to its message, hidden until its next timer.

    → HandedBack
    """

    queue_url: str
    receipt_handles: tuple[str, ...]
    revision: int
    wake_queue: str  #: its name


class SplitMessage(Action):
    """Send each record as a message of its own, then delete the message. → nothing"""

    queue_url: str
    bodies: tuple[str, ...]
    receipt_handle: str
    traceparent: str = ""  #: of the message's sender


class QuarantineMessage(Action):
    """Move a message that is not a valid event to the dead-letter queue. → nothing"""

    queue_url: str
    dead_letter_url: str
    body: str
    receipt_handle: str


class Timer(StrEnum):
    """The timers of one job."""

    BEAT = "beat"  #: extends the visibility of the messages in hand
    HAND_BACK = "hand_back"  #: the job has waited so long that its message must start a new 12 h
    RENEW = "renew"  #: of a lease that is not staged yet
    ORDER = "order"  #: of a run on a host, whose credentials end
    CHECK = "check"  #: a backup check for the result
    DEADLINE = "deadline"  #: an attempt without a device must have been heard of by now
    GRACE = "grace"  #: Lambda's own failure record may still come
    NEXT_ATTEMPT = "next_attempt"
    COST = "cost"  #: the job has cost as much as it may


class ReportThrottled(Action):
    """For this long no function of the account waits ahead of its device. → nothing"""

    pause_s: float


class ArmTimer(Action):
    """→ TimerFired, unless the timer is armed again or the job is forgotten first."""

    timer: Timer
    in_s: float


class RepeatLater(Action):
    """Repeat a call that failed. → RepeatDue, unless a later call of its kind replaces it."""

    action: Action
    in_s: float


class ForgetJob(Action):
    """This replica's part is over: cancel the job's timers, drop its cached input. → nothing"""

    known_as: str | None = None  #: the job's id, when `job` was only a message's token

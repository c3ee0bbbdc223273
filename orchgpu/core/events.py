"""What happened: one class per outcome. `at_s` is monotonic, `wall_s` for records people read."""

from __future__ import annotations

from dataclasses import dataclass

from contract.result import Report, Result
from gpu_scheduler.model import EndReason, Explanation, GrantedLease, LeaseState, Record
from orchgpu.core.actions import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at_s: float  #: monotonic seconds, read by the driver
    wall_s: float  #: seconds since the epoch, for results and dead-letter copies


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived(Event):
    """A message of a function's job queue is in our hands; its visibility runs."""

    function: str
    message_id: str
    handle: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """About one job; ignored when this replica does not (or no longer) act for it."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRead(JobEvent):
    etag: str
    version_id: str | None
    last_modified: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMissing(JobEvent):
    """404: deleted before we read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChanged(JobEvent):
    """Another etag than the event's: overwritten before we read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRead(JobEvent):
    result: Result | None
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRead(JobEvent):
    attempt: int
    report: Report | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGranted(JobEvent):
    """At once, or as a push after waiting (then it must be taken within `accept_s`)."""

    attempt: int
    granted: GrantedLease
    record: Record | None  #: None in a push
    pushed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWaiting(JobEvent):
    record: Record
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptImpossible(JobEvent):
    """No known device could ever hold it, or it waited for `max_wait_s` (then `busy`)."""

    explanation: Explanation
    busy: bool = False
    attempt: int | None = None  #: of a push; None = the answer to what was just asked


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConflict(JobEvent):
    """Our compare-and-set lost; this is what stands (None: it was forgotten)."""

    record: Record | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(JobEvent):
    record: Record
    granted: GrantedLease | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened(JobEvent):
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphaned(JobEvent):
    """A record without a live owner, found by the regular look."""

    function: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeStaged(JobEvent):
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRecorded(JobEvent):
    """The scheduler knows; `connect_by` runs."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed(JobEvent):
    """The lease is ours for another while; a pushed grant is taken."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGone(JobEvent):
    """The scheduler answers that the lease we act on has ended."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanged(JobEvent):
    """A push of the scheduler about the lease of one attempt."""

    attempt: int
    state: LeaseState
    reason: EndReason | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultNoticed(JobEvent):
    """The completion queue says that a result was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNoticed(Event):
    """The completion queue says that an object was written that is no result of ours."""

    bucket: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFailureRecorded(JobEvent):
    """Lambda's own failure record is stored as the attempt's report."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailureRecorded(JobEvent):
    record: Record
    pause_s: float  #: until the next attempt, as the action had it


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultWritten(JobEvent):
    """What stands now: ours, or the one that was there first."""

    result: Result
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSent(JobEvent):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(JobEvent):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDeleted(JobEvent):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disowned(JobEvent):
    """Another replica acts for this job now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedBack(JobEvent):
    """Job and messages are anybody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptHandleRenewed(JobEvent):
    """Another replica received the job's message again; this is the newest receipt handle."""

    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed(JobEvent):
    """An action could not be done. Retryable failures are repeated with a back-off, for ever."""

    action: Action
    retryable: bool
    message: str
    exhausted: bool = False  #: the other side is at a limit: wait, and take less on


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(JobEvent):
    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested(Event):
    """SIGTERM: hand back what has not started, leave what runs to its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReturned(Event):
    """The connection to the scheduler is back: pushes may have been lost."""

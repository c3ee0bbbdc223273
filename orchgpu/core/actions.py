"""What to do: imperatives, carried out by the shell; each ends in an event of `events.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.result import Result
from contract.states import Reason
from gpu_scheduler.model import GrantedLease, LeaseLifetime, Request
from orchgpu.core.function import Function
from orchgpu.core.routing import InputEvent
from orchgpu.core.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    job: str  #: job id, or a message's own token while the job is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInput(Action):
    """One GET, pinned by version or `If-Match`; small bodies are kept for packing.

    → InputRead | InputMissing | InputChanged
    """

    input: InputEvent
    inline: bool = True  #: False: its body is never wanted here


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult(Action):
    """→ ResultRead. With a `target` an object that changed becomes the result first."""

    bucket: str
    attempt: int = 0  #: whose note of the target counts
    target: Target | None = None
    replace_etag: str | None = None  #: of the failed result that counts as none


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport(Action):
    """→ ReportRead"""

    bucket: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt(Action):
    """Compare-and-set the record on `revision` (0: must not exist) and ask for the share, waiting.

    → AttemptGranted | AttemptWaiting | AttemptImpossible | RecordConflict
    """

    attempt: int
    revision: int
    handle: str
    block: Mapping[str, Any]
    request: Request
    hold: LeaseLifetime
    received_at_s: float  #: monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord(Action):
    """→ RecordConflict (what stands, or None)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRecord(Action):
    """→ Adopted | RecordConflict"""

    revision: int
    handle: str | None
    suspect: bool = False  #: its owner ended while packing it, or others beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenRecord(Action):
    """Give a redriven job a new budget of attempts. → Reopened | RecordConflict"""

    revision: int
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReceiptHandle(Action):
    """Tell the record's owner of a newer receipt handle. → nothing"""

    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease(Action):
    """Keeps a RESERVED lease; the first one takes a pushed grant. → LeaseRenewed | LeaseGone"""

    attempt: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnvelope(Action):
    """Pack and PUT with If-None-Match. → EnvelopeStaged | InputMissing | InputChanged"""

    attempt: int
    function: Function
    input: InputEvent
    granted: GrantedLease
    replace_etag: str | None
    target: Target | None = None  #: noted as it is, before the envelope is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEnvelope(Action):
    """Of an attempt that is over. Its expiry does the same a day later, so nothing is repeated.

    → nothing
    """

    attempt: int
    function: Function
    fence: (
        int | None
    )  #: None: another replica had the lease; all envelopes of the job are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStaged(Action):
    """→ StagedRecorded | LeaseGone"""

    attempt: int
    lease: str
    connect_by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease(Action):
    """→ nothing: the lease's end comes as a push"""

    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFunctionFailure(Action):
    """Store Lambda's failure as the attempt's report (If-None-Match) and, when the function never
    opened its session, end the lease. Any replica may. → FunctionFailureRecorded"""

    function: Function
    attempt: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAttemptFailure(Action):
    """→ AttemptFailureRecorded | RecordConflict"""

    attempt: int
    reason: Reason
    detail: str
    pause_s: float  #: until the next attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult(Action):
    """Commit a terminal result unless there is one. → ResultWritten (what stands)"""

    bucket: str
    result: Result
    replace_etag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDeadLetter(Action):
    """A copy that a redrive can bring back. → DeadLetterSent"""

    queue_url: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob(Action):
    """Terminal in the record and all leases ended, in one entry. → Finished"""

    outcome: str
    reason: str
    detail: str
    block: Mapping[str, Any] | None  #: of a job that never had a record: it gets a terminal one
    received_at_s: float  #: monotonic
    committed_at_s: float  #: monotonic: the result was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMessages(Action):
    """→ MessagesDeleted"""

    queue_url: str
    handles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendVisibility(Action):
    """A beat for the messages we hold; a handle that is too old is no error. → nothing"""

    queue_url: str
    handles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack(Action):
    """Give job and messages to whoever comes next (the record keeps its place).

    → HandedBack, or nothing when a grant came first
    """

    queue_url: str
    handles: tuple[str, ...]
    revision: int  #: 0: there is no record yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMessage(Action):
    """Send each record as a message of its own, then delete the message. → nothing"""

    queue_url: str
    bodies: tuple[str, ...]
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineMessage(Action):
    """A message that is no event of ours: copy to the dead-letter queue, then delete. → nothing"""

    queue_url: str
    dead_letter_url: str
    body: str
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimer(Action):
    """→ TimerFired, unless armed again or cancelled before."""

    timer: str
    in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJob(Action):
    """This replica's part is over: cancel its timers, drop cached input. → nothing"""

"""One job in the memory of the replica that acts for it. The durable truth is its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from contract.result import Result
from contract.states import JobState, Reason
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, EndReason, GrantedLease, Request, Sharing
from orchgpu.core.function import Function
from orchgpu.core.routing import InputEvent
from orchgpu.core.target import Target, target_key

#: Handles of one job are at most the duplicates of its event plus redeliveries; the newest count.
RECEIPT_HANDLES_MAX = 8


class Phase(StrEnum):
    """What this replica is doing for the job; finer than the public state."""

    READING = "reading"  #: input and result
    OPENING = "opening"  #: an attempt, the answer is due
    ADOPTING = "adopting"
    WAITING = "waiting"  #: for a grant
    ACCEPTING = "accepting"  #: a grant was pushed: it is ours once the scheduler has our answer
    STAGING = "staging"
    RECORDING = "recording"  #: the envelope is there, the scheduler is told
    RUNNING = "running"  #: the function's turn, watched
    CHECKING = "checking"  #: the lease ended: is there a result?
    EXPLAINING = "explaining"  #: there is none: is there a report?
    GRACE = "grace"  #: neither: Lambda's own record may still come
    FAILING = "failing"  #: the attempt's failure is being recorded
    BACKOFF = "backoff"  #: before the next attempt
    RECHECKING = "rechecking"  #: the last look for a result before the next attempt
    CONCLUDING = "concluding"  #: a terminal result of ours is being written
    DEAD_LETTERING = "burying"  #: the dead-letter copy is being sent
    FINISHING = "finishing"
    DELETING = "deleting"


#: Phases in which nothing of the current attempt runs yet: a drain hands these back.
NOT_STARTED = frozenset(
    {
        Phase.READING,
        Phase.OPENING,
        Phase.ADOPTING,
        Phase.WAITING,
        Phase.BACKOFF,
        Phase.RECHECKING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed."""

    reason: Reason
    detail: str = ""
    exit_code: int | None = None
    log_tail: str = ""
    times: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Job:
    """Mutable; only the machine touches it."""

    id: str
    function: Function
    input: InputEvent
    handles: dict[str, str]  #: message id → newest receipt handle, oldest first
    received_at_s: float  #: monotonic, of the receipt whose 12 h run
    phase: Phase = Phase.READING
    state: JobState = JobState.RECEIVED
    reason: Reason = Reason.NONE
    revision: int = 0  #: newest known of the record; 0 = no record known
    attempt: int = 0
    first_attempt: int = 1  #: of the current budget; a redrive starts a new one
    fell_back: bool = False  #: no device came: from now on any cpu will do
    granted: GrantedLease | None = None
    input_known: bool = False
    result_known: bool = False
    result: Result | None = None
    committed_at_s: float = 0.0  #: monotonic: `result` was seen
    looking: bool = False  #: a read of the result is under way
    look_again: bool = (
        False  #: something happened since it began: its "absent" is not the last word
    )
    replace_etag: str | None = None  #: of the failed result that a redriven job may replace
    end_reason: EndReason | None = None  #: of the current attempt's lease
    end_detail: str = ""
    staging_error: str = ""  #: why the current attempt's envelope could not be stored
    graced: bool = False  #: Lambda's failure record has been waited for
    checks: int = 0  #: backup result checks of this attempt
    failures: dict[str, int] = field(default_factory=dict)  #: action name → failed calls in a row

    @property
    def lease(self) -> str:
        assert self.granted is not None, f"{self.id} has no lease in phase {self.phase}"
        return self.granted.lease.id

    @property
    def target(self) -> Target | None:
        """The object that ends the job; None where our runner commits its result."""
        function = self.function
        if not function.object_bucket:
            return None
        key = target_key(
            function.object_key, job=self.id, key=self.input.key, prefix=function.input_prefix
        )
        return Target(bucket=function.object_bucket, key=key)

    @property
    def request(self) -> Request:
        """What the next attempt asks for."""
        asked = self.function.request
        if not self.fell_back:
            return asked
        return replace(
            asked,
            count=1,
            kinds=(DeviceKind.CPU,),
            models=(),
            min_driver=None,
            min_runtime=None,
            sharing=Sharing.SHARED,
            warm_key=None,
            max_wait_s=None,
        )

    @property
    def newest_receipt_handle(self) -> str:
        return next(reversed(self.handles.values()), "")

    def add_receipt_handle(self, message_id: str, handle: str) -> None:
        self.handles.pop(message_id, None)
        self.handles[message_id] = handle
        while len(self.handles) > RECEIPT_HANDLES_MAX:
            del self.handles[next(iter(self.handles))]

    def block(self) -> dict[str, Any]:
        """What any other replica needs to go on with this job; ≤ 4 KiB by S3's key limit."""
        return {
            "function": self.function.name,
            "first_attempt": self.first_attempt,
            "fell_back": self.fell_back,
            "replace_etag": self.replace_etag,
            "input": dataclasses.asdict(self.input),
        }


def input_from_payload(block: Mapping[str, Any]) -> InputEvent | None:
    """The inverse of `Job.block`'s input; None when an older or foreign version wrote it."""
    value = block.get("input")
    if not isinstance(value, Mapping):
        return None
    known = {f.name for f in dataclasses.fields(InputEvent)}
    try:
        return InputEvent(**{k: v for k, v in value.items() if k in known})
    except TypeError:
        return None

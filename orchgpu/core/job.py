"""One job in the memory of the replica that acts for it. The durable truth is its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from contract.result import Result
from contract.states import JobState, Reason
from corekit.budget import Budget
from corekit.decode import decode_known, encode
from corekit.errors import AppError
from corekit.tracing.job import BLOCK_KEY, JobTrace
from corekit.values import Value, replace
from gpu_scheduler.constraints import of_libraries
from gpu_scheduler.model import LENGTH_S_MAX, DeviceKind, EndReason, GrantedLease, Request, Sharing
from orchgpu.core.batch import BatchRun
from orchgpu.core.execution import OUT_OF_TIME, Choice, HostFacts, Place, place_of
from orchgpu.core.function import Function, Target, target_key
from orchgpu.core.not_on_host import Lacked, with_lacked
from orchgpu.core.promised import Promised, promised
from orchgpu.core.routing import InputEvent

#: Receipt handles of one job: duplicates of its event plus redeliveries; the newest are kept.
RECEIPT_HANDLES_MAX = 8


class Phase(StrEnum):
    """The current work of this replica for the job; finer than the public state."""

    READING = "reading"  #: input and result
    ADMITTING = "admitting"  #: its promise is requested
    OPENING = "opening"  #: an attempt; the answer is pending
    ADOPTING = "adopting"
    WAITING = "waiting"  #: for a grant
    ACCEPTING = "accepting"  #: a grant was pushed, and is being accepted
    STAGING = "staging"
    RECORDING = "recording"  #: the envelope is stored, the scheduler is informed
    RUNNING = "running"  #: the function runs, or is about to
    CLOSING = "closing"  #: an attempt without a device: did its function start at all?
    CHECKING = "checking"  #: the lease ended: is there a result?
    EXPLAINING = "explaining"  #: there is none: is there a report?
    GRACE = "grace"  #: neither: Lambda's own record may still come
    FAILING = "failing"  #: the attempt's failure is being recorded
    BACKOFF = "backoff"  #: before the next attempt
    RECHECKING = "rechecking"  #: the last check for a result before the next attempt
    CONCLUDING = "concluding"  #: this replica writes a terminal result
    DEAD_LETTERING = "dead_lettering"  #: the dead-letter copy is being sent
    FINISHING = "finishing"
    DELETING = "deleting"


#: Phases before an attempt runs: a drain hands these jobs back.
NOT_STARTED = frozenset(
    {
        Phase.READING,
        Phase.ADMITTING,
        Phase.OPENING,
        Phase.ADOPTING,
        Phase.WAITING,
        Phase.BACKOFF,
        Phase.RECHECKING,
    }
)

#: Phases that end by themselves with the stored envelope, or with a wait.
UNSTAGED_SOON = frozenset({Phase.OPENING, Phase.ADOPTING, Phase.ACCEPTING, Phase.STAGING})
#: Phases that last until something happens outside, or a timer is due.
AT_REST = frozenset({Phase.WAITING, Phase.RUNNING, Phase.BACKOFF})
#: Phases without a stored envelope.
UNSTAGED = NOT_STARTED | UNSTAGED_SOON
#: Ends of attempts whose code never ran: they do not count, within `not_started_s_max`.
UNCOUNTED = frozenset(
    {
        Reason.NOT_STARTED,
        Reason.EVENT_EXPIRED,
        Reason.THROTTLED,
        Reason.RESERVATION_EXPIRED,
    }
)


class Failure(Value):
    """The reason why an attempt failed."""

    reason: Reason
    detail: str = ""
    exit_code: int | None = None
    log_tail: str = ""
    times: Mapping[str, float] = {}
    provenance: Mapping[str, object] = {}  #: as the function saw it; empty = it saw nothing


@dataclass(slots=True, kw_only=True)
class Job:
    """Mutable; only the machine changes it."""

    id: str
    function: Function
    input: InputEvent
    receipt_handles: dict[str, str]  #: message id → newest receipt handle, oldest first
    received_at_s: float  #: monotonic, of the receipt whose 12 h run
    #: Wall clock of the queue when the job's message was sent; None = not known here.
    sent_at_s: float | None = None
    trace: JobTrace | None = None  #: None = none is recorded
    phase: Phase = Phase.READING
    state: JobState = JobState.RECEIVED
    reason: Reason = Reason.NONE
    revision: int = 0  #: newest known of the record; 0 = no record known
    attempt: int = 0
    strikes: int = 0  #: orchestrators that ended while they packed it; see `isolation.py`
    first_attempt: int = 1  #: of the current budget; a redrive starts a new one
    not_started: int = 0  #: newest attempts in a row whose code never started; they do not count
    not_started_at_s: float = 0.0  #: wall clock of the end of the first of them
    withdrawn: bool = False  #: the last attempt's lease: the next one takes a free device only
    fell_back: bool = False  #: there was no device: from now on any cpu will do
    place: Place = Place.LAMBDA  #: of the newest attempt
    place_why: str = ""  #: the reason for it, in one sentence
    queue: str = ""  #: of Batch, where the newest attempt's runs are
    form: str = (
        "zip"  #: of the newest attempt's envelope; a deploy meanwhile changes that of later ones
    )
    ran_out: bool = False  #: an attempt of it ran out of Lambda's time
    order_error: str = ""  #: why its host did not take the newest order
    crowded: bool = False  #: because it was at a limit
    #: This replica orders the run of the current attempt, until it succeeds; or it is too late to.
    ordered: bool = False
    runs: tuple[BatchRun, ...] = ()  #: of the current attempt, as Batch showed them last
    #: Data sets and programs that hosts of earlier attempts did not have.
    lacked: Lacked = field(default_factory=dict)
    paid_usd: float = 0.0  #: of attempts that have ended; see `max_cost.py`
    paid_attempt: int = 0  #: the newest one of them
    paid_since_s: float | None = None  #: wall clock: the current attempt is paid since then
    #: The current attempt's lease was granted ahead, and its device is not its own yet.
    ahead: bool = False
    with_device: bool = True  #: of the current attempt; False: it has no lease
    granted: GrantedLease | None = None
    input_known: bool = False
    input_misses: int = 0  #: reads that found no input, which may be false
    result_known: bool = False
    result: Result | None = None
    committed_at_s: float = 0.0  #: monotonic: `result` was seen
    asked_at_s: float | None = None  #: monotonic: the first attempt was opened, by this replica
    way_there_s: float = 0.0  #: until then, from the end of the steps before it, or its receipt
    lease_over_at_s: float | None = None  #: monotonic: the end of its lease was seen
    looking: bool = False  #: a read of the result is under way
    #: Something happened since that read began: its "absent" does not count.
    look_again: bool = False
    replace_etag: str | None = None  #: of the failed result that a redriven job may replace
    end_reason: EndReason | None = None  #: of the current attempt's lease
    end_detail: str = ""
    #: Why the current attempt, without a device, is over although nothing was heard of it.
    overdue: Reason | None = None
    staging_error: str = ""  #: why the current attempt's envelope could not be stored
    graced: bool = False  #: the wait for Lambda's failure record is over
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
    def inline(self) -> bool:
        """Whether a small input travels inside the envelope; a list of files always does."""
        return self.function.inline or self.input.lists_files

    @property
    def request(self) -> Request:
        host, asked = self.function.host, with_lacked(self.function.request, self.lacked)
        asked = cpu_fallback(asked) if self.fell_back else asked
        if host is None or self.place is not Place.HOST:
            return asked
        return with_lacked(asked, {"programs": host.programs})

    @property
    def attempt_request(self) -> Request:
        """That of the next attempt: also for a device that is not free yet, if it may wait."""
        ahead = not self.fell_back and not self.withdrawn and self.place is Place.LAMBDA
        advance = self.function.advance if ahead else None
        return self.request if advance is None else replace(self.request, advance=advance)

    @property
    def max_cost_usd(self) -> float | None:
        """The smaller one of the function's cap and of what the job's run has left."""
        caps = (self.function.max_cost_usd, self.input.max_cost_usd)
        return min((cap for cap in caps if cap is not None), default=None)

    @property
    def counts_cost(self) -> bool:
        """Whether its cost is counted: it has a cap, or its promise an objective of cost."""
        if self.max_cost_usd is not None or self.input.counts_cost:
            return True
        slo = self.function.slo if self.promise else None
        return slo is not None and slo.cost_usd is not None

    @property
    def promise(self) -> str:
        """The name of its own promise; "" = it needs none, or its run has one for all steps."""
        return "" if self.function.slo is None or self.input.step is not None else self.id

    def start_s(self, budget: Budget) -> float:
        """The longest time from an attempt's envelope, or Batch's queue, to its start."""
        host = self.function.host
        if self.place is Place.BATCH and host is not None and host.batch is not None:
            return host.batch.start_s
        return budget.connect_by_s

    def choose_place(self, facts: HostFacts) -> None:
        """Of the next attempt."""
        choice: Choice = place_of(self.function, facts, size=self.input.size, ran_out=self.ran_out)
        self.place, self.place_why, self.order_error = choice.place, choice.why, ""
        self.crowded = False
        self.form = self.function.envelope_form(self.place)
        batch = None if self.function.host is None else self.function.host.batch
        self.queue = "" if batch is None else batch.queue

    def note_end(self, reason: str) -> None:
        """The newest attempt failed for this reason."""
        self.ran_out |= self.place is Place.LAMBDA and reason in OUT_OF_TIME

    def begun_at_s(self, wall_s: float) -> float:
        """Wall clock: its latency counts from the storing of its input, or from its redrive."""
        if self.input.dead_at_s is not None:
            return wall_s if self.sent_at_s is None else min(wall_s, self.sent_at_s)
        try:
            return min(wall_s, datetime.fromisoformat(self.input.event_time).timestamp())
        except (ValueError, OverflowError):
            return wall_s

    @property
    def promised(self) -> Promised | None:
        """The end of its own promise, by its result; None: it has none, or has not ended."""
        slo, result = self.function.slo, self.result
        if slo is None or not self.promise or result is None:
            return None
        seconds = result.ended_at_s - self.begun_at_s(result.ended_at_s)
        return promised(slo, seconds, result.state, result.reason, result.cost_usd)

    def opened(self, attempt: int, at_s: float, wall_s: float) -> None:
        """The scheduler answered to an attempt."""
        if attempt != 1 or self.asked_at_s is not None:
            return
        ready_at_s, self.asked_at_s = self.input.ready_at_s, at_s
        self.way_there_s = at_s - self.received_at_s if ready_at_s is None else wall_s - ready_at_s

    @property
    def way_s(self) -> float | None:
        """Time of a job outside of its lease and its waiting.

        Known of one that succeeded at its first attempt, and was opened by this replica.
        """
        result = self.result
        if self.asked_at_s is None or result is None or result.attempt != 1:
            return None
        if result.state != JobState.SUCCEEDED:
            return None
        since_s = self.lease_over_at_s if self.with_device else self.asked_at_s
        way_back_s = 0.0 if since_s is None else self.committed_at_s - since_s
        way_s = max(0.0, self.way_there_s) + max(0.0, way_back_s)
        return min(way_s, LENGTH_S_MAX)

    @property
    def newest_receipt_handle(self) -> str:
        return next(reversed(self.receipt_handles.values()), "")

    def add_receipt_handle(self, message_id: str, receipt_handle: str) -> None:
        self.receipt_handles.pop(message_id, None)
        self.receipt_handles[message_id] = receipt_handle
        while len(self.receipt_handles) > RECEIPT_HANDLES_MAX:
            del self.receipt_handles[next(iter(self.receipt_handles))]

    def count_not_started(self, wall_s: float) -> None:
        """The code of the newest attempt never started."""
        self.not_started_at_s = self.not_started_at_s if self.not_started else wall_s
        self.not_started += 1

    def payload(self) -> dict[str, object]:
        """The data from which any other replica resumes this job; ≤ 4 KiB by S3's key limit."""
        traced = {} if self.trace is None else {BLOCK_KEY: encode(self.trace)}
        paid = {"paid_usd": self.paid_usd, "paid_attempt": self.paid_attempt}
        cost_usd = None if self.result is None else self.result.cost_usd
        return {
            **traced,
            **(paid if self.counts_cost else {}),
            **({} if cost_usd is None else {"cost_usd": cost_usd}),
            **({"slo": encode(self.function.slo)} if self.promise else {}),
            "function": self.function.name,
            "first_attempt": self.first_attempt,
            "not_started": self.not_started,
            "not_started_at_s": self.not_started_at_s,
            "fell_back": self.fell_back,
            "lacked": {kind: list(names) for kind, names in self.lacked.items() if names},
            "replace_etag": self.replace_etag,
            **self._place(),
            "input": self._input(),
        }

    def _place(self) -> dict[str, object]:
        form = {"form": self.form} if self.form != "zip" else {}
        if self.function.host is None:
            return {**form}
        place = {"place": self.place.value, "place_why": self.place_why, "form": self.form}
        queue = {"queue": self.queue} if self.queue else {}
        return {**place, **queue, **({"ran_out": True} if self.ran_out else {})}

    def _input(self) -> dict[str, object]:
        source: dict[str, object] = encode(self.input)
        if self.input.step is None:  # a replica of an older version reads what it knows
            del source["step"], source["ready_at_s"]
        if self.input.max_cost_usd is None:
            del source["max_cost_usd"]
        if not self.input.counts_cost:
            del source["counts_cost"]
        return source


def input_from_payload(payload: Mapping[str, object]) -> InputEvent | None:
    """The inverse of `Job.payload`'s input; None when an older or foreign version wrote it."""
    value = payload.get("input")
    if not isinstance(value, Mapping):
        return None
    try:
        return decode_known(InputEvent, value)[0]
    except AppError:
        return None


def cpu_fallback(request: Request) -> Request:
    """The request of a job that falls back to a CPU, because no device can hold its own."""
    return replace(
        request,
        count=1,
        kinds=(DeviceKind.CPU,),
        models=(),
        min_driver=None,
        min_runtime=None,
        requires=of_libraries(request.requires),
        sharing=Sharing.SHARED,
        warm_key=None,
        max_wait_s=None,
    )

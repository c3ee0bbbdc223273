"""One job in short, as every list of jobs shows it, by its record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from contract.states import JobState, Reason
from corekit.values import Value, replace
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol.keys import key_of
from orchgpu.core.execution import Place
from orchgpu.core.promised import Promised, cost_in, promised, slo_in
from orchgpu.jobs.intervals import uploaded_s

_JOB_REASONS = frozenset(reason.value for reason in Reason)

#: Time of receipt and id: the order of jobs, which no later change of a job affects.
Key = tuple[float, str]


class JobSummary(Value):
    """One job as lists show it."""

    job: str
    function: str | None  #: None: not known, or not for this viewer
    bucket: str | None
    key: str | None  #: of the input
    state: str
    reason: str
    attempt: int
    received_s: float  #: wall clock, as all
    changed_s: float
    submitted_s: float | None = None  #: its upload, by the event; None: not known
    device: str | None = None  #: for people; None before the first lease
    #: Where its newest attempt runs, or ran, and why; "" = its function has only Lambda.
    place: str = ""
    tenant: str | None = None
    lease: str | None = None
    made_by: str = ""  #: name of a key
    owned_by: str = ""
    promised: Promised | None = None  #: None: it has no objectives
    files_text: str = ""  #: for people: the files of a step that takes several; the key is a list

    @property
    def order(self) -> Key:
        return self.received_s, self.job

    @property
    def attempt_text(self) -> str:
        """Its newest attempt, and where that runs if it has a choice, for lists."""
        return attempt_text(self.attempt, self.place)

    @property
    def input(self) -> str | None:
        return None if self.key is None else f"{self.bucket}/{self.key}"

    @property
    def over(self) -> bool:
        return self.state not in _LIVE

    @property
    def duration_s(self) -> float:
        """From upload to end, or to the last change so far."""
        return self.changed_s - (self.submitted_s or self.received_s)

    def redacted(self) -> JobSummary:
        return replace(self, function=None, bucket=None, key=None, files_text="")

    def matches(self, text: str) -> bool:
        """True where the id begins with the text, or the input or function contains it."""
        names = (self.key or "", self.function or "", self.bucket or "", self.files_text)
        return self.job.startswith(text) or any(text in name.lower() for name in names)


_LIVE = frozenset(state.value for state in JobState if not state.terminal)


def summary_of(record: Record) -> JobSummary:
    """The job of a record."""
    given = record.block.get("input")
    source: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    step = source.get("step")
    of: Mapping[str, object] = step if isinstance(step, Mapping) else {}
    received_s = record.times.get(Step.RECEIVED, record.updated_s)
    submitted_s, slo = uploaded_s(record), slo_in(record.block)
    state, reason = state_of(record), reason_of(record)
    seconds = record.updated_s - (submitted_s or received_s)
    promise = None
    if slo is not None:
        promise = promised(slo, seconds, state, reason, cost_in(record.block))
    return JobSummary(
        job=record.holder,
        function=_text(record.block.get("function")),
        bucket=_text(source.get("bucket")),
        key=_text(source.get("key")),
        state=state,
        reason=reason,
        attempt=record.attempt,
        received_s=received_s,
        changed_s=record.updated_s,
        submitted_s=submitted_s,
        device=record.device_text or None,
        place=place_of_record(record),
        tenant=record.tenant,
        lease=record.lease,
        made_by=record.key,
        owned_by=key_of(record.owner),
        promised=promise,
        files_text=_text(of.get("files_text")) or "",
    )


#: Places for people.
NAMES = {
    Place.LAMBDA.value: "Lambda",
    Place.BATCH.value: "AWS Batch",
    Place.SERVICE.value: "an HTTP service",
}
#: Of a place without a lease yet.
_OF_ITS_DEVICE = " of its device"


def attempt_text(attempt: object, place: object) -> str:
    """The number of an attempt with its place as `place_of_record` gives it, without the reason."""
    where = str(place or "").partition(": ")[0].removesuffix(_OF_ITS_DEVICE)
    return f"{attempt} ({where})" if where else str(attempt)


def place_of_record(record: Record) -> str:
    """The place of the newest attempt with its reason, for people; "" = Lambda was the only one."""
    place, why = record.block.get("place"), record.block.get("place_why")
    if not isinstance(place, str):
        return ""
    leases = [one for one in record.leases if one.attempt == record.attempt and one.shares]
    host = f" {leases[-1].shares[0].host}" if leases else _OF_ITS_DEVICE
    where = f"host{host}" if place == Place.HOST else NAMES.get(place, "Lambda")
    return f"{where}: {why}" if why else where


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def state_of(record: Record) -> str:
    """The state of the record's job: a `JobState`."""
    return record.outcome or record.step.value


def waits_ahead(record: Record) -> bool:
    """True while the lease of a job was granted ahead, and its device is not free yet."""
    newest = next((one for one in record.leases if one.lease == record.lease), None)
    begun = newest is None or any((newest.booked_s, newest.active_s, newest.ended_s))
    return newest is not None and newest.ahead and not begun


def reason_of(record: Record) -> str:
    """The job's reason; while it runs, the record may have the reason of the last lease."""
    if waits_ahead(record):
        return Reason.AHEAD.value
    return record.reason if record.reason in _JOB_REASONS else Reason.NONE.value


def shown_reason(reason: object) -> str:
    """A reason for people: nothing where there is none."""
    return "" if reason in (None, Reason.NONE) else str(reason)

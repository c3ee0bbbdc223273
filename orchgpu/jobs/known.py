"""One job, from the scheduler's record and the cloud's objects, and the moments of its life.

The names of the moments are the paper's: RStart upload, NStart received, EStart and EEnd the user's
code, NEnd result seen, REnd finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from contract.progress import Progress
from contract.result import Report, Result
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import JobId
from corekit.values import Value, field, replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import LEASE_ENDED, RETRY_AT, JobLease, Lease, Record, Share, Step
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import Explanation
from orchgpu.core.execution import Place
from orchgpu.core.function import Function
from orchgpu.core.job import input_from_payload
from orchgpu.jobs import measures
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.intervals import Interval, intervals, job_times, uploaded_s
from orchgpu.jobs.summary import NAMES, place_of_record, state_of
from orchgpu.jobs.waiting import (
    BlockingLease,
    blocking_leases,
    in_lines,
    pause_sentence,
    wait_sentence,
    waits,
)

#: The newest attempts whose reports are read.
REPORTS_MAX = 10


class Scheduled(Value):
    """A job as the scheduler reports it."""

    record: Record
    waits: Explanation | None = None  #: the reason, while it waits
    others: tuple[BlockingLease, ...] = ()  #: the leases it waits for
    lease: Lease | None = None  #: the lease it holds now
    ends_in_s: float | None = None  #: of that lease, at most


class Known(Value):
    """All that is known of one job; at least one of `scheduled` and `result` exists."""

    job: str
    function: Function | None  #: None: no longer deployed
    scheduled: Scheduled | None  #: None: never received, or over for more than an hour
    result: Result | None
    reports: Mapping[int, Report]  #: of the attempts that failed, by number
    #: The time at which each was stored: those that Lambda wrote contain no time.
    reported_s: Mapping[int, float] = field(default_factory=dict)
    progress: Progress | None = None  #: of the attempt whose code runs now
    scheduler_error: AppError | None = None  #: of the scheduler, when it did not answer

    @property
    def record(self) -> Record | None:
        return self.scheduled.record if self.scheduled else None

    @property
    def function_name(self) -> str:
        """For people, also of a function that is no longer deployed."""
        if self.function is not None:
            return self.function.name
        named = self.record.block.get("function") if self.record else None
        return str(named or "function unknown")

    @property
    def state(self) -> str:
        if self.record is not None:
            return state_of(self.record)
        return self.result.state if self.result is not None else ""

    @property
    def attempt(self) -> int:
        """The newest attempt's number; 0 = none was opened."""
        if self.record is not None:
            return self.record.attempt
        return self.result.attempt if self.result is not None else 0

    @property
    def first_attempt(self) -> int:
        """The first attempt of the current budget: a job that was run again has a new one."""
        found = self.record.block.get("first_attempt") if self.record else None
        return found if isinstance(found, int) else 1

    @property
    def over(self) -> bool:
        return self.record.step is Step.ENDED if self.record else self.result is not None

    @property
    def standing(self) -> Result | None:
        """The result, unless it is a failure that a redriven job will replace."""
        return None if self.record is not None and not self.over else self.result


class Moment(Value):
    """One moment in the life of a job."""

    at_s: float  #: wall clock of the observer
    where: str  #: queue, scheduler, orchestrator, device or function
    what: str
    name: str | None = None  #: the paper's, if it has one
    #: The same in every read of the job, even when more is known about the moment.
    id: str


def wait_text(known: Known, now_s: float) -> str:
    """The reason why the job waits now; "" when it proceeds or is over."""
    if known.scheduled is None:
        return ""
    if known.scheduled.waits is not None:
        return in_lines(wait_sentence(known.scheduled.waits, known.scheduled.others))
    return pause_sentence(known.scheduled.record, now_s)


def place_text(known: Known) -> str:
    """The place of the newest attempt, for people; "" = unknown, or in Lambda alone."""
    if known.record is not None:
        return place_of_record(known.record)
    function = known.result.provenance.get("function") if known.result is not None else None
    place = function.get("place") if isinstance(function, Mapping) else None
    if known.result is None or place is None:
        return ""
    host = f"host {known.result.device.get('host')}"
    return host if place == Place.HOST else NAMES.get(str(place), "Lambda")


async def scheduled(client: SchedulerClient, job: str) -> Scheduled | None:
    """The job as the scheduler reports it now; None without a record of the job."""
    record = (await client.ask(ops.RecordOf(holder=JobId(job)))).record
    if record is None:
        return None
    why = await waits(client, record)
    live = await client.live_leases() if record.lease is not None or why is not None else None
    leases = {lease.id: lease for lease in live.leases} if live else {}
    lease = leases.get(record.lease) if record.lease is not None else None
    return Scheduled(
        record=record,
        waits=why,
        others=tuple(blocking_leases(why, live)) if why is not None and live is not None else (),
        lease=lease,
        ends_in_s=live.ends_in_s.get(lease.id) if live and lease else None,
    )


def look(cloud: JobCloud, known: Scheduled | None, job: str) -> Known:
    """The job with the cloud's objects. Raises NOT_FOUND for an unknown job."""
    found = look_of(cloud, _function(cloud, known, job), known, job)
    if known is None and found.result is None:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"no job {job!r} is known: it was never received, or its function is gone",
        )
    return found


def look_of(cloud: JobCloud, function: Function | None, known: Scheduled | None, job: str) -> Known:
    """`look` for a job whose function is known, or known to be gone."""
    result = cloud.result(function, job) if function is not None else None
    found = Known(job=job, function=function, scheduled=known, result=result, reports={})
    newest = range(max(1, found.attempt - REPORTS_MAX + 1), found.attempt + 1)
    read = {n: cloud.report(function, job, n) for n in newest} if function else {}
    stored = {n: one for n, one in read.items() if one is not None}
    found = replace(
        found,
        reports={n: report for n, (report, _) in stored.items()},
        reported_s={n: at_s for n, (_, at_s) in stored.items()},
    )
    return with_progress(cloud, found)


def with_progress(cloud: JobCloud, known: Known) -> Known:
    """The job with the newest report of its code; none unless it runs."""
    function, record = known.function, known.record
    if function is None or record is None or record.step is not Step.RUNNING:
        return known
    return replace(known, progress=cloud.progress(function, known.job, known.attempt))


def _function(cloud: JobCloud, known: Scheduled | None, job: str) -> Function | None:
    if known is None:  # only its result shows its function
        return next((f for f in cloud.functions() if cloud.result(f, job) is not None), None)
    try:
        return cloud.function(str(known.record.block.get("function")))
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return None


# ---------------------------------------------------------------------- moments


def moments(known: Known) -> list[Moment]:
    """All moments, as they happened. The clocks are those of several machines."""
    found = [*_of_queue(known), *_of_record(known), *_of_function(known)]
    return _as_they_happened(found, known.attempt)


def _as_they_happened(found: list[Moment], attempt: int) -> list[Moment]:
    """By time, but never an effect before its cause: a step is noted after what it began."""
    chain = (
        *("RStart", Step.RECEIVED, Step.WAITING, Step.RESERVED, Step.STAGED, "BOOKED"),
        Step.RUNNING,
        *(f"EStart:{attempt}", f"EEnd:{attempt}", "result", Step.COMMITTED, Step.ENDED),
    )
    by_kind = {moment.id.partition("@")[0]: moment for moment in found}
    order, not_before_s = {}, 0.0
    for kind in chain:
        if (moment := by_kind.get(kind)) is not None:
            not_before_s = max(not_before_s, moment.at_s)
            order[moment.id] = not_before_s
    return sorted(found, key=lambda moment: order.get(moment.id, moment.at_s))


def intervals_of(known: Known) -> tuple[Interval, ...]:
    times = job_times(known.record, known.standing, known.reports, known.reported_s)
    return intervals(times)


def latencies(found: list[Moment]) -> dict[str, float | None]:
    """RLat, DLat and ELat in seconds; None where a moment is missing."""
    at_s = {moment.name: moment.at_s for moment in found if moment.name}
    named = measures.latencies(at_s)
    return {name: None if s is None else round(s, 4) for name, s in named.items()}


def _of_queue(known: Known) -> Iterator[Moment]:
    source = input_from_payload(known.record.block) if known.record else None
    if source is None:
        return
    at_s = uploaded_s(known.record)
    if at_s is not None:
        what = f"{source.bucket}/{source.key} uploaded"
        yield Moment(at_s=at_s, where="queue", what=what, name="RStart", id="RStart")
    if source.dead_at_s is not None:
        what, dead_s = "moved to the dead letters", source.dead_at_s
        yield Moment(at_s=dead_s, where="queue", what=what, id=f"dead@{dead_s}")


def _of_record(known: Known) -> Iterator[Moment]:
    record = known.record
    if record is None:
        return
    newest = next((one for one in record.leases if one.lease == record.lease), None)
    steps = {
        Step.RECEIVED: ("queue", "message received", "NStart"),
        Step.WAITING: ("scheduler", "waits for a device", None),
        Step.RESERVED: ("scheduler", f"lease granted{_ahead(newest)}{_shares(known)}", None),
        Step.STAGED: ("orchestrator", "envelope staged, which starts the function", None),
        Step.RUNNING: _running(known, record),
        Step.COMMITTED: ("orchestrator", "result seen", "NEnd"),
        LEASE_ENDED: ("device", _ended(newest), None),
        Step.ENDED: ("scheduler", f"job {record.outcome}", "REnd"),
    }
    for step, (where, what, name) in steps.items():
        if step in record.times:
            at_s = record.times[step]  # a later attempt has another one
            yield Moment(at_s=at_s, where=where, what=what, name=name, id=f"{step}@{at_s}")
    yield from _of_wait(newest, "BOOKED")
    yield from _of_earlier_leases(record)
    if RETRY_AT in record.times and record.step is Step.RECEIVED:
        at_s, what = record.times[RETRY_AT], "next attempt is due"
        yield Moment(at_s=at_s, where="orchestrator", what=what, id=f"{RETRY_AT}@{at_s}")


def _running(known: Known, record: Record) -> tuple[str, str, None]:
    if not record.with_device:
        return "function", "the function claimed its attempt", None
    return "device", f"session opened{_device(known)}", None


def _ahead(one: JobLease | None) -> str:
    return " ahead" if one is not None and one.ahead else ""


def _ended(one: JobLease | None) -> str:
    if one is not None and one.ahead and one.booked_s is None:
        return f"lease ended, its device did not become free{_why(one)}"
    return "lease ended, the device is free"


def _why(one: JobLease) -> str:
    return f": {one.detail}" if one.detail else ""


def _loaded(one: JobLease) -> str:
    """Known at the end of its use of the device."""
    return "" if one.loaded_ahead_s is None else f", {one.loaded_ahead_s:.1f} s loaded ahead"


def _of_wait(one: JobLease | None, id_: str, which: str = "") -> Iterator[Moment]:
    """The device of a lease that was granted ahead became free."""
    if one is not None and one.booked_s is not None:
        wait_s = one.booked_s - one.granted_s
        what = f"waited ahead for the device: {wait_s:.1f} s{_loaded(one)}{which}"
        yield Moment(at_s=one.booked_s, where="scheduler", what=what, id=id_)


def _of_earlier_leases(record: Record) -> Iterator[Moment]:
    """Leases before the newest one, of earlier attempts for the most part."""
    for one in record.leases:
        if one.lease == record.lease or one.ended_s is None:
            continue
        which, device = f" (attempt {one.attempt})", one.device_text
        what = f"lease granted{_ahead(one)} on {device}{which}"
        yield Moment(at_s=one.granted_s, where="scheduler", what=what, id=f"granted:{one.lease}")
        yield from _of_wait(one, f"booked:{one.lease}", which)
        if one.active_s is not None:
            what = f"session opened on {device}{which}"
            yield Moment(at_s=one.active_s, where="device", what=what, id=f"opened:{one.lease}")
        what = f"lease ended: {one.reason}{which}{_why(one)}"
        yield Moment(at_s=one.ended_s, where="device", what=what, id=f"ended:{one.lease}")


def _of_function(known: Known) -> Iterator[Moment]:
    standing = known.standing
    if standing is not None:
        yield from _of_code(standing.times, standing.attempt, "", named=True)
        if "committed" in standing.times:
            at_s = standing.times["committed"]
            yield Moment(at_s=at_s, where="function", what="result committed", id=f"result@{at_s}")
        elif standing.ended_at_s:  # written by an orchestrator or a cancel
            at_s, what = standing.ended_at_s, f"result written: {standing.reason}"
            yield Moment(at_s=at_s, where="orchestrator", what=what, id=f"result@{at_s}")
    if known.progress is not None:
        yield from _of_progress(known.progress)
    for n, report in known.reports.items():
        if standing is None or standing.attempt != n:
            yield from _of_code(report.times, n, f" (attempt {n})", named=False)
        at_s = report.times.get("EEnd", known.reported_s.get(n, _last_s(known)))
        why = f"attempt {n} failed: {report.reason}, {report.detail}"
        yield Moment(at_s=at_s, where="function", what=why, id=f"failed:{n}")


def _of_progress(progress: Progress) -> Iterator[Moment]:
    n = progress.attempt
    if progress.part is not None or progress.text:
        part = "" if progress.part is None else f"{progress.part:.0%}"
        what = ": ".join(text for text in (part, progress.text) if text)
        yield Moment(at_s=progress.at_s, where="function", what=what, id=f"part:{n}:{what}")
    if (at_s := progress.saved_at_s) is not None:
        yield Moment(at_s=at_s, where="function", what="checkpoint saved", id=f"saved@{at_s}")


def _last_s(known: Known) -> float:
    """The newest known time of a job: moments without a time were before."""
    record, result = known.record, known.result
    return record.updated_s if record is not None else result.ended_at_s if result else 0.0


def _of_code(
    times: Mapping[str, float], attempt: int, which: str, *, named: bool
) -> Iterator[Moment]:
    for name, what in (("EStart", "user's code starts"), ("EEnd", "user's code ends")):
        if name in times:
            yield Moment(
                at_s=times[name],
                where="function",
                what=what + which,
                name=name if named else None,
                id=f"{name}:{attempt}",
            )


def _shares(known: Known) -> str:
    shares = _newest_shares(known)
    if not shares:
        return ""
    return " on " + ", ".join(f"{s.host}/{s.index} ({s.memory_mib} MiB)" for s in shares)


def _newest_shares(known: Known) -> Sequence[Share]:
    """The shares of the newest lease, live or, as the record keeps it, over."""
    if known.scheduled is None:
        return ()
    if known.scheduled.lease is not None:
        return known.scheduled.lease.shares
    record = known.scheduled.record
    return next((one.shares for one in record.leases if one.lease == record.lease), ())


def _device(known: Known) -> str:
    device: Mapping[str, object] = known.standing.device if known.standing else {}
    shares = _newest_shares(known)
    if not device and shares:
        share = shares[0]
        device = {"host": share.host, "kind": share.kind.value, "model": share.model}
    return f" on {device.get('host')}: {device.get('kind')} {device.get('model')}" if device else ""


def measured_run(cloud: JobCloud, known: Known) -> tuple[float, int]:
    """The function's time for the job, from start to result, and the function's memory in MiB.

    Raises INVALID for a job that did not succeed, NOT_FOUND without its function.
    """
    times = known.standing.times if known.standing is not None else {}
    if known.state != "SUCCEEDED" or not {"EStart", "committed"} <= set(times):
        raise invalid(
            f"{known.job} is {known.state}: only a job that succeeded has a measured time"
        )
    if known.function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    memory_mib = known.function.memory_mib
    if not memory_mib:  # the record of an older version
        memory_mib = cloud.services.function_settings(known.function.name).memory_mib
    return times["committed"] - times["EStart"], memory_mib

"""Intervals in the life of one job, by lane: queue, scheduler, function, device. Pure.

    queue      queued       uploaded … received
               pause        attempt failed … next one due
    scheduler  waits        request … grant
               staging      grant … envelope stored; of a first attempt without a device
                            received … envelope stored
               finishing    result seen … record ended
    function   cold start   envelope stored … user's code
               running      user's code
               result       user's code ended … result committed
    device     reserved     grant of a free device … session
               session      session … end of the lease

The Gantts of `orchgpu job`, of `orchgpu top` and of the web console are drawn from these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from contract.result import Report, Result
from corekit.values import Value, field, replace
from gpu_scheduler.model import RETRY_AT, Record, Step
from orchgpu.core.job import input_from_payload

#: The lanes, from top to bottom.
LANES = ("queue", "scheduler", "function", "device")
#: The intervals of each lane, from top to bottom.
NAMES: Mapping[str, tuple[str, ...]] = {
    "queue": ("queued", "pause"),
    "scheduler": ("waits", "staging", "finishing"),
    "function": ("cold start", "running", "result"),
    "device": ("reserved", "session"),
}


#: The steps of one attempt in the times of a record.
_STEPS = ("WAITING", "RESERVED", "STAGED", "RUNNING", "COMMITTED", "LEASE_ENDED")


class AttemptTimes(Value):
    """The moments of one attempt, wall clock."""

    number: int
    #: Those of the record: WAITING RESERVED STAGED RUNNING COMMITTED LEASE_ENDED; and RECEIVED of
    #: a first attempt without a device, whose staging begins so.
    steps: Mapping[str, float] = field(default_factory=dict)
    code: Mapping[str, float] = field(default_factory=dict)  #: EStart, EEnd, committed
    failed_s: float | None = None  #: the moment of its failure, if it failed
    ahead: bool = False  #: its lease was granted before its device was free
    booked_s: float | None = None  #: then: its device was free


class JobTimes(Value):
    """The moments of one job, wall clock; None for one that did not happen or is not known."""

    uploaded_s: float | None = None
    received_s: float | None = None
    ended_s: float | None = None  #: the end of its record, else of its result
    retry_s: float | None = None  #: the next attempt is due
    attempts: Sequence[AttemptTimes] = ()  #: by number


class Interval(Value):
    """One bar of a Gantt."""

    name: str
    lane: str
    start_s: float  #: wall clock
    end_s: float | None  #: None: it lasts
    attempt: int  #: 0 = before the first one


def job_times(
    record: Record | None,
    result: Result | None,
    reports: Mapping[int, Report],
    reported_s: Mapping[int, float],
) -> JobTimes:
    """The moments of a job by its record, its result and the reports of its failed attempts.

    `result`: None also for a failure that a redriven job will replace; `reported_s`: the time at
    which each report was stored.
    """
    steps = record.times if record is not None else {}
    newest = record.attempt if record is not None else result.attempt if result else 0
    found = {number: _failed(number, reports[number], reported_s) for number in reports}
    for one in record.attempts if record is not None else ():
        code = found.get(one.n, AttemptTimes(number=one.n)).code
        found[one.n] = AttemptTimes(
            number=one.n, steps=_own(one.times, one.n), code=code, failed_s=one.ended_s
        )
    if newest:
        code = result.times if result is not None and result.attempt == newest else {}
        before = found.get(newest, AttemptTimes(number=newest))
        found[newest] = AttemptTimes(
            number=newest,
            steps={**before.steps, **_own(steps, newest, record)},
            code={**before.code, **code},
            failed_s=before.failed_s,
        )
    for lease in record.leases if record is not None else ():
        if lease.attempt in found:
            found[lease.attempt] = replace(
                found[lease.attempt], ahead=lease.ahead, booked_s=lease.booked_s
            )
    ended_s = steps.get(Step.ENDED)
    if record is None and result is not None:
        ended_s = result.ended_at_s or max(result.times.values(), default=None)
    return JobTimes(
        uploaded_s=uploaded_s(record),
        received_s=steps.get(Step.RECEIVED),
        ended_s=ended_s,
        retry_s=steps.get(RETRY_AT),
        attempts=tuple(found[number] for number in sorted(found)),
    )


def uploaded_s(record: Record | None) -> float | None:
    """The time of the upload, by the event in the record's block; None where it has none."""
    source = input_from_payload(record.block) if record is not None else None
    try:
        return None if source is None else datetime.fromisoformat(source.event_time).timestamp()
    except ValueError:
        return None


def intervals(times: JobTimes) -> tuple[Interval, ...]:
    """The intervals of a job, by lane and start.

    The clocks are those of several machines: an interval never ends before it starts. One whose end
    is not known ends with its attempt, and lasts while nothing later is known.
    """
    found = [*_queued(times)]
    for at, attempt in enumerate(times.attempts):
        following = times.attempts[at + 1] if at + 1 < len(times.attempts) else None
        found += _of_attempt(attempt, _over_s(attempt, following, times.ended_s))
        if attempt.failed_s is not None and (following is not None or times.ended_s is None):
            due_s = times.retry_s if following is None else _first_s(following)
            found += _interval("queue", "pause", attempt.failed_s, due_s, attempt)
    found += _finishing(times)
    return tuple(sorted(found, key=lambda one: (LANES.index(one.lane), one.start_s, one.name)))


def _own(steps: Mapping[str, float], number: int, record: Record | None = None) -> dict[str, float]:
    """The steps of one attempt among those of a record; `record`: whose attempt is not over."""
    own = {name: at_s for name, at_s in steps.items() if name in _STEPS}
    without_device = "STAGED" in own or (record is not None and not record.with_device)
    if number == 1 and without_device and not own.keys() & {"WAITING", "RESERVED"}:
        own |= {name: steps[name] for name in ("RECEIVED",) if name in steps}
    return own


def _failed(number: int, report: Report, reported_s: Mapping[int, float]) -> AttemptTimes:
    failed_s = report.times.get("EEnd", reported_s.get(number))
    return AttemptTimes(number=number, code=report.times, failed_s=failed_s)


def _queued(times: JobTimes) -> Iterator[Interval]:
    if times.uploaded_s is not None:
        first_s = min((s for one in times.attempts for s in _all_s(one)), default=times.ended_s)
        end_s = times.received_s if times.received_s is not None else first_s
        yield from _interval("queue", "queued", times.uploaded_s, end_s, None)


def _of_attempt(attempt: AttemptTimes, over_s: float | None) -> Iterator[Interval]:
    """The intervals of one attempt; `over_s` ends those that nothing else ends."""
    steps, code = attempt.steps, attempt.code
    reserved_s, staged_s = steps.get("RESERVED"), steps.get("STAGED")
    running_s, started_s = steps.get("RUNNING"), code.get("EStart")
    held_s = attempt.booked_s if attempt.ahead else reserved_s
    opened_s = steps.get("RECEIVED") if reserved_s is None else reserved_s
    # staged without a lease: it needs no device
    session_s = None if reserved_s is None and staged_s is not None else running_s
    returned_s = code.get("EEnd") if attempt.failed_s is None else None  # a failure has no result
    ends: Sequence[tuple[str, str, float | None, Sequence[float | None]]] = (
        ("scheduler", "waits", steps.get("WAITING"), (reserved_s, over_s)),
        ("scheduler", "staging", opened_s, (staged_s, over_s)),
        # without a result yet the session is the nearest known moment to the start of the code
        ("function", "cold start", staged_s, (started_s, running_s, over_s)),
        (
            "function",
            "running",
            running_s if started_s is None else started_s,
            (code.get("EEnd"), over_s),
        ),
        ("function", "result", returned_s, (code.get("committed"), over_s)),
        ("device", "reserved", held_s, (running_s, steps.get("LEASE_ENDED"), over_s)),
        ("device", "session", session_s, (steps.get("LEASE_ENDED"), over_s)),
    )
    for lane, name, start_s, possible in ends:
        end_s = next((at_s for at_s in possible if at_s is not None), None)
        yield from _interval(lane, name, start_s, end_s, attempt)


def _finishing(times: JobTimes) -> Iterator[Interval]:
    if times.attempts:
        last = times.attempts[-1]
        yield from _interval(
            "scheduler", "finishing", last.steps.get("COMMITTED"), times.ended_s, last
        )


def _interval(
    lane: str, name: str, start_s: float | None, end_s: float | None, of: AttemptTimes | None
) -> Iterator[Interval]:
    if start_s is None:
        return
    yield Interval(
        name=name,
        lane=lane,
        start_s=start_s,
        end_s=None if end_s is None else max(start_s, end_s),
        attempt=0 if of is None else of.number,
    )


def _over_s(
    attempt: AttemptTimes, following: AttemptTimes | None, ended_s: float | None
) -> float | None:
    """The end of an attempt; None while it lasts."""
    if attempt.failed_s is not None:
        return attempt.failed_s
    return ended_s if following is None else _first_s(following)


def _first_s(attempt: AttemptTimes) -> float | None:
    return min(_all_s(attempt), default=None)


def _all_s(attempt: AttemptTimes) -> Iterator[float]:
    yield from attempt.steps.values()
    yield from attempt.code.values()

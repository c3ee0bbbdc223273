"""The cost of a job as it grows, and its cap (`max_cost`): a cap of dollars is a time. Pure.

It is counted for a job with a cap, and for one whose promise has an objective of cost (`slo`).

An attempt is paid from its device, without a device from its start, to its end: the function's
memory, and its whole devices, however many jobs share them. While it waits for a device that is not
free yet, its function alone is paid. The sum of the attempts that have ended
is in the job's record, so any replica continues it.
"""

from __future__ import annotations

from collections.abc import Mapping

from contract.record import JsonObject
from contract.states import Reason
from gpu_scheduler.model import Record, Step
from orchgpu.core import actions as do
from orchgpu.core.execution import Place
from orchgpu.core.job import Failure, Job
from orchgpu.core.prices import Prices

#: An attempt that could last for no longer does not begin.
ATTEMPT_S_MIN = 1.0
_HELD = (Step.RESERVED, Step.STAGED, Step.RUNNING, Step.COMMITTED)


def usd_per_s(job: Job) -> float:
    """Dollars for each second of an attempt; at least what is paid where devices are shared."""
    devices = 0 if job.ahead else job.request.count
    return Prices().job_usd_per_s(_memory_mib(job), devices)


def _memory_mib(job: Job) -> int:
    """Of the function in Lambda; a host's own memory is in the price of its devices."""
    return 0 if job.place in (Place.HOST, Place.SERVICE) else job.function.memory_mib


def begin(job: Job, wall_s: float) -> list[do.Action]:
    """From now on the attempt is paid, unless it is already."""
    if not job.counts_cost:
        return []
    job.paid_since_s = wall_s if job.paid_since_s is None else job.paid_since_s
    return timer(job, wall_s)


def reserved(job: Job, wall_s: float, *, ahead: bool) -> list[do.Action]:
    """From now on its device is paid, too; or, `ahead`, its function alone again."""
    if job.ahead is ahead:
        return []
    if job.paid_since_s is not None:
        job.paid_usd, job.paid_since_s = spent_usd(job, wall_s), wall_s
    job.ahead = ahead
    return timer(job, wall_s)


def opened(job: Job, wall_s: float) -> list[do.Action]:
    """Its session is open. Where the booking was not seen, its device is paid from the start."""
    if not job.ahead:
        return []
    job.ahead = False
    return timer(job, wall_s)


def end(job: Job, wall_s: float) -> None:
    """The attempt is paid no longer; repeated, it changes nothing."""
    if job.paid_since_s is not None:
        job.paid_usd = spent_usd(job, wall_s)
        job.paid_since_s, job.paid_attempt = None, job.attempt
    job.ahead = False


def spent_usd(job: Job, wall_s: float) -> float:
    if job.paid_since_s is None:
        return job.paid_usd
    return job.paid_usd + max(0.0, wall_s - job.paid_since_s) * usd_per_s(job)


def left_s(job: Job, wall_s: float) -> float | None:
    """Seconds of an attempt until the cap is reached; None = it has no cap, or costs nothing."""
    cap, rate = job.max_cost_usd, usd_per_s(job)
    if cap is None or rate <= 0:
        return None
    return (cap - spent_usd(job, wall_s)) / rate


def timer(job: Job, wall_s: float) -> list[do.Action]:
    """The timer that ends the job at its cap, while an attempt is paid."""
    seconds = left_s(job, wall_s)
    if seconds is None or job.paid_since_s is None:
        return []
    return [do.ArmTimer(job=job.id, timer=do.Timer.COST, in_s=max(0.0, seconds))]


def refusal(job: Job, wall_s: float) -> Failure | None:
    """The end of a job whose next attempt could not begin under its cap; None = it may."""
    seconds = left_s(job, wall_s)
    if seconds is None or seconds >= ATTEMPT_S_MIN:
        return None
    detail = f"{_words(job, wall_s)}: it does not pay for {ATTEMPT_S_MIN:g} s of an attempt"
    return Failure(reason=Reason.MAX_COST, detail=detail)


def reached(job: Job, wall_s: float) -> Failure:
    """The end of a job whose attempt has reached the cap."""
    detail = f"{_words(job, wall_s)}: attempt {job.attempt} was ended"
    return Failure(reason=Reason.MAX_COST, detail=detail)


def _words(job: Job, wall_s: float) -> str:
    cap, own = job.max_cost_usd, job.function.max_cost_usd
    whose = "max_cost is" if own is not None and own == cap else "its run has left"
    return f"the job cost {spent_usd(job, wall_s):.6g} USD and {whose} {cap:.6g} USD"


# ---------------------------------------------------------------------- across replicas


def remember(job: Job, record: Record) -> None:
    """The sum of an adopted job. The payload was written when the newest attempt was opened."""
    if not job.counts_cost:
        return
    paid, of = record.block.get("paid_usd"), record.block.get("paid_attempt")
    job.paid_usd = float(paid) if isinstance(paid, int | float) else 0.0
    job.paid_attempt = of if isinstance(of, int) else 0
    job.paid_since_s, job.ahead = None, False
    since_s = _paid_since_s(record)
    if since_s is None or record.attempt <= job.paid_attempt:
        return
    job.paid_since_s = since_s
    _remember_wait(job, record)
    if record.step not in _HELD:
        end(job, _ended_s(record))


def _remember_wait(job: Job, record: Record) -> None:
    """The time for which the attempt waits, or waited, for a device that was not free."""
    leases = [one for one in record.leases if one.attempt == record.attempt]
    if not leases or not leases[-1].ahead:
        return
    newest = leases[-1]
    job.ahead = newest.booked_s is not None or newest.active_s is None
    if newest.booked_s is not None:
        reserved(job, newest.booked_s, ahead=False)


def _paid_since_s(record: Record) -> float | None:
    if not record.with_device:
        return record.times.get(Step.STAGED.value)
    granted = [one.granted_s for one in record.leases if one.attempt == record.attempt]
    return max(granted, default=record.times.get(Step.RESERVED.value))


def _ended_s(record: Record) -> float:
    ended = [one.ended_s for one in record.leases if one.attempt == record.attempt]
    known = [at_s for at_s in ended if at_s is not None]
    return max(known, default=record.updated_s)


def of_attempt(job: Job) -> Mapping[str, float] | None:
    """The figures with which the attempt's runner states the cost (`contract.envelope`)."""
    if job.paid_since_s is None:
        return None
    rate = Prices().job_usd_per_s(_memory_mib(job), job.request.count)
    figures = {"paid_usd": job.paid_usd, "usd_per_s": rate, "since_s": job.paid_since_s}
    waiting = {"waiting_usd_per_s": usd_per_s(job)} if job.ahead else {}
    cap = {} if job.max_cost_usd is None else {"cap_usd": job.max_cost_usd}
    return {**figures, **waiting, **cap}


def in_result(job: Job) -> JsonObject:
    """The cost in a result of the orchestrator's own; nothing for a job that counts none."""
    return {} if not job.counts_cost else {"cost_usd": round(job.paid_usd, 9)}

"""One job for one viewer: its record by the scheduler, its objects by the cloud, its timeline."""

from __future__ import annotations

import time

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.id_form import JOB_ID
from orchgpu.jobs.known import Known, Scheduled, intervals_of, latencies, look, moments, scheduled
from orchgpu.jobs.waiting import pause_sentence
from orchgpu.report.cost import Comparison
from orchgpu.web.console import Console
from orchgpu.web.http.sessions import Session
from orchgpu.web.model.jobs import JobSummary, summary_of
from orchgpu.web.model.viewers import Viewer
from orchgpu.web.work.outputs import outputs_of

#: Leases that a job waits for, of one answer: those that end soonest.
BLOCKING_MAX = 8


async def story_of(console: Console, session: Session, job: str) -> Known:
    """All that the viewer may know of a job. Raises NOT_FOUND, DENIED."""
    found = await scheduled_of(console, session, job)
    return await console.cloud.ask(
        session.party, lambda cloud: _looked(cloud, found, job, session.viewer)
    )


async def scheduled_of(console: Console, session: Session, job: str) -> Scheduled | None:
    """The scheduler's part, with the rights of the viewer's key; None: it has no record."""
    check_id(job)

    async def question(client: SchedulerClient) -> Scheduled | None:
        return await scheduled(client, job)

    found = await console.scheduler.ask(session.key, question)
    if found is not None:
        session.viewer.require_job(summary_of(found.record))
    return found


def check_id(job: str) -> None:
    """Raise NOT_FOUND for a text that names no job."""
    if not JOB_ID.fullmatch(job):
        raise AppError(ErrorCode.NOT_FOUND, f"{job!r:.60} is not the id of a job")


def _looked(cloud: JobCloud, found: Scheduled | None, job: str, viewer: Viewer) -> Known:
    known = look(cloud, found, job)
    if known.function is not None:  # a record names whichever function its key wrote
        viewer.require_function(known.function)
    return known


def summary_of_known(known: Known) -> JobSummary:
    """The short form of a job, by its record or its result."""
    if known.record is not None:
        found = summary_of(known.record)
        return replace(found, device=found.device or _device_of(known))
    result = known.result
    assert result is not None, "a job without a record has a result"
    started_s = min(result.times.values(), default=result.ended_at_s)
    return JobSummary(
        job=known.job,
        function=None if known.function is None else known.function.name,
        bucket=None,
        key=None,
        state=result.state,
        reason=result.reason,
        attempt=result.attempt,
        received_s=started_s,
        changed_s=result.ended_at_s or max(result.times.values(), default=0.0),
        device=_device_of(known),
    )


def _device_of(known: Known) -> str | None:
    device = known.standing.device if known.standing is not None else {}
    return f"{device.get('host')} {device.get('model')}" if device else None


class Attempt(Value):
    """One attempt that failed, by its report."""

    attempt: int
    reason: str
    detail: str
    exit_code: int | None
    log_tail: str
    reported_s: float | None


def attempts_of(known: Known) -> list[Attempt]:
    """The attempts that left a report, by number."""
    return [
        Attempt(
            attempt=number,
            reason=report.reason,
            detail=report.detail,
            exit_code=report.exit_code,
            log_tail=report.log_tail,
            reported_s=known.reported_s.get(number),
        )
        for number, report in sorted(known.reports.items())
    ]


def explanation_of(known: Known) -> dict[str, object] | None:
    """The reason why the job waits now, with the expected start; None when it proceeds."""
    if known.scheduled is None:
        return None
    record, why = known.scheduled.record, known.scheduled.waits
    if why is None:
        sentence = pause_sentence(record, time.time())
        return {"text": sentence, "position": None, "expected_s": None} if sentence else None
    return {
        "text": why.sentence,
        "position": why.position,
        "expected_s": why.expected_s,
        "expected_why": why.expected_why,
        "blocking": known.scheduled.others[:BLOCKING_MAX],
        "blocking_total": len(known.scheduled.others),
    }


def result_of(known: Known) -> dict[str, object] | None:
    """The job's result, unless it will be replaced."""
    result = known.standing
    if result is None:
        return None
    return {
        "state": result.state,
        "reason": result.reason,
        "detail": result.detail,
        "exit_code": result.exit_code,
        "attempt": result.attempt,
        "log_tail": result.log_tail,
        "notes": result.notes,
        "device": result.device,
        "ended_s": result.ended_at_s or result.times.get("committed"),
        "outputs": len(outputs_of(result)),
    }


def story_json(known: Known, viewer: Viewer) -> dict[str, object]:
    """The whole story."""
    summary, found = summary_of_known(known), moments(known)
    live = known.scheduled.lease if known.scheduled is not None else None
    return {
        **encode(summary),
        "timeline": intervals_of(known),
        "moments": found,
        "latencies": latencies(found),
        "attempts": attempts_of(known),
        "explain": explanation_of(known),
        "result": result_of(known),
        "leases": known.record.leases if known.record is not None else (),
        "lease": live,
        "lease_ends_in_s": known.scheduled.ends_in_s if known.scheduled is not None else None,
        "may_change": viewer.may_change(summary),
        "may_retry": known.over and known.state in ("FAILED", "REJECTED"),
    }


#: Numbers of jobs on one device that are compared.
SHARERS = (1, 2, 4, 8)


def cost_json(ran_s: float, memory_mib: int) -> dict[str, object]:
    """The cost of one run that held a device, alone or shared, by the formula of `report.cost`."""
    run = Comparison(cpu_s=ran_s, gpu_s=ran_s, memory_mib=memory_mib)
    return {
        "ran_s": ran_s,
        "memory_mib": memory_mib,
        "function_usd": run.cpu_usd,
        "device_usd": run.gpu_usd() - run.cpu_usd,
        "total_usd": run.gpu_usd(),
        "sharers": [{"sharers": count, "total_usd": run.gpu_usd(count)} for count in SHARERS],
        "prices": run.prices,
    }

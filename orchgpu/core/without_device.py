"""The watch over a staged attempt without a device: it has no lease whose end would be its end.

Its function claims it with one object (`contract.claim`), then writes a result or a report; the
completion queue brings a notice of each, and Lambda's failure record where the function could not.
Every notice has the same effect: look for the result, then for the report. A deadline is the
backup. No start by `connect_by_s`: the orchestrator takes the claim itself, so a late start does
nothing, and the attempt was not started. A start that has the claim is over when Lambda must have
ended it and the notices had `CAP_SLACK_S` to come.

In Batch (ADR 62) no record comes where the function could not write one. So a look that finds
neither result nor report asks Batch too: runs that are all over end the attempt, by its claim.
One that waits in Batch's queue starts the time of its start again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contract.claim import Claim
from contract.states import JobState, Reason
from contract.timing import CAP_SLACK_S
from gpu_scheduler.model import Record, Step
from orchgpu.core import actions as do
from orchgpu.core import attempt
from orchgpu.core import events as on
from orchgpu.core.batch import BatchRun, reason_of
from orchgpu.core.context import Context
from orchgpu.core.execution import Place
from orchgpu.core.job import Job, Phase


def opened(context: Context, job: Job, event: on.AttemptOpened) -> list[do.Action]:
    job.revision, job.attempt = event.record.revision, event.attempt
    job.with_device, job.granted = False, None
    job.opened(job.attempt, event.at_s, event.wall_s)
    return attempt.stage(context, job, event.wall_s)


def recorded(context: Context, job: Job) -> list[do.Action]:
    deadline = _deadline(job, job.start_s(context.budget) + _foreign_s(job))
    job.strikes = 0
    return [deadline, *watch_again(context, job)]


def resume(context: Context, job: Job, record: Record, wall_s: float) -> list[do.Action]:
    """Adopted: its last owner may have taken notices and died, so look at once."""
    job.state = JobState.STAGED if record.step is Step.STAGED else JobState.RUNNING
    staged_s = record.times.get(Step.STAGED.value, wall_s)
    start_s = job.start_s(context.budget)
    left_s = staged_s + start_s + _foreign_s(job) - wall_s
    if job.place is Place.BATCH:  # its state may explain why it is late, once Batch answers
        job.ordered, left_s = left_s <= 0.0, start_s
    return [_deadline(job, max(0.0, left_s)), *look(job)]


def watch_again(context: Context, job: Job) -> list[do.Action]:
    """Look again if something happened meanwhile; otherwise there was nothing to see yet."""
    if job.look_again:
        return look(job)
    job.phase = Phase.RUNNING
    return [attempt.check_timer(context, job)]


def nothing_found(context: Context, job: Job) -> list[do.Action]:
    """Neither a result nor a report: only Batch may know more."""
    if job.place is not Place.BATCH:
        missing = job.place is Place.SERVICE and not job.ordered  # by an earlier owner
        return [*(attempt.order_run(job) if missing else []), *watch_again(context, job)]
    reading = do.ReadRuns(job=job.id, attempt=job.attempt, function=job.function, queue=job.queue)
    return [reading]


def runs_read(context: Context, job: Job, event: on.RunsRead) -> list[do.Action]:
    """Order what an earlier owner did not; close an attempt whose runs are all over."""
    job.runs = job.runs if event.runs is None else event.runs
    if event.runs and all(run.over for run in event.runs):
        return _close(job)
    waiting = any(run.queued for run in event.runs or ()) and job.state is not JobState.RUNNING
    later = [_deadline(job, _queued_s(context, job, event.at_s))] if waiting else []
    missing = event.runs == () and not job.ordered
    ordering = attempt.order_run(job) if missing else []
    return [*later, *ordering, *watch_again(context, job)]


def _queued_s(context: Context, job: Job, at_s: float) -> float:
    """The time for a start from Batch's queue: its message is kept until the run must be over."""
    start_s = job.start_s(context.budget)
    return max(0.0, min(start_s, attempt.latest_start_s(context, job) - at_s))


def look(job: Job) -> list[do.Action]:
    job.phase, job.look_again = Phase.CHECKING, False
    return attempt.read_result(job)


def noticed_early(job: Job) -> Iterable[do.Action]:
    """A result, a report or a failure was stored before the watch begins, or during a look."""
    job.look_again = True
    return ()


def started(job: Job, event: on.AttemptStarted) -> list[do.Action]:
    """The function claimed the attempt: from now on its own end is the deadline."""
    job.state = JobState.RUNNING
    return [_deadline_of(job, event.claim, event.wall_s)]


def started_early(job: Job) -> Iterable[do.Action]:
    """The same before the watch begins, or during a look: the deadline finds the claim."""
    job.state = JobState.RUNNING
    return ()


def check_due(job: Job) -> list[do.Action]:
    """The backup of the notices."""
    job.checks += 1
    return look(job)


def deadline_early(context: Context, job: Job) -> list[do.Action]:
    return [_deadline(job, context.budget.failure_grace_s)]


def cost_early(context: Context, job: Job) -> list[do.Action]:
    """The cap is reached during a look for the attempt's end, which may be there."""
    in_s = context.budget.failure_grace_s
    return [do.ArmTimer(job=job.id, timer=do.Timer.COST, in_s=in_s)]


def deadline_passed(job: Job) -> list[do.Action]:
    if job.target is not None:
        return _over(job, Reason.NO_OBJECT, f"{job.target} was not written in the function's time")
    return _close(job)


def _close(job: Job) -> list[do.Action]:
    job.phase = Phase.CLOSING
    bucket = job.function.intermediate_bucket
    return [do.CloseAttempt(job=job.id, attempt=job.attempt, bucket=bucket)]


def closed(context: Context, job: Job, event: on.AttemptClosed) -> list[do.Action]:
    """The claim that stands: of a start, or of an orchestrator, after which none runs."""
    claim, ended, seen = event.claim, {run.id: run for run in job.runs if run.over}, job.runs
    job.runs = ()
    ended = ended if len(ended) == len(seen) else {}
    if not claim.request and ended:
        group = "" if job.function.host is None else job.function.host.log_group
        return _over(job, *reason_of(ended.values(), claimed=False, log_group=group))
    if not claim.request:
        return _over(job, Reason.NOT_STARTED, _late(context, job, seen))
    job.state = JobState.RUNNING
    if claim.request in ended:
        return _over(job, *reason_of([ended[claim.request]], claimed=True))
    if event.wall_s < claim.ends_at_s + CAP_SLACK_S:
        again = watch_again(context, job) if ended else look(job)  # its run is not listed yet
        return [_deadline_of(job, claim, event.wall_s), *again]
    lambdas = " or a failure of Lambda's" if job.place is Place.LAMBDA else ""
    detail = f"the function's time is over, without a result{',' if lambdas else ' or'} a report"
    return _over(job, Reason.FUNCTION_TIMEOUT, detail + lambdas)


def _late(context: Context, job: Job, seen: Sequence[BatchRun]) -> str:
    """That the function did not start, with the last words of Batch."""
    start_s = job.start_s(context.budget)
    late = f"the function did not start within {start_s:.0f} s of its envelope"
    if any(run.queued for run in seen):
        late = "the function waited in Batch's queue until its message could be kept no longer"
    shown = [job.order_error, *(run.words for run in seen)]
    by = "; Batch: " if job.place is Place.BATCH else "; "
    return by.join([late, *filter(None, shown)])


def _over(job: Job, reason: Reason, detail: str) -> list[do.Action]:
    """The attempt is over whatever is found now; a result or a report comes first."""
    job.overdue, job.end_detail, job.graced = reason, detail, True
    return look(job)


def _foreign_s(job: Job) -> float:
    """The time of a function that claims nothing: only the end of its time is known."""
    return 0.0 if job.target is None else job.function.timeout_s + CAP_SLACK_S


def _deadline_of(job: Job, claim: Claim, wall_s: float) -> do.ArmTimer:
    return _deadline(job, max(0.0, claim.ends_at_s + CAP_SLACK_S - wall_s))


def _deadline(job: Job, in_s: float) -> do.ArmTimer:
    return do.ArmTimer(job=job.id, timer=do.Timer.DEADLINE, in_s=in_s)

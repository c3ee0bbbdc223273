"""The job machine as a table: phase × event → transition, and the phases that may follow.

The drawing in `docs/explanation/orchestrator.md` is printed from it (`python -m
tools.job_machine`). An event
without a row for the phase of its job comes too late, or twice, and changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpu_scheduler.model import LeaseState
from orchgpu.core import actions as do
from orchgpu.core import admitting, adopting, attempt, ending, reading, without_device
from orchgpu.core import events as on
from orchgpu.core.context import Context
from orchgpu.core.job import AT_REST, UNSTAGED, Job, Phase

Actions = Iterable[do.Action]
Transition = Callable[[Context, Job, Any], Actions]
#: A transition that needs less.
_Short = (
    Callable[[Context, Job], Actions] | Callable[[Job, Any], Actions] | Callable[[Job], Actions]
)
#: A kind of event; of timers and of leases the one that fires, or the state that it is in now.
Trigger = type[on.Event] | do.Timer | LeaseState

P = Phase
#: In place of a phase: this replica acts for the job no longer.
GONE = "gone"


class Row(NamedTuple):
    """In these phases this event has this transition."""

    trigger: Trigger
    phases: frozenset[P]
    run: Transition
    to: tuple[str, ...] = ()  #: phases that may follow, beside the same


def _row(trigger: Trigger, phases: Iterable[P], run: Transition | _Short, *to: str) -> Row:
    return Row(trigger, frozenset(phases), _full(run), to)


def _full(run: Any) -> Transition:
    full: Transition = run
    match tuple(inspect.signature(run).parameters):
        case ("job",):
            return lambda _context, job, _event: run(job)
        case ("job", "event"):
            return lambda _context, job, event: run(job, event)
        case ("context" | "self", "job"):
            return lambda context, job, _event: run(context, job)
    return full


#: A row of all phases is for those without another row of the same event.
ANY = frozenset(P)
_DECIDED = (P.DEAD_LETTERING, P.FINISHING, P.DELETING)
#: Phases of a job that has a lease; and those in which it may have one.
_HELD = (P.ACCEPTING, P.STAGING, P.RECORDING, P.RUNNING)
_HOLDING = (P.ADOPTING, *_HELD)
#: Phases in which an attempt is paid, and nothing is looked for.
_PAID = (P.STAGING, P.RECORDING, P.RUNNING)
#: A result that exists ends the job; a failure with a dead letter.
_END = (P.DEAD_LETTERING, P.FINISHING)
#: What a record may show that is not as this replica thought.
_UNOWNED = (P.ADOPTING, *_END, P.DELETING, GONE)
#: Without a device: before its watch, and during a look for its end.
_LOOKING = (P.CHECKING, P.EXPLAINING, P.CLOSING)
_EARLY = (P.STAGING, P.RECORDING, *_LOOKING)

#: Rows of every job.
_COMMON = (
    # what is read before the first attempt
    _row(
        on.InputRead,
        {P.READING},
        reading.input_read,
        *(P.ADMITTING, P.OPENING, P.CONCLUDING, GONE),
    ),
    _row(on.InputMissing, {P.READING, P.STAGING}, reading.input_missing, P.CONCLUDING, GONE),
    _row(on.InputChanged, {P.READING, P.STAGING}, reading.input_changed, P.CONCLUDING, GONE),
    _row(
        on.ResultRead,
        {P.READING},
        reading.result_read,
        *(P.ADMITTING, P.OPENING, P.ADOPTING, P.FINISHING, P.CONCLUDING),
    ),
    _row(on.PromiseAnswered, {P.ADMITTING}, admitting.answered, P.OPENING, P.CONCLUDING),
    # the request of an attempt, and its envelope
    _row(on.Reopened, {P.OPENING}, attempt.reopened),
    _row(on.AttemptWaiting, {P.OPENING}, attempt.waiting, P.WAITING),
    _row(on.AttemptGranted, {P.OPENING, P.WAITING}, attempt.granted, P.STAGING, P.ACCEPTING),
    _row(on.AttemptOpened, {P.OPENING}, without_device.opened, P.STAGING),
    _row(on.AttemptImpossible, {P.OPENING, P.WAITING}, ending.impossible, P.FAILING, P.CONCLUDING),
    _row(do.Timer.HAND_BACK, {P.WAITING}, attempt.hand_back),
    _row(on.LeaseRenewed, {P.ACCEPTING}, attempt.accepted, P.STAGING),
    _row(on.EnvelopeStaged, {P.STAGING}, attempt.staged, P.RECORDING),
    # the lease
    _row(LeaseState.RESERVED, _HELD, attempt.lease_reserved),
    _row(LeaseState.ACTIVE, ANY, attempt.lease_active),
    _row(LeaseState.ENDED, _HOLDING, ending.lease_changed, P.CHECKING),
    _row(LeaseState.ENDED, {P.WAITING}, adopting.grant_passed),
    _row(on.LeaseGone, {P.ACCEPTING, P.STAGING, P.RECORDING}, adopting.read_record),
    # the end of an attempt
    _row(on.ObjectNoticed, {P.RUNNING}, attempt.object_noticed),
    _row(on.ResultRead, {P.CHECKING}, ending.result_read, P.EXPLAINING, *_END),
    _row(
        on.ResultRead,
        {P.RECHECKING},
        ending.result_read,
        *(P.OPENING, P.CONCLUDING, *_END, GONE),
    ),
    _row(on.ResultRead, ANY, ending.result_read, *_END),
    _row(on.ResultRead, _DECIDED, ending.late_result_read),
    _row(do.Timer.GRACE, {P.GRACE}, attempt.read_report, P.EXPLAINING),
    _row(on.AttemptFailureRecorded, {P.FAILING}, ending.failure_recorded, P.BACKOFF),
    _row(do.Timer.COST, _PAID, ending.cost_reached, P.CONCLUDING),
    _row(do.Timer.NEXT_ATTEMPT, {P.BACKOFF}, attempt.next_attempt_due, P.RECHECKING),
    # the end of the job
    _row(on.ResultWritten, {P.CONCLUDING}, ending.result_written, *_END),
    _row(on.DeadLetterSent, {P.DEAD_LETTERING}, ending.finish, P.FINISHING),
    _row(on.Finished, {P.FINISHING}, ending.finished, P.DELETING),
    _row(on.MessagesDeleted, ANY, Context.forget, GONE),
    # the owner of the job
    _row(on.RecordConflict, {P.OPENING}, adopting.conflict_at_opening, P.CONCLUDING, *_UNOWNED),
    _row(on.RecordConflict, ANY, adopting.conflict, *_UNOWNED),
    _row(
        on.Adopted,
        {P.ADOPTING},
        adopting.adopted,
        *(P.WAITING, P.STAGING, P.RUNNING, P.CHECKING, P.BACKOFF, P.RECHECKING),
        *(P.CONCLUDING, *_END, P.DELETING),
    ),
    _row(on.SchedulerReturned, {P.WAITING, P.RUNNING}, adopting.read_record),
    _row(on.Orphaned, {P.WAITING, P.RUNNING}, adopting.read_record),
    _row(on.ReceiptHandleRenewed, ANY, attempt.receipt_handle_renewed),
    _row(on.Disowned, ANY, Context.forget, GONE),
    _row(on.HandedBack, ANY - {P.ADOPTING}, Context.forget, GONE),
    _row(on.DrainRequested, UNSTAGED, attempt.drained, GONE),
    _row(on.LeaveRequested, AT_REST, attempt.left),
    # repetitions
    _row(on.CallFailed, ANY, ending.call_failed, P.CONCLUDING, P.FAILING),
    _row(on.RepeatDue, ANY, ending.repeat_due),
    _row(do.Timer.BEAT, ANY, reading.beat),
)

#: Rows of an attempt with a device: its lease ends it.
_WITH_DEVICE = (
    _row(do.Timer.RENEW, {P.STAGING, P.RECORDING}, attempt.renewal_due),
    _row(on.StagedRecorded, {P.RECORDING}, attempt.recorded, P.RUNNING),
    _row(on.RunOrdered, {P.RECORDING, P.RUNNING}, attempt.run_ordered),
    _row(do.Timer.ORDER, {P.RECORDING, P.RUNNING}, attempt.order_run),
    _row(do.Timer.CHECK, {P.RUNNING}, attempt.check_due),
    _row(on.ResultNoticed, {P.RUNNING}, attempt.read_result),
    _row(on.ReportRead, {P.EXPLAINING}, ending.report_read, P.GRACE, P.FAILING, P.CONCLUDING),
    _row(on.FunctionFailureRecorded, {P.GRACE}, attempt.read_report, P.EXPLAINING),
)

#: Rows of an attempt without one: notices, a claim and a deadline end it.
_WITHOUT_DEVICE = (
    _row(on.StagedRecorded, {P.RECORDING}, without_device.recorded, P.RUNNING, P.CHECKING),
    _row(on.AttemptStarted, {P.RUNNING}, without_device.started),
    _row(on.AttemptStarted, _EARLY, without_device.started_early),
    _row(do.Timer.CHECK, {P.RUNNING}, without_device.check_due, P.CHECKING),
    *(
        row
        for notice in (on.ResultNoticed, on.ReportNoticed, on.FunctionFailureRecorded)
        for row in (
            _row(notice, {P.RUNNING}, without_device.look, P.CHECKING),
            _row(notice, _EARLY, without_device.noticed_early),
        )
    ),
    _row(
        on.ReportRead,
        {P.EXPLAINING},
        ending.report_read,
        *(P.RUNNING, P.CHECKING, P.FAILING, P.CONCLUDING),
    ),
    _row(
        on.RunsRead,
        {P.EXPLAINING},
        without_device.runs_read,
        *(P.RUNNING, P.CHECKING, P.CLOSING),
    ),
    _row(on.RunOrdered, {P.RECORDING, P.RUNNING, P.CHECKING, P.EXPLAINING}, attempt.run_ordered),
    _row(do.Timer.DEADLINE, {P.RUNNING}, without_device.deadline_passed, P.CLOSING, P.CHECKING),
    _row(do.Timer.DEADLINE, _EARLY, without_device.deadline_early),
    _row(do.Timer.COST, _LOOKING, without_device.cost_early),
    _row(on.AttemptClosed, {P.CLOSING}, without_device.closed, P.CHECKING, P.RUNNING),
)


def rows(*, with_device: bool) -> tuple[Row, ...]:
    return (*_COMMON, *(_WITH_DEVICE if with_device else _WITHOUT_DEVICE))


def _cells(with_device: bool) -> Mapping[tuple[P, Trigger], Row]:
    cells: dict[tuple[P, Trigger], Row] = {}
    for row in sorted(rows(with_device=with_device), key=lambda row: row.phases != ANY):
        for phase in row.phases:
            before = cells.get((phase, row.trigger))
            assert before is None or before.phases == ANY, f"two rows: {phase} × {row.trigger}"
            cells[phase, row.trigger] = row
    return cells


_CELLS = {with_device: _cells(with_device) for with_device in (True, False)}


def row_of(job: Job, event: on.Event) -> Row | None:
    if isinstance(event, on.AttemptEvent) and event.attempt != job.attempt:
        return None  # of an earlier attempt
    trigger: Trigger = type(event)
    if isinstance(event, on.TimerFired):
        trigger = event.timer
    elif isinstance(event, on.LeaseChanged):
        trigger = event.state
    return _CELLS[job.with_device].get((job.phase, trigger))

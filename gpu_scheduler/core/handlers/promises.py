"""Promises: admission of a run, and the end of a promise by its holder's wish."""

from __future__ import annotations

import hashlib
from math import inf

from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.queue import settlement
from gpu_scheduler.core.queue.bookings import Bookings, RunPromise
from gpu_scheduler.core.queue.decide import QueueTransaction, remember
from gpu_scheduler.core.queue.policy import Admission, PromiseAsked
from gpu_scheduler.promises import Estimate, PlannedStep, PromisedStep, ordered_steps
from gpu_scheduler.protocol import answers, ops

_FINGERPRINT_CHARS = 16
#: Two objectives of latency name the same moment if it differs by less: they were measured by other
#: clocks, and a message may have been on its way for so long.
_SAME_DUE_S = 5.0


def admit(tx: QueueTransaction, event: on.Asked[ops.Admit]) -> answers.AdmitAnswer:
    """Promise a run, or refuse it at once; a refusal changes nothing. Idempotent by run."""
    op, policy = event.op, tx.policy
    steps = ordered_steps(op.steps)
    if not policy.promises:
        names = ", ".join(name for name, one in tx.policies.items() if one.promises)
        text = f"policy {tx.state.parameters.policy} gives no promises; {names} give them"
        raise AppError(ErrorCode.CONFLICT, text, policy=tx.state.parameters.policy)
    view = tx.view()
    bookings = Bookings(view)
    asked = PromiseAsked(op.run, steps, op.slo, _fingerprint(op))
    run = bookings.run(op.run)
    if run is not None and not _is_same(tx, run, asked):
        text = f"run {op.run} was promised with other steps or another objective; waive it first"
        if not op.quote:
            raise AppError(ErrorCode.CONFLICT, text)
        run = None
    if run is not None:
        planned = tuple(one for step in steps if (one := _planned(bookings, step)) is not None)
        end_in_s = None if run.due_s == inf else run.due_s - tx.wall_s
        cost_usd = run.cost_usd
        ends_s = (one.end_in_s for one in planned)
        expected = Estimate(quantile=1.0, end_in_s=max(ends_s, default=0.0), cost_usd=cost_usd)
        admission = Admission(
            "promised before", True, planned, True, end_in_s, cost_usd, estimates=(expected,)
        )
        return _answer(admission, answers.Outcome.GRANTED)
    taken = next((step.job for step in steps if bookings.of(step.job) is not None), None)
    if taken is not None and not op.quote:
        raise AppError(ErrorCode.CONFLICT, f"job {taken} is a step of another promised run")
    admission = policy.admit(view, asked)
    if not admission.admitted:
        busy, never = answers.Outcome.BUSY, answers.Outcome.IMPOSSIBLE
        return _answer(admission, busy if admission.possible else never)
    if not tx.state.has_room:
        return _answer(Admission("the scheduler's journal has no room"), answers.Outcome.BUSY)
    if not op.quote:
        tx.drawn = view.drawn
        remember(tx, admission.remember)
        tx.capacity_freed = True  # a step may wait already; and a pause may end earlier
    return _answer(admission, answers.Outcome.GRANTED)


def waive(tx: QueueTransaction, event: on.Asked[ops.Waive]) -> answers.Done:
    """End a promise; unknown run = success."""
    if tx.policy.promises:
        if event.op.job is None:
            settlement.waive(tx, event.op.run)
        else:
            settlement.waive_step(tx, event.op.run, event.op.job)
    return answers.Done()


def _answer(admission: Admission, outcome: answers.Outcome) -> answers.AdmitAnswer:
    return answers.AdmitAnswer(
        outcome=outcome,
        why=admission.why,
        steps=admission.steps,
        end_in_s=admission.end_in_s,
        cost_usd=admission.cost_usd,
        frontier=admission.frontier,
        estimates=admission.estimates,
        critical=admission.critical,
    )


def _fingerprint(op: ops.Admit) -> str:
    cost_usd = None if op.slo is None else op.slo.cost_usd
    return hashlib.sha256(encode_json([op.steps, cost_usd])).hexdigest()[:_FINGERPRINT_CHARS]


def _is_same(tx: QueueTransaction, run: RunPromise, asked: PromiseAsked) -> bool:
    """True for the steps and objectives of the promise.

    A caller that asks again later states what is left of the latency: the run is due at the same
    moment.
    """
    if run.fingerprint not in ("", asked.fingerprint):
        return False
    if asked.latency_s is None or run.due_s == inf:
        return asked.latency_s is None and run.due_s == inf
    whole_s = run.due_s - run.given_s
    same = abs(asked.latency_s - whole_s) <= SAME_S
    return same or abs(tx.wall_s + asked.latency_s - run.due_s) <= _SAME_DUE_S


def _planned(bookings: Bookings, step: PromisedStep) -> PlannedStep | None:
    """The booking of a step that is not over."""
    booking = bookings.of(step.job)
    if booking is None or not bookings.view.is_known(bookings.device_of(step.job)):
        return None
    entry = bookings.view.state.inventory.devices[bookings.device_of(step.job)]
    return PlannedStep(
        name=step.name,
        job=step.job,
        host=entry.host,
        device=entry.device.id,
        kind=entry.device.kind.value,
        model=entry.device.model,
        start_in_s=booking.start_s - bookings.now_s,
        end_in_s=booking.end_s - bookings.now_s,
        warm=booking.warm,
    )

"""Requests for promises: for a run, or for the job of a function with objectives of its own."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.promises import PromisedStep, Slo, Tradeoff
from gpu_scheduler.protocol import answers, ops
from orchgpu.core import actions as do
from orchgpu.core.prices import Prices
from orchgpu.core.promises import promised_steps
from orchgpu.core.runs.records import Admission
from orchgpu.ports import Scheduler
from orchgpu.replica.actions.function_failures import record_of

#: Requests after which a promise is refused: the first, and one without an earlier promise.
_TRIES = 2


async def request_promise(
    scheduler: Scheduler,
    promise: str,
    steps: Sequence[PromisedStep],
    slo: Slo,
    *,
    gone_s: float,
    wall_s: float,
) -> Admission:
    """Request a promise; what the scheduler can never promise is refused as IMPOSSIBLE.

    `gone_s`: the part of the latency that has passed. A promise of this name that was given
    before, whose answer was lost, is replaced: its latency was that of another moment.
    Idempotent by the name. Raises AppError while the scheduler cannot answer.
    """
    if slo.latency_s is not None:
        left_s = slo.latency_s - gone_s
        if left_s <= 0:
            why = f"{gone_s:.3g} s had passed when it was requested, of {slo.latency_s:.3g} s"
            return refused(why, wall_s)
        slo = replace(slo, latency_s=left_s)
    asked = ops.Admit(run=promise, steps=tuple(steps), slo=slo)
    for tries in range(1, _TRIES + 1):
        try:
            return _admission(await scheduler.ask(asked), wall_s)
        except AppError as error:
            if error.code not in (ErrorCode.CONFLICT, ErrorCode.INVALID, ErrorCode.DENIED):
                raise
            if error.code is not ErrorCode.CONFLICT or tries == _TRIES:
                return _of_error(error, wall_s)
        await scheduler.ask(ops.Waive(run=promise))
    raise AssertionError("the last try returns or raises")


async def promise_of_job(
    scheduler: Scheduler, action: do.RequestPromise, wall_s: float
) -> Admission | None:
    """The promise of a function's job; None for one that has begun: it was promised before."""
    record = await record_of(scheduler, action.job)
    if record is not None and record.outcome is None:
        return None
    slo = action.function.slo
    assert slo is not None, "a function without objectives needs no promise"
    try:
        steps = promised_steps(action.function, {}, Prices(), run=action.job)
    except AppError as error:  # of what its record states, no promise is possible
        return refused(error.message, wall_s)
    gone_s = max(0.0, wall_s - action.begun_at_s)
    return await request_promise(
        scheduler, action.promise, steps, slo, gone_s=gone_s, wall_s=wall_s
    )


def refused(why: str, wall_s: float) -> Admission:
    """The refusal of what no device could change."""
    return Admission(outcome=answers.Outcome.IMPOSSIBLE, why=why, at_s=wall_s)


def _of_error(error: AppError, wall_s: float) -> Admission:
    """The refusal by an error; an older scheduler does not name the policy in its details."""
    policy = "policy" in error.details or "no promises" in error.message
    if error.code is not ErrorCode.CONFLICT or not policy:
        return refused(error.message, wall_s)
    why = f"{error.message} (`ssgm set policy slo`)"
    return replace(refused(why, wall_s), unpromised=True)


def _admission(answer: answers.AdmitAnswer, wall_s: float) -> Admission:
    return Admission(
        outcome=answer.outcome,
        why=answer.why + _in_words(answer),
        at_s=wall_s,
        end_in_s=answer.end_in_s,
        cost_usd=answer.cost_usd,
        steps=answer.steps,
    )


def _in_words(answer: answers.AdmitAnswer) -> str:
    """The ends of the frontier, for a refusal that does not name them."""
    if answer.outcome is answers.Outcome.GRANTED or not answer.frontier:
        return ""
    if "on free devices" in answer.why:
        return ""
    ends = dict.fromkeys((_text(answer.frontier[0]), _text(answer.frontier[-1])))
    return f"; on free devices: {' or '.join(ends)}"


def _text(one: Tradeoff) -> str:
    return f"{one.latency_s:.3g} s for ${one.cost_usd:.3g}"

"""Requester sessions: alive while they say anything, gone after `client_gone_s` of check_silence.

Whom a gone session acted for is up for adoption; its waiting jobs are parked at their place, its
waiting reservations end with it. Leases live on: they have deadlines of their own.
"""

from __future__ import annotations

from itertools import islice

from corekit.errors import ErrorCode
from corekit.ids import SessionId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.limits import Refusal
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.leases.leases import accept, end
from gpu_scheduler.core.placement.fits import COMPUTE_PCT_MAX
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.records.records import disown
from gpu_scheduler.core.state import LeaseEntry
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.core.views.explain import wanted
from gpu_scheduler.model import EndReason, LeaseLifetime, Request

#: Records and requests of a session that is gone which one event deals with: some 10 ms of work.
GONE_AT_ONCE = 500
GO_ON_S = 0.01  #: until the next of them


def mark_alive(tx: Transaction, session: SessionId) -> None:
    """Any request proves life; what was set aside for check_silence is back at its place."""
    if session not in tx.state.sessions:
        gone_s = tx.at_s + tx.budget.client_gone_s
        tx.state.timers.arm(TimerKind.SESSION, session, gone_s)
    tx.state.sessions[session] = tx.at_s
    if session in tx.state.queue.unresponsive:
        tx.state.queue.mark_responsive(session)
        tx.capacity_freed = True


def hello(tx: Transaction, event: on.SessionHello) -> None:
    """Also after a reconnect: grants it may have missed are pushed again."""
    state = tx.state
    tx.reply(event.reply_to, do.SessionWelcome(epoch=state.epoch, now_s=tx.wall_s))
    for entry in state.leases.values():
        if not entry.accepted and tx.owner_of(entry) == event.session:
            tx.set_deadline(entry, tx.budget.accept_s)
            dispatch.push_granted(tx, entry)


def check_silence(tx: Transaction, session: SessionId) -> None:
    """Its timer fired: gone, or mark_alive since and timed anew."""
    last_seen_s = tx.state.sessions.get(session)
    gone_s = tx.at_s if last_seen_s is None else last_seen_s + tx.budget.client_gone_s
    if tx.at_s < gone_s:
        tx.state.timers.arm(TimerKind.SESSION, session, gone_s)
    else:
        _gone(tx, session)


def _gone(tx: Transaction, session: SessionId) -> None:
    """What it leaves is dealt with in parts, so that others are answered in between."""
    state = tx.state
    state.sessions.pop(session, None)
    state.watchers.pop(session, None)
    holders = tuple(islice(state.owned.get(session, ()), GONE_AT_ONCE))
    for holder in holders:
        disown(tx, state.records[holder])
        tx.push(session, do.DisownedPush(holder=holder))
    left = GONE_AT_ONCE - len(holders)  # of jobs nothing waits for it any more if there is any
    for attempt in tuple(islice(state.queue.of_session.get(session, ()), left)):
        dispatch.drop(tx, attempt)
    if session in state.owned or session in state.queue.of_session:
        state.timers.arm(TimerKind.SESSION, session, tx.at_s + GO_ON_S)


def watch(tx: Transaction, event: on.WatchAsked) -> None:
    if event.all_leases:
        tx.state.watchers[event.session] = event.sees_all
    else:
        tx.state.watchers.pop(event.session, None)
    tx.reply(event.reply_to, do.Done())


def reserve(tx: Transaction, event: on.ReserveAsked) -> None:
    """A lease without a job record. Idempotent by attempt: the same request of the same session."""
    standing = _existing(tx, event.attempt)
    length = length_problem(tx, event.hold, requested_length_s(event.request, event.lease_s))
    problem = length or _owner_problem(event, *standing) or _mismatch_problem(event, *standing)
    if problem is not None:
        tx.refuse(event.reply_to, *problem)
        return
    entry, queued = standing
    if entry is not None:
        accept(tx, entry)
        granted = tx.granted(entry)
        answer = do.AttemptAnswer(outcome=do.Outcome.GRANTED, granted=granted)
    else:
        judged = _judge(tx, event, queued)
        if isinstance(judged, Refusal):
            judged.reply(tx, event.reply_to)
            return
        answer = judged
    tx.reply(event.reply_to, answer)


def withdraw(tx: Transaction, event: on.WithdrawAsked) -> None:
    """Whoever waits for a reservation gives up: out of the queue, or its lease ends. Idempotent."""
    entry, queued = _existing(tx, event.attempt)
    problem = _owner_problem(event, entry, queued)
    if problem is not None:
        tx.refuse(event.reply_to, *problem)
        return
    dispatch.drop(tx, event.attempt)
    if entry is not None:
        end(tx, entry, EndReason.RELEASED, "withdrawn")
    tx.reply(event.reply_to, do.Done())


def _existing(tx: Transaction, attempt: str) -> tuple[LeaseEntry | None, to.Waiting | None]:
    """The lease of an attempt, or its place in the queue; most have neither."""
    state = tx.state
    lease = state.lease_of.get(attempt)
    return None if lease is None else state.leases.get(lease), state.queue.entries.get(attempt)


def requested_length_s(request: Request, lease_s: float | None) -> float | None:
    """How long a lease for this request may last, as far as that is told."""
    return request.lease_s if lease_s is None else lease_s


def length_problem(
    tx: Transaction, hold: LeaseLifetime, asked_s: float | None
) -> tuple[ErrorCode, str] | None:
    """Why no lease is so long, if so."""
    most_s = tx.state.parameters.lease_s_max
    if hold is LeaseLifetime.DEADLINE and asked_s is None:
        return ErrorCode.INVALID, "hold deadline needs lease_s, the seconds until the lease ends"
    if asked_s is not None and not 0 < asked_s <= most_s:
        return ErrorCode.INVALID, f"lease_s {asked_s:g} must be more than 0 and at most {most_s:g}"
    return None


def _mismatch_problem(
    event: on.ReserveAsked, entry: LeaseEntry | None, waiting: to.Waiting | None
) -> tuple[ErrorCode, str] | None:
    """What stands under this attempt, if it answers another request.

    A resize is no other request, nor is a renewal (it leaves the request's own length alone), nor
    is the patience that is left to who asks again.
    """
    if entry is not None:
        stands, hold = entry.request, entry.lease.hold
    elif waiting is not None:
        stands, hold = waiting.request, waiting.hold
    else:
        return None
    if hold is event.hold and _unsized(stands) == _unsized(event.request):
        return None
    text = f"attempt {event.attempt} stands for another request ({wanted(stands)})"
    return ErrorCode.CONFLICT, f"{text}: repeat that one unchanged, or use another attempt name"


def _unsized(request: Request) -> Request:
    return replace(request, compute_limit_pct=COMPUTE_PCT_MAX, max_wait_s=None)


def _owner_problem(
    event: on.ReserveAsked | on.WithdrawAsked, entry: LeaseEntry | None, waiting: to.Waiting | None
) -> tuple[ErrorCode, str] | None:
    """Why an attempt is not this session's to decide about, if so."""
    taken = (entry is not None and entry.session != event.session) or (
        waiting is not None and (waiting.holder is not None or waiting.session != event.session)
    )
    if taken:
        return ErrorCode.CONFLICT, f"attempt {event.attempt} belongs to somebody else"
    return None


def _judge(
    tx: Transaction, event: on.ReserveAsked, queued: to.Waiting | None
) -> do.AttemptAnswer | Refusal:
    if queued is not None:
        reason = dispatch.explained(tx, queued.request, queued)
        return do.AttemptAnswer(outcome=do.Outcome.WAITING, explanation=reason)
    waiting = to.Waiting(
        attempt=event.attempt,
        holder=None,
        request=event.request,
        session=event.session,
        waiting_since_s=tx.wall_s,
        hold=event.hold,
        door=event.door,
        sources=event.sources,
        lease_s=requested_length_s(event.request, event.lease_s),
    )
    outcome, entry, full = dispatch.admit(tx, waiting, wait=event.wait)
    if full is not None:
        return full
    if entry is not None:
        return do.AttemptAnswer(outcome=outcome, granted=tx.granted(entry))
    reason = dispatch.explained(tx, event.request, waiting)
    return do.AttemptAnswer(outcome=outcome, explanation=reason)

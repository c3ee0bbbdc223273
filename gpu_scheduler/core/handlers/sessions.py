"""Requester sessions: alive while they send requests, gone after `client_gone_s` of silence.

The jobs of a gone session can be adopted and keep their places in the queue; its waiting
reservations end with it. Its leases continue: they have deadlines of their own.
"""

from __future__ import annotations

from itertools import islice

from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, SessionId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers.records import abandon, absolve
from gpu_scheduler.core.inventory.devices import COMPUTE_PCT_MAX
from gpu_scheduler.core.leases.leases import accept, end
from gpu_scheduler.core.leases.lengths import check_length
from gpu_scheduler.core.queue import dispatch
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.state.state import FunctionAccount, LeaseEntry, State
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import EndReason, Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.request_text import request_text

#: Records and requests of a gone session that one event handles: about 10 ms of work.
GONE_AT_ONCE = 500
GO_ON_S = 0.01  #: delay until the next event
#: The longest pause of leases ahead that one beat asks for; a longer one is cut to it.
THROTTLED_S_MAX = 600.0


def mark_alive(tx: QueueTransaction, session: SessionId) -> None:
    """Restart the silence timer of a session; restore its requests, and take back its strikes."""
    if session not in tx.state.sessions:
        gone_s = tx.at_s + tx.budget.client_gone_s
        tx.state.timers.arm(TimerKind.SESSION, session, gone_s)
    tx.state.sessions[session] = tx.at_s
    if session in tx.state.queue.unresponsive:
        tx.state.queue.mark_responsive(session)
        tx.capacity_freed = True
    if session in tx.state.struck:
        absolve(tx, session)


def hello(tx: QueueTransaction, event: on.Asked[ops.Hello]) -> None:
    """Welcome a session; after a reconnect, push the grants that it may have missed again.

    It replies itself, because the answer to a hello is before every push.
    """
    state = tx.state
    tx.reply(event.reply_to, answers.SessionWelcome(epoch=state.epoch, now_s=tx.wall_s))
    for entry in state.leases.values():
        if not entry.accepted and tx.owner_of(entry) == event.session:
            tx.set_deadline(entry, tx.budget.accept_s)
            tx.push_granted(entry)


def beat(tx: QueueTransaction, event: on.Asked[ops.Beat]) -> answers.Done:
    """Note the account of its functions; its arrival has already proved that it is alive."""
    op, state = event.op, tx.state
    name = op.account or state.account_of.get(event.session, event.session)
    if op.account or op.throttled_s:
        paused_until_s = 0.0
        if state.account_of.get(event.session) != name:
            paused_until_s = _leave_account(state, event.session)
        account = state.function_accounts.setdefault(name, FunctionAccount())
        account.sessions[event.session] = None
        state.account_of[event.session] = name
        if op.ahead_max is not None:
            account.ahead_max = op.ahead_max
        pause_s = min(op.throttled_s, THROTTLED_S_MAX)
        until_s = max(paused_until_s, tx.at_s + pause_s)
        account.paused_until_s = max(account.paused_until_s, until_s)
    return answers.Done()


def _leave_account(state: State, session: SessionId) -> float:
    """Forget the account of a session, and an account without sessions.

    Returns the end of a pause that the session reported before its account.
    """
    name = state.account_of.pop(session, None)
    if name is None:
        return 0.0
    account = state.function_accounts[name]
    del account.sessions[session]
    if not account.sessions:
        del state.function_accounts[name]
    return account.paused_until_s if name == session else 0.0


def check_silence(tx: QueueTransaction, session: SessionId) -> None:
    """Handle the silence timer of a session: the session is gone, or its timer is rearmed."""
    last_seen_s = tx.state.sessions.get(session)
    gone_s = tx.at_s if last_seen_s is None else last_seen_s + tx.budget.client_gone_s
    if tx.at_s < gone_s:
        tx.state.timers.arm(TimerKind.SESSION, session, gone_s)
    else:
        _gone(tx, session)


def _gone(tx: QueueTransaction, session: SessionId) -> None:
    """Disown the jobs of a gone session and end its requests, in batches with gaps for others."""
    state = tx.state
    state.sessions.pop(session, None)
    state.watchers.pop(session, None)
    state.record_watchers.pop(session, None)
    _leave_account(state, session)
    state.floors.declare(session, ())
    holders = tuple(islice(state.owned.get(session, ()), GONE_AT_ONCE))
    for holder in holders:
        abandon(tx, state.records[holder], session)
        tx.push(session, answers.DisownedPush(holder=holder))
    left = GONE_AT_ONCE - len(holders)  # the requests of its jobs are already ownerless
    for attempt in tuple(islice(state.queue.by_session.get(session, ()), left)):
        dispatch.drop(tx, AttemptId(attempt))
    if session in state.owned or session in state.queue.by_session:
        state.timers.arm(TimerKind.SESSION, session, tx.at_s + GO_ON_S)


def watch(tx: QueueTransaction, event: on.Asked[ops.Watch]) -> answers.Done:
    op = event.op
    if op.all:
        tx.state.watchers[event.session] = event.sees_all
    else:
        tx.state.watchers.pop(event.session, None)
    if op.records:
        tx.state.record_watchers[event.session] = None
    else:
        tx.state.record_watchers.pop(event.session, None)
    return answers.Done()


def reserve(tx: QueueTransaction, event: on.Asked[ops.Reserve]) -> answers.AttemptAnswer:
    """A lease without a job record. Idempotent by attempt: the same request of the same session."""
    op = event.op
    entry, queued = _existing(tx, op.attempt)
    length_s = op.request.lease_s if op.lease_s is None else op.lease_s
    check_length(tx.state.parameters, op.hold, length_s)
    standing = entry or queued
    if standing is not None:
        _check_owner(event, entry, queued)
        _check_repetition(event, standing)
    if entry is not None:
        accept(tx, entry)
        return answers.AttemptAnswer(outcome=answers.Outcome.GRANTED, granted=tx.granted(entry))
    if queued is not None:
        reason = dispatch.explanation_of(tx, queued.request, queued)
        return answers.AttemptAnswer(outcome=answers.Outcome.WAITING, explanation=reason)
    waiting = to.Waiting(
        attempt=op.attempt,
        holder=None,
        request=op.request,
        session=event.session,
        waiting_since_s=tx.wall_s,
        hold=op.hold,
        door=op.door,
        sources=op.sources,
        lease_s=length_s,
    )
    outcome, entry = dispatch.admit(tx, waiting, wait=op.wait)
    if entry is not None:
        return answers.AttemptAnswer(outcome=outcome, granted=tx.granted(entry))
    reason = dispatch.explanation_of(tx, op.request, waiting)
    return answers.AttemptAnswer(outcome=outcome, explanation=reason)


def withdraw(tx: QueueTransaction, event: on.Asked[ops.Withdraw]) -> answers.Done:
    """Take a reservation out of the queue, or end its lease. Idempotent."""
    op = event.op
    entry, queued = _existing(tx, op.attempt)
    _check_owner(event, entry, queued)
    dispatch.drop(tx, op.attempt)
    if entry is not None:
        end(tx, entry, EndReason.RELEASED, "withdrawn")
    return answers.Done()


def _existing(
    tx: QueueTransaction, attempt: AttemptId
) -> tuple[LeaseEntry | None, to.Waiting | None]:
    """The lease of an attempt, or its place in the queue; most have neither."""
    state = tx.state
    lease = state.lease_of.get(attempt)
    return None if lease is None else state.leases.get(lease), state.queue.entries.get(attempt)


def _check_repetition(event: on.Asked[ops.Reserve], standing: LeaseEntry | to.Waiting) -> None:
    """Refuse another request of the same attempt.

    A resized or renewed lease still matches its request, and a repeated request may have less time
    left to wait.
    """
    op = event.op
    request = standing.request
    hold = standing.lease.hold if isinstance(standing, LeaseEntry) else standing.hold
    if hold is op.hold and _unsized(request) == _unsized(op.request):
        return
    text = f"attempt {op.attempt} already has another request ({request_text(request)})"
    text += ": repeat that request unchanged, or use another attempt name"
    raise AppError(ErrorCode.CONFLICT, text)


def _unsized(request: Request) -> Request:
    return replace(request, compute_limit_pct=COMPUTE_PCT_MAX, max_wait_s=None, advance=None)


def _check_owner(
    event: on.Asked[ops.Reserve | ops.Withdraw],
    entry: LeaseEntry | None,
    waiting: to.Waiting | None,
) -> None:
    taken = (entry is not None and entry.session != event.session) or (
        waiting is not None and (waiting.holder is not None or waiting.session != event.session)
    )
    if taken:
        message = f"attempt {event.op.attempt} belongs to another session"
        raise AppError(ErrorCode.CONFLICT, message)

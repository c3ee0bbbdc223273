"""Requests: admission, queueing, service, withdrawal. A release serves the next request at once.

After every event, every request that may be served and fits has been granted, unless the
policy lets it wait: `serve` asks it until it proposes nothing. Under a policy that only orders, the
head of the queue is overtaken a bounded number of times (overtaking.py).
"""

from __future__ import annotations

from typing import NamedTuple

from corekit.ids import AttemptId, LeaseId
from corekit.values import replace
from gpu_scheduler.core.admission.limits import Refusal, waiting_refusal
from gpu_scheduler.core.admission.quotas import (
    clamped_to_quota,
    clamped_to_whole_quota,
    held_text,
    remaining_text,
    request_to_explain,
    within_quota,
)
from gpu_scheduler.core.admission.tenants import least_amount
from gpu_scheduler.core.leases.history import with_lease
from gpu_scheduler.core.leases.leases import orphaned
from gpu_scheduler.core.placement.capacity import is_infeasible
from gpu_scheduler.core.placement.explain import explain, out_of_service, queue_place
from gpu_scheduler.core.queue import advance, overtaking, preemption
from gpu_scheduler.core.queue.decide import (
    QueueTransaction,
    commit,
    held_reason,
    newcomer_choice,
    next_choice,
    stop,
)
from gpu_scheduler.core.queue.policy import Choice
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import Request, Step
from gpu_scheduler.parameters import NO_QUOTA
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol.keys import key_of
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import Explanation, HeldBack, NoFit


class Evaluation(NamedTuple):
    """The outcome for a request that is not queued."""

    outcome: answers.Outcome
    choice: Choice | None = None
    searched: bool = True  #: False: held back by a rule, without a search for devices
    full: Refusal | None = None  #: it would wait, but the limit of waiting requests is reached


def evaluate(tx: QueueTransaction, waiting: to.Waiting) -> Evaluation:
    """Evaluate a request without changes: granted, impossible, busy, or waiting.

    No request in the queue can be served (see `serve`), so all free devices may serve a new one,
    except those that are reserved for the head.
    """
    state = tx.state
    if permanent_refusal(tx, waiting) or is_infeasible(waiting.request, state.inventory):
        return Evaluation(answers.Outcome.IMPOSSIBLE)
    held = held_back(tx, waiting) is not None
    choice = None if held else newcomer_choice(tx, waiting)
    if choice is not None:
        return Evaluation(answers.Outcome.GRANTED, choice)
    record = tx.record_of(waiting.holder)
    key = key_of(waiting.session) if record is None else record.key
    full = waiting_refusal(state, key, waiting.request.tenant)
    outcome = answers.Outcome.WAITING if full is None else answers.Outcome.BUSY
    return Evaluation(outcome, searched=not held, full=full)


def admit(
    tx: QueueTransaction, waiting: to.Waiting, *, wait: bool
) -> tuple[answers.Outcome, LeaseEntry | None]:
    """Evaluate a new request, and grant it, queue it or refuse it: the outcome, and the lease.

    Raises EXHAUSTED when it would wait, but a limit is reached: the sender repeats the request.
    """
    evaluation = evaluate(tx, waiting)
    if evaluation.choice is not None:
        if tx.state.queue.entries:
            overtaking.count(tx, waiting, evaluation.choice.devices)
        entry = commit(tx, waiting, evaluation.choice, accepted=True)
        advance.watch(tx, entry)
        return evaluation.outcome, entry
    if evaluation.full is not None and wait:
        raise evaluation.full.error
    if evaluation.outcome is answers.Outcome.WAITING and wait:
        enqueue(tx, waiting, searched=evaluation.searched)
        return evaluation.outcome, None
    tx.state.remember_refused(waiting)
    waits = evaluation.outcome is answers.Outcome.WAITING
    return answers.Outcome.BUSY if waits else evaluation.outcome, None


def permanent_refusal(tx: QueueTransaction, waiting: to.Waiting) -> str | None:
    """The reason why waiting cannot help this request, whatever devices exist; None when it can."""
    if (late_s := tx.late_s(waiting)) is not None:
        return f"its deadline passed {late_s:.1f} s ago"
    return _beyond_quota(tx, waiting.request)


def _beyond_quota(tx: QueueTransaction, request: Request) -> str | None:
    quota = tx.state.parameters.quota(request.tenant)
    if quota is NO_QUOTA:
        return None
    if not least_amount(request).within(quota):
        return f"it exceeds the whole quota of tenant {request.tenant}: {quota}"
    at_best = clamped_to_whole_quota(request, quota)
    if not _only_too_large(tx, request, at_best):
        return None
    if request.count == 1:
        return f"every suitable device exceeds the whole quota of tenant {request.tenant}: {quota}"
    each = f"at most {at_best.memory_max_mib} MiB, an equal part of"
    return f"too few suitable devices have {each} the quota of tenant {request.tenant}: {quota}"


def _only_too_large(tx: QueueTransaction, request: Request, clamped: Request) -> bool:
    """True when known devices could serve the request, but only larger ones than `clamped`."""
    inventory = tx.state.inventory
    return (
        clamped is not request
        and is_infeasible(clamped, inventory)
        and not is_infeasible(request, inventory)
    )


class Rule(NamedTuple):
    """A reason why a request waits, whatever devices are free: a code and a text."""

    what: HeldBack
    text: str


def held_back(tx: QueueTransaction, waiting: to.Waiting) -> Rule | None:
    """The rule that holds a request back; None when only devices are missing."""
    state, request, tenant = tx.state, waiting.request, waiting.request.tenant
    if not state.has_room:
        text = "the scheduler's journal has no room for new grants; free space on its disk"
        return Rule(HeldBack.JOURNAL_FULL, text)
    if len(state.leases) >= state.parameters.leases_max:
        text = f"the limit of {state.parameters.leases_max} live leases (leases_max) is reached"
        return Rule(HeldBack.LEASES_MAX, text)
    if not within_quota(state, request):
        rest = f" (it holds {held_text(state, tenant)})"
    elif _only_too_large(tx, request, clamped_to_quota(state, request)):
        left = remaining_text(state, request)
        rest = f" except for {left}: too few suitable devices are small enough"
    else:
        return None
    quota = state.parameters.quota(tenant)
    return Rule(HeldBack.QUOTA, f"tenant {tenant} has used up its quota of {quota}{rest}")


def enqueue(tx: QueueTransaction, waiting: to.Waiting, *, searched: bool = False) -> None:
    """Queue a request, or change its session.

    `searched`: this transaction found no devices for it, so only freed capacity can serve it.
    """
    tx.emit(to.RequestQueued(waiting=waiting))
    tx.start_wait_timer(waiting)
    if not searched:
        tx.state.queue.mark_dirty(waiting.attempt)
    tx.capacity_freed = True


def drop(tx: QueueTransaction, attempt: AttemptId) -> None:
    """Remove a request from the queue; idempotent."""
    if attempt in tx.state.queue.entries:
        tx.emit(to.RequestDropped(attempt=attempt))
        tx.state.timers.cancel(TimerKind.WAIT, attempt)
        tx.capacity_freed = True  # devices that were reserved for it are free


def explanation_of(
    tx: QueueTransaction, request: Request, waiting: to.Waiting | None = None
) -> Explanation:
    """The explanation of a wait or a refusal: reasons of devices first, then of rules."""
    inventory, queue = tx.state.inventory, tx.state.queue
    if waiting is None:
        return explain(request, inventory)
    position = queue.position(waiting) if waiting.attempt in queue.entries else None
    refusal, rule = permanent_refusal(tx, waiting), held_back(tx, waiting)
    if is_infeasible(request, inventory):
        return explain(request, inventory, attempt=waiting.attempt, position=position)
    asked = request_to_explain(tx.state, request)
    explanation = explain(asked, inventory, attempt=waiting.attempt, position=position, own=request)
    if refusal is None and rule is None:
        if not tx.policy.orders:
            explanation = _held_by_policy(tx, waiting, explanation)
        explanation = out_of_service(asked, inventory, explanation)
        if asked is request or NoFit.TOO_LARGE.value not in explanation.counts:
            return explanation
        left = f"tenant {request.tenant} has {remaining_text(tx.state, request)} left of its quota"
        return replace(explanation, sentence=f"{explanation.sentence}; {left}")
    why = refusal or (rule.text if rule is not None else "")
    return replace(
        explanation,
        sentence=f"{queue_place(position)}{request_text(request)}: {why}",
        late=tx.late_s(waiting) is not None,
        held_back=None if refusal or rule is None else rule.what,
    )


def _held_by_policy(
    tx: QueueTransaction, waiting: to.Waiting, explanation: Explanation
) -> Explanation:
    """Add the reason of the policy; it alone holds back a request that fits."""
    held = held_reason(tx, waiting)
    if held is None:
        return explanation
    text = f"policy {tx.state.parameters.policy}: {held.text}"
    request, counts = waiting.request, explanation.counts
    if explanation.devices_fitting < request.count or NoFit.SAME_HOST.value in counts:
        return replace(explanation, sentence=f"{explanation.sentence}; {text}")
    sentence = f"{queue_place(explanation.position)}{request_text(request)} fits, but must wait"
    return replace(explanation, held_back=HeldBack.POLICY, sentence=f"{sentence}; {text}")


def serve(tx: QueueTransaction) -> None:
    """Grant waiting requests until the policy pauses."""
    state = tx.state
    if state.preemptions:
        preemption.maintain(tx)
    if not state.queue.entries and state.head_reservation.attempt is None:
        state.tenants.freed.clear()
        state.clear_freed()
        stop(tx)
        return
    _resume_groups(tx)
    while True:
        overtaking.maintain(tx)
        room = state.has_room and len(state.leases) < state.parameters.leases_max
        choice = next_choice(tx) if room else None
        if choice is not None:
            waiting = state.queue.entries[choice.attempt]
            overtaking.count(tx, waiting, choice.devices)
            _grant_waiting(tx, waiting, choice)
            state.freed_capacity.add(state.inventory, choice.devices)
            preemption.maintain(tx)
        elif not (room and preemption.begin(tx)):
            break
    if room and state.ending:
        _grant_ahead(tx)


def _grant_ahead(tx: QueueTransaction) -> None:
    """Grant the next requests shares whose leases are about to end."""
    for choice, after in advance.choices(tx):
        waiting = tx.state.queue.entries[choice.attempt]
        overtaking.count(tx, waiting, choice.devices)
        _grant_waiting(tx, waiting, choice, after)
        overtaking.maintain(tx)
        if len(tx.state.leases) >= tx.state.parameters.leases_max:
            return


def _resume_groups(tx: QueueTransaction) -> None:
    """Resume groups whose tenant has quota left again, even for larger devices, and
    groups for which small enough devices may be available again.
    """
    state, queue, tenants = tx.state, tx.state.queue, tx.state.tenants
    for tenant in tenants.freed:
        for group in queue.suspended(tenant):
            if within_quota(state, group.request):
                queue.resume(group)
        if state.parameters.quota(tenant).memory_mib is not None:
            queue.mark_sized_by_device_dirty(tenant)
    tenants.freed.clear()
    for group in queue.suspended_before(state.inventory.availability_version):
        queue.resume(group)


def _grant_waiting(
    tx: QueueTransaction, waiting: to.Waiting, choice: Choice, after: tuple[LeaseId, ...] = ()
) -> None:
    tx.state.timers.cancel(TimerKind.WAIT, waiting.attempt)
    entry = commit(tx, waiting, choice, accepted=False, after=after)
    advance.watch(tx, entry)
    record = tx.record_of(waiting.holder)
    if record is not None:
        record = with_lease(record, entry, tx)
        tx.write(record, Step.RESERVED, lease=entry.lease.id, reason=None)
    tx.push_granted(entry)


# ---------------------------------------------------------------------- withdrawal


def wait_timed_out(tx: QueueTransaction, attempt: AttemptId) -> None:
    """Refuse a request as busy after `max_wait_s`, or as impossible after its deadline."""
    waiting = tx.state.queue.entries.get(attempt)
    if waiting is None:
        return
    late = tx.late_s(waiting) is not None
    if not late and waiting.request.max_wait_s is None:
        tx.start_wait_timer(waiting)  # the wall clock was set back
        return
    why = explanation_of(tx, waiting.request, waiting)
    _withdraw(tx, waiting, answers.ImpossiblePush if late else answers.BusyPush, why)


def drop_infeasible(tx: QueueTransaction) -> None:
    """Refuse waiting requests that became infeasible with the known inventory or a quota."""
    for request, group in list(tx.state.queue.by_group()):
        if not is_infeasible(request, tx.state.inventory) and _beyond_quota(tx, request) is None:
            continue
        why = explanation_of(tx, request, group[0])
        for waiting in group:
            _withdraw(tx, waiting, answers.ImpossiblePush, why)


def reevaluate_all(tx: QueueTransaction) -> None:
    """Evaluate all waiting requests after a change of the parameters."""
    drop_infeasible(tx)
    queue = tx.state.queue
    tx.state.tenants.freed.update(dict.fromkeys(queue.suspended_tenants()))
    queue.mark_all_dirty()
    tx.capacity_freed = True


def _withdraw(
    tx: QueueTransaction,
    waiting: to.Waiting,
    push: type[answers.BusyPush | answers.ImpossiblePush],
    why: Explanation,
) -> None:
    drop(tx, waiting.attempt)
    tx.state.remember_refused(waiting)
    record = tx.record_of(waiting.holder)
    if record is not None:
        tx.write(orphaned(record), Step.RECEIVED)
    tx.push(
        waiting.session,
        push(holder=waiting.holder, attempt=waiting.attempt, explanation=why),
    )

"""Requests: admitted, queued, served, given up. The release of a share serves the next in its tx.

After every event nothing that may be served waits although it fits: `serve` asks the policy until
it has no proposal. The head of the queue is passed a bounded number of times (see policies/fifo).
"""

from __future__ import annotations

from typing import NamedTuple

from corekit.ids import AttemptId, DeviceId
from corekit.values import replace
from gpu_scheduler.core.admission.limits import Refusal, waiting_refusal
from gpu_scheduler.core.admission.quotas import (
    allowed,
    clamped_to_quota,
    clamped_to_whole_quota,
    held_text,
    remaining_text,
    within_quota,
)
from gpu_scheduler.core.admission.tenants import least_amount
from gpu_scheduler.core.inventory.capacity import available_mib, impossible
from gpu_scheduler.core.leases.leases import grant
from gpu_scheduler.core.placement.fits import is_feasible, unavailable_reason
from gpu_scheduler.core.policies import POLICIES
from gpu_scheduler.core.queue.search import Proposal, newcomer_proposal, next_proposal
from gpu_scheduler.core.state import HeadReservation, LeaseEntry
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.core.views.explain import explain, out_of_service
from gpu_scheduler.model import Explanation, HeldBack, NoFit, Request, Step
from gpu_scheduler.parameters import NO_QUOTA
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.request_text import wanted


class Evaluation(NamedTuple):
    """What would be answered to a request that is not queued."""

    outcome: answers.Outcome
    found: Proposal | None = None
    searched: bool = True  #: False: a rule holds it back, no device was searched at
    full: Refusal | None = None  #: it might wait, but for a limit on what waits


class Admission(NamedTuple):
    """What became of a new request."""

    outcome: answers.Outcome
    entry: LeaseEntry | None = None  #: granted
    full: Refusal | None = None  #: nothing: it is to wait, and a limit forbids that for now


def evaluate(tx: Transaction, waiting: to.Waiting) -> Evaluation:
    """Granted, impossible, busy, or (still) to wait; nothing changes.

    Nobody in the queue can be served (see `serve`), so what a newcomer fits is free for it; what is
    kept for the head does not fit it.
    """
    state = tx.state
    if permanent_refusal(tx, waiting) or impossible(waiting.request, state.inventory):
        return Evaluation(answers.Outcome.IMPOSSIBLE)
    held = held_back(tx, waiting) is not None
    found = None if held else newcomer_proposal(tx, waiting)
    if found is not None:
        return Evaluation(answers.Outcome.GRANTED, found)
    full = waiting_refusal(tx, waiting)
    outcome = answers.Outcome.WAITING if full is None else answers.Outcome.BUSY
    return Evaluation(outcome, searched=not held, full=full)


def admit(tx: Transaction, waiting: to.Waiting, *, wait: bool) -> Admission:
    """Judge a new request and do so: grant it, or queue it if it is to wait."""
    evaluation = evaluate(tx, waiting)
    if evaluation.found is not None:
        _count_bypass(tx, waiting, evaluation.found.devices)
        return Admission(evaluation.outcome, grant(tx, evaluation.found, accepted=True))
    if evaluation.full is not None and wait:
        return Admission(evaluation.outcome, full=evaluation.full)
    if evaluation.outcome is answers.Outcome.WAITING and wait:
        enqueue(tx, waiting, searched=evaluation.searched)
        return Admission(evaluation.outcome)
    tx.state.remember_refused(waiting)
    busy = evaluation.outcome is answers.Outcome.WAITING
    return Admission(answers.Outcome.BUSY if busy else evaluation.outcome)


def _late(tx: Transaction, waiting: to.Waiting) -> bool:
    left_s = tx.deadline_in_s(waiting)
    return left_s is not None and left_s <= 0


def permanent_refusal(tx: Transaction, waiting: to.Waiting) -> str | None:
    """Why no waiting can help this request, whatever devices there are; None when it may."""
    left_s = tx.deadline_in_s(waiting)
    if left_s is not None and left_s <= 0:
        return f"its deadline passed {abs(left_s):.1f} s ago"
    return _beyond_quota(tx, waiting.request)


def _beyond_quota(tx: Transaction, request: Request) -> str | None:
    quota = tx.state.parameters.quota(request.tenant)
    if quota is NO_QUOTA:
        return None
    if not least_amount(request).within(quota):
        return f"it is more than tenant {request.tenant} may hold at all: {quota}"
    at_best = clamped_to_whole_quota(request, quota)
    if not _only_too_large(tx, request, at_best):
        return None
    if request.count == 1:
        return f"every device for it is larger than tenant {request.tenant} may hold: {quota}"
    each = f"at most {at_best.memory_max_mib} MiB, an even part"
    return f"too few devices for it have {each} of what tenant {request.tenant} may hold: {quota}"


def _only_too_large(tx: Transaction, request: Request, allowed: Request) -> bool:
    """Could known devices hold the request, but none of those that a quota allows it?"""
    inventory = tx.state.inventory
    return (
        allowed is not request
        and impossible(allowed, inventory)
        and not impossible(request, inventory)
    )


class Rule(NamedTuple):
    """Why a request waits, whatever devices are free."""

    what: HeldBack
    words: str


def held_back(tx: Transaction, waiting: to.Waiting) -> Rule | None:
    """Which rule, not the devices, holds a request back; None when none does."""
    state, request, tenant = tx.state, waiting.request, waiting.request.tenant
    if not state.has_room:
        words = "the scheduler's journal has no room for new grants; free space on its disk"
        return Rule(HeldBack.JOURNAL_FULL, words)
    if not _room_for_lease(tx):
        words = f"all {state.parameters.leases_max} leases that may live at a time do"
        return Rule(HeldBack.LEASES_MAX, words)
    quota = state.parameters.quota(tenant)
    if quota is NO_QUOTA:
        return None
    used_up = f"tenant {tenant} has used up its quota of {quota}"
    if not within_quota(state, request):
        return Rule(HeldBack.QUOTA, f"{used_up} (it holds {held_text(state, tenant)})")
    if _only_too_large(tx, request, clamped_to_quota(state, request)):
        left = remaining_text(state, request)
        words = f"{used_up} but for {left}: too few devices for it are so small"
        return Rule(HeldBack.QUOTA, words)
    return None


def _room_for_lease(tx: Transaction) -> bool:
    state = tx.state
    return state.has_room and len(state.leases) < state.parameters.leases_max


def enqueue(tx: Transaction, waiting: to.Waiting, *, searched: bool = False) -> None:
    """Into the queue at its place, or back to it under another session.

    `searched`: no devices were found for it in this tx, so only what comes free can serve it.
    """
    tx.emit(to.RequestQueued(waiting=waiting))
    tx.start_wait_timer(waiting)
    if not searched:
        tx.state.queue.mark_dirty(waiting.attempt)
    tx.capacity_freed = True


def drop(tx: Transaction, attempt: AttemptId) -> None:
    """Out of the queue; idempotent."""
    if attempt in tx.state.queue.entries:
        tx.emit(to.RequestDropped(attempt=attempt))
        tx.state.timers.cancel(TimerKind.WAIT, attempt)
        tx.capacity_freed = True  # what was kept for it is free


def explained(tx: Transaction, request: Request, waiting: to.Waiting | None = None) -> Explanation:
    """Why a request waits, or what would be answered: the devices' reasons, then the rules'."""
    inventory, queue = tx.state.inventory, tx.state.queue
    if waiting is None:
        return explain(request, inventory)
    position = queue.position(waiting) if waiting.attempt in queue.entries else None
    refusal, rule = permanent_refusal(tx, waiting), held_back(tx, waiting)
    if impossible(request, inventory):
        return explain(request, inventory, attempt=waiting.attempt, position=position)
    asked = allowed(tx.state, request)
    told = explain(asked, inventory, attempt=waiting.attempt, position=position, own=request)
    if refusal is None and rule is None:
        told = out_of_service(asked, inventory, told)
        if asked is request or NoFit.TOO_LARGE.value not in told.counts:
            return told
        left = f"tenant {request.tenant} has {remaining_text(tx.state, request)} left of its quota"
        return replace(told, sentence=f"{told.sentence}; {left}")
    place = f"number {position} in the queue: " if position is not None else ""
    why = refusal or (rule.words if rule is not None else "")
    return replace(
        told,
        sentence=f"{place}{wanted(request)}: {why}",
        late=_late(tx, waiting),
        held_back=None if refusal or rule is None else rule.what,
    )


def serve(tx: Transaction) -> None:
    """Grant to waiting requests until the policy has no more to propose."""
    state = tx.state
    if not state.queue.entries and state.head_reservation.attempt is None:
        state.tenants.freed.clear()
        state.clear_freed()
        return
    _resume_groups(tx)
    while True:
        _maintain_head_reservation(tx)
        found = next_proposal(tx) if _room_for_lease(tx) else None
        if found is None:
            return
        _count_bypass(tx, found.waiting, found.devices)
        _grant_to_waiter(tx, found)
        tx.state.freed_capacity.add(tx.state.inventory, found.devices)


def _resume_groups(tx: Transaction) -> None:
    """Tenants that gave something back may have room in their quota again, for larger devices
    too; and devices that are small enough may be up again.
    """
    state, queue, tenants = tx.state, tx.state.queue, tx.state.tenants
    for tenant in tenants.freed:
        for line in queue.suspended(tenant):
            if within_quota(state, line.request):
                queue.resume(line)
        if state.parameters.quota(tenant).memory_mib is not None:
            queue.mark_exclusive_dirty(tenant)
    tenants.freed.clear()
    for line in queue.suspended_before(state.inventory.availability_version):
        queue.resume(line)


def _grant_to_waiter(tx: Transaction, found: Proposal) -> None:
    waiting = found.waiting
    tx.state.timers.cancel(TimerKind.WAIT, waiting.attempt)
    entry = grant(tx, found, accepted=False)
    record = tx.record_of(waiting.holder)
    if record is not None:
        tx.write(record, Step.RESERVED, lease=entry.lease.id, reason=None)
    push_granted(tx, entry)


def push_granted(tx: Transaction, entry: LeaseEntry) -> None:
    lease = entry.lease
    push = answers.GrantedPush(
        holder=lease.holder, attempt=lease.attempt, granted=tx.granted(entry)
    )
    tx.push(tx.owner_of(entry), push)


# ---------------------------------------------------------------------- bounded head_reservation


def _count_bypass(tx: Transaction, served: to.Waiting, devices: tuple[DeviceId, ...]) -> None:
    """A grant behind the head on a device that the head could use one availability_version passes it."""
    queue = tx.state.queue
    head = _head(tx)
    if head is None or queue.queue_key(served) <= queue.queue_key(head):
        return
    inventory = tx.state.inventory
    asked = clamped_to_quota(tx.state, head.request)
    if any(is_feasible(asked, inventory.state_of(device)) for device in devices):
        _track_head(tx, head)
        tx.state.head_reservation.count += 1
        queue.passed[head.attempt] = tx.state.head_reservation.count
        tx.capacity_freed = True  # `serve` sees to it that this was not once too often


def _track_head(tx: Transaction, head: to.Waiting | None) -> None:
    """Count for the present head; a former one lets go of what was kept for it."""
    head_reservation = tx.state.head_reservation
    attempt = None if head is None else head.attempt
    if head_reservation.attempt != attempt:
        tx.state.inventory.keep([DeviceId(d) for d in head_reservation.kept], None)
        tx.state.head_reservation = HeadReservation(
            attempt, tx.state.queue.passed.get(attempt or "", 0)
        )


def _maintain_head_reservation(tx: Transaction) -> None:
    """Keep devices for a head that was passed often enough; anew when one became unusable."""
    head = _head(tx)
    _track_head(tx, head)
    if head is None:
        return
    head_reservation, inventory = tx.state.head_reservation, tx.state.inventory
    asked = clamped_to_quota(tx.state, head.request)
    if head_reservation.kept and _all_usable(tx, asked):
        return  # stay with the choice: its devices have been draining
    wanted = POLICIES[tx.state.parameters.policy].keep(tx, head)
    if wanted or head_reservation.kept:
        inventory.keep([DeviceId(d) for d in head_reservation.kept], None)
        head_reservation.kept = wanted
        inventory.keep(wanted, head.attempt)


def _head(tx: Transaction) -> to.Waiting | None:
    """The first that waits for nothing but devices which are up to be free for it."""
    state, queue, inventory = tx.state, tx.state.queue, tx.state.inventory

    def reach(request: Request) -> int:
        return available_mib(request, inventory)

    while (head := queue.head(inventory.availability_version, reach)) is not None:
        request = head.request
        asked = clamped_to_quota(state, request)
        if not within_quota(state, request):
            queue.suspend(head.attempt)
        elif asked is not request and reach(asked) < request.memory_mib:
            queue.suspend(head.attempt, inventory.availability_version)
        else:
            break
    return head


def _all_usable(tx: Transaction, request: Request) -> bool:
    inventory = tx.state.inventory
    devices = [inventory.devices.get(DeviceId(d)) for d in tx.state.head_reservation.kept]
    return all(
        entry is not None
        and unavailable_reason(inventory.state_of(entry.device.id)) is None
        and is_feasible(request, inventory.state_of(entry.device.id))
        for entry in devices
    )


# ---------------------------------------------------------------------- giving up


def wait_timed_out(tx: Transaction, attempt: AttemptId) -> None:
    """max_wait_s has passed: refused as busy; or its deadline: refused for ever."""
    waiting = tx.state.queue.entries.get(attempt)
    if waiting is None:
        return
    left_s = tx.deadline_in_s(waiting)
    late = left_s is not None and left_s <= 0
    if not late and waiting.request.max_wait_s is None:
        tx.start_wait_timer(waiting)  # the wall clock was set back
        return
    reason = explained(tx, waiting.request, waiting)
    _withdraw(tx, waiting)
    push = answers.ImpossiblePush if late else answers.BusyPush
    tx.push(waiting.session, push(holder=waiting.holder, attempt=attempt, explanation=reason))


def drop_infeasible(tx: Transaction) -> None:
    """The known inventory or a quota shrank: tell those whose request became impossible."""
    for need, lot in list(tx.state.queue.by_group()):
        if not impossible(need, tx.state.inventory) and _beyond_quota(tx, need) is None:
            continue
        reason = explained(tx, need, lot[0])
        for waiting in lot:
            _withdraw(tx, waiting)
            push = answers.ImpossiblePush(
                holder=waiting.holder, attempt=waiting.attempt, explanation=reason
            )
            tx.push(waiting.session, push)


def reevaluate_all(tx: Transaction) -> None:
    """Another rule holds: it may refuse, or serve, anybody."""
    drop_infeasible(tx)
    queue = tx.state.queue
    tx.state.tenants.freed.update(dict.fromkeys(queue.suspended_tenants()))
    queue.mark_all_dirty()
    tx.capacity_freed = True


def _withdraw(tx: Transaction, waiting: to.Waiting) -> None:
    drop(tx, waiting.attempt)
    tx.state.remember_refused(waiting)
    record = tx.record_of(waiting.holder)
    if record is not None:
        tx.write(record, Step.RECEIVED)

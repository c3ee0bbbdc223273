"""Requests: admitted, queued, served, given up. The release of a share serves the next in its turn.

After every event nothing that may be served waits although it fits: `serve` asks the policy until
it has no proposal. The head of the queue is passed a bounded number of times (see policies/fifo).
"""

from __future__ import annotations

from typing import NamedTuple

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.admission.limits import Refusal, waiting_full
from gpu_scheduler.core.admission.quotas import (
    affordable,
    allowed,
    ever_affordable,
    held_in_words,
    left_in_words,
    within_quota,
)
from gpu_scheduler.core.admission.tenants import least_amount
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.inventory.capacity import impossible, reach_mib
from gpu_scheduler.core.leases.leases import grant
from gpu_scheduler.core.placement.fits import away, fits_ever
from gpu_scheduler.core.queue.search import Found, newcomer_found, next_found
from gpu_scheduler.core.state import Bypass, LeaseEntry
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Turn
from gpu_scheduler.core.views.explain import explain, out_of_service, wanted
from gpu_scheduler.model import Explanation, HeldBack, NoFit, Request, Step
from gpu_scheduler.parameters import NO_QUOTA


class Judgement(NamedTuple):
    """What would be answered to a request that is not queued."""

    outcome: do.Outcome
    found: Found | None = None
    looked: bool = True  #: False: a rule holds it back, no device was looked at
    full: Refusal | None = None  #: it might wait, but for a limit on what waits


class Admitted(NamedTuple):
    """What became of a new request."""

    outcome: do.Outcome
    entry: LeaseEntry | None = None  #: granted
    full: Refusal | None = None  #: nothing: it is to wait, and a limit forbids that for now


def judge(turn: Turn, waiting: to.Waiting) -> Judgement:
    """Granted, impossible, busy, or (still) to wait; nothing changes.

    Nobody in the queue can be served (see `serve`), so what a newcomer fits is free for it; what is
    kept for the head does not fit it.
    """
    state = turn.state
    if never(turn, waiting) or impossible(waiting.request, state.inventory):
        return Judgement(do.Outcome.IMPOSSIBLE)
    held = held_back(turn, waiting) is not None
    found = None if held else newcomer_found(turn, waiting)
    if found is not None:
        return Judgement(do.Outcome.GRANTED, found)
    full = waiting_full(turn, waiting)
    outcome = do.Outcome.WAITING if full is None else do.Outcome.BUSY
    return Judgement(outcome, looked=not held, full=full)


def admit(turn: Turn, waiting: to.Waiting, *, wait: bool) -> Admitted:
    """Judge a new request and do so: grant it, or queue it if it is to wait."""
    judgement = judge(turn, waiting)
    if judgement.found is not None:
        _count_bypass(turn, waiting, judgement.found.devices)
        return Admitted(judgement.outcome, grant(turn, judgement.found, accepted=True))
    if judgement.full is not None and wait:
        return Admitted(judgement.outcome, full=judgement.full)
    if judgement.outcome is do.Outcome.WAITING and wait:
        enqueue(turn, waiting, looked=judgement.looked)
        return Admitted(judgement.outcome)
    turn.state.remember_refused(waiting)
    busy = judgement.outcome is do.Outcome.WAITING
    return Admitted(do.Outcome.BUSY if busy else judgement.outcome)


def _late(turn: Turn, waiting: to.Waiting) -> bool:
    left_s = turn.deadline_in_s(waiting)
    return left_s is not None and left_s <= 0


def never(turn: Turn, waiting: to.Waiting) -> str | None:
    """Why no waiting can help this request, whatever devices there are; None when it may."""
    left_s = turn.deadline_in_s(waiting)
    if left_s is not None and left_s <= 0:
        return f"its deadline passed {abs(left_s):.1f} s ago"
    return _beyond_quota(turn, waiting.request)


def _beyond_quota(turn: Turn, request: Request) -> str | None:
    quota = turn.state.parameters.quota(request.tenant)
    if quota is NO_QUOTA:
        return None
    if not least_amount(request).within(quota):
        return f"it is more than tenant {request.tenant} may hold at all: {quota}"
    at_best = ever_affordable(request, quota)
    if not _only_too_large(turn, request, at_best):
        return None
    if request.count == 1:
        return f"every device for it is larger than tenant {request.tenant} may hold: {quota}"
    each = f"at most {at_best.memory_max_mib} MiB, an even part"
    return f"too few devices for it have {each} of what tenant {request.tenant} may hold: {quota}"


def _only_too_large(turn: Turn, request: Request, allowed: Request) -> bool:
    """Could known devices hold the request, but none of those that a quota allows it?"""
    inventory = turn.state.inventory
    return (
        allowed is not request
        and impossible(allowed, inventory)
        and not impossible(request, inventory)
    )


class Rule(NamedTuple):
    """Why a request waits, whatever devices are free."""

    what: HeldBack
    words: str


def held_back(turn: Turn, waiting: to.Waiting) -> Rule | None:
    """Which rule, not the devices, holds a request back; None when none does."""
    state, request, tenant = turn.state, waiting.request, waiting.request.tenant
    if not state.has_room:
        words = "the scheduler's journal has no room for new grants; free space on its disk"
        return Rule(HeldBack.JOURNAL_FULL, words)
    if not _room_for_lease(turn):
        words = f"all {state.parameters.leases_max} leases that may live at a time do"
        return Rule(HeldBack.LEASES_MAX, words)
    quota = state.parameters.quota(tenant)
    if quota is NO_QUOTA:
        return None
    used_up = f"tenant {tenant} has used up its quota of {quota}"
    if not within_quota(state, request):
        return Rule(HeldBack.QUOTA, f"{used_up} (it holds {held_in_words(state, tenant)})")
    if _only_too_large(turn, request, affordable(state, request)):
        left = left_in_words(state, request)
        words = f"{used_up} but for {left}: too few devices for it are so small"
        return Rule(HeldBack.QUOTA, words)
    return None


def _room_for_lease(turn: Turn) -> bool:
    state = turn.state
    return state.has_room and len(state.leases) < state.parameters.leases_max


def enqueue(turn: Turn, waiting: to.Waiting, *, looked: bool = False) -> None:
    """Into the queue at its place, or back to it under another session.

    `looked`: no devices were found for it in this turn, so only what comes free can serve it.
    """
    turn.emit(to.RequestQueued(waiting=waiting))
    turn.start_patience(waiting)
    if not looked:
        turn.state.queue.wake(waiting.attempt)
    turn.capacity_freed = True


def drop(turn: Turn, attempt: str) -> None:
    """Out of the queue; idempotent."""
    if attempt in turn.state.queue.entries:
        turn.emit(to.RequestDropped(attempt=attempt))
        turn.state.timers.cancel(TimerKind.WAIT, attempt)
        turn.capacity_freed = True  # what was kept for it is free


def explained(turn: Turn, request: Request, waiting: to.Waiting | None = None) -> Explanation:
    """Why a request waits, or what would be answered: the devices' reasons, then the rules'."""
    inventory, queue = turn.state.inventory, turn.state.queue
    if waiting is None:
        return explain(request, inventory)
    position = queue.position(waiting) if waiting.attempt in queue.entries else None
    no_use, rule = never(turn, waiting), held_back(turn, waiting)
    if impossible(request, inventory):
        return explain(request, inventory, attempt=waiting.attempt, position=position)
    asked = allowed(turn.state, request)
    told = explain(asked, inventory, attempt=waiting.attempt, position=position, own=request)
    if no_use is None and rule is None:
        told = out_of_service(asked, inventory, told)
        if asked is request or NoFit.TOO_LARGE.value not in told.counts:
            return told
        left = f"tenant {request.tenant} has {left_in_words(turn.state, request)} left of its quota"
        return replace(told, sentence=f"{told.sentence}; {left}")
    place = f"number {position} in the queue: " if position is not None else ""
    why = no_use or (rule.words if rule is not None else "")
    return replace(
        told,
        sentence=f"{place}{wanted(request)}: {why}",
        late=_late(turn, waiting),
        held_back=None if no_use or rule is None else rule.what,
    )


def serve(turn: Turn) -> None:
    """Grant to waiting requests until the policy has no more to propose."""
    state = turn.state
    if not state.queue.entries and state.bypass.attempt is None:
        state.tenants.loosened.clear()
        state.forget_openings()
        return
    _unbench(turn)
    while True:
        _tend_head(turn)
        found = next_found(turn) if _room_for_lease(turn) else None
        if found is None:
            return
        _count_bypass(turn, found.waiting, found.devices)
        _grant_to_waiter(turn, found)
        turn.state.openings.add(turn.state.inventory, found.devices)


def _unbench(turn: Turn) -> None:
    """Tenants that gave something back may have room in their quota again, for larger devices
    too; and devices that are small enough may be up again.
    """
    state, queue, tenants = turn.state, turn.state.queue, turn.state.tenants
    for tenant in tenants.loosened:
        for line in queue.benched(tenant):
            if within_quota(state, line.request):
                queue.unbench(line)
        if state.parameters.quota(tenant).memory_mib is not None:
            queue.wake_whole(tenant)
    tenants.loosened.clear()
    for line in queue.benched_before(state.inventory.day):
        queue.unbench(line)


def _grant_to_waiter(turn: Turn, found: Found) -> None:
    waiting = found.waiting
    turn.state.timers.cancel(TimerKind.WAIT, waiting.attempt)
    entry = grant(turn, found, accepted=False)
    record = turn.record_of(waiting.holder)
    if record is not None:
        turn.write(record, Step.RESERVED, lease=entry.lease.id, reason=None)
    push_granted(turn, entry)


def push_granted(turn: Turn, entry: LeaseEntry) -> None:
    lease = entry.lease
    push = do.GrantedPush(holder=lease.holder, attempt=lease.attempt, granted=turn.granted(entry))
    turn.push(turn.owner_of(entry), push)


# ---------------------------------------------------------------------- bounded bypass


def _count_bypass(turn: Turn, served: to.Waiting, devices: tuple[DeviceId, ...]) -> None:
    """A grant behind the head on a device that the head could use one day passes it."""
    queue = turn.state.queue
    head = _head(turn)
    if head is None or queue.place_of(served) <= queue.place_of(head):
        return
    inventory = turn.state.inventory
    asked = affordable(turn.state, head.request)
    if any(fits_ever(asked, inventory.shape_of(device)) for device in devices):
        _watch_head(turn, head)
        turn.state.bypass.count += 1
        queue.passed[head.attempt] = turn.state.bypass.count
        turn.capacity_freed = True  # `serve` sees to it that this was not once too often


def _watch_head(turn: Turn, head: to.Waiting | None) -> None:
    """Count for the present head; a former one lets go of what was kept for it."""
    bypass = turn.state.bypass
    attempt = None if head is None else head.attempt
    if bypass.attempt != attempt:
        turn.state.inventory.keep([DeviceId(d) for d in bypass.kept], None)
        turn.state.bypass = Bypass(attempt, turn.state.queue.passed.get(attempt or "", 0))


def _tend_head(turn: Turn) -> None:
    """Keep devices for a head that was passed often enough; anew when one became unusable."""
    head = _head(turn)
    _watch_head(turn, head)
    if head is None:
        return
    bypass, inventory = turn.state.bypass, turn.state.inventory
    asked = affordable(turn.state, head.request)
    if bypass.kept and _all_usable(turn, asked):
        return  # stay with the choice: its devices have been draining
    wanted = turn.state.policy.reserve(turn, head)
    if wanted or bypass.kept:
        inventory.keep([DeviceId(d) for d in bypass.kept], None)
        bypass.kept = wanted
        inventory.keep(wanted, head.attempt)


def _head(turn: Turn) -> to.Waiting | None:
    """The first that waits for nothing but devices which are up to be free for it."""
    state, queue, inventory = turn.state, turn.state.queue, turn.state.inventory

    def reach(request: Request) -> int:
        return reach_mib(request, inventory)

    while (head := queue.head(inventory.day, reach)) is not None:
        request = head.request
        asked = affordable(state, request)
        if not within_quota(state, request):
            queue.bench(head.attempt)
        elif asked is not request and reach(asked) < request.memory_mib:
            queue.bench(head.attempt, inventory.day)
        else:
            break
    return head


def _all_usable(turn: Turn, request: Request) -> bool:
    inventory = turn.state.inventory
    devices = [inventory.devices.get(DeviceId(d)) for d in turn.state.bypass.kept]
    return all(
        entry is not None
        and away(inventory.shape_of(entry.device.id)) is None
        and fits_ever(request, inventory.shape_of(entry.device.id))
        for entry in devices
    )


# ---------------------------------------------------------------------- giving up


def patience_over(turn: Turn, attempt: str) -> None:
    """max_wait_s has passed: refused as busy; or its deadline: refused for ever."""
    waiting = turn.state.queue.entries.get(attempt)
    if waiting is None:
        return
    left_s = turn.deadline_in_s(waiting)
    late = left_s is not None and left_s <= 0
    if not late and waiting.request.max_wait_s is None:
        turn.start_patience(waiting)  # the wall clock was set back
        return
    reason = explained(turn, waiting.request, waiting)
    _withdraw(turn, waiting)
    push = do.ImpossiblePush if late else do.BusyPush
    turn.push(waiting.session, push(holder=waiting.holder, attempt=attempt, explanation=reason))


def judge_again(turn: Turn) -> None:
    """The known inventory or a quota shrank: tell those whose request became impossible."""
    for need, lot in list(turn.state.queue.by_need()):
        if not impossible(need, turn.state.inventory) and _beyond_quota(turn, need) is None:
            continue
        reason = explained(turn, need, lot[0])
        for waiting in lot:
            _withdraw(turn, waiting)
            push = do.ImpossiblePush(
                holder=waiting.holder, attempt=waiting.attempt, explanation=reason
            )
            turn.push(waiting.session, push)


def judge_anew(turn: Turn) -> None:
    """Another rule holds: it may refuse, or serve, anybody."""
    judge_again(turn)
    queue = turn.state.queue
    turn.state.tenants.loosened.update(dict.fromkeys(queue.benched_tenants()))
    queue.wake_all()
    turn.capacity_freed = True


def _withdraw(turn: Turn, waiting: to.Waiting) -> None:
    drop(turn, waiting.attempt)
    turn.state.remember_refused(waiting)
    record = turn.record_of(waiting.holder)
    if record is not None:
        turn.write(record, Step.RECEIVED)

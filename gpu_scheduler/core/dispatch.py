"""Requests: admitted, queued, served, given up. The release of a share serves the next in its turn.

After every event nothing that may be served waits although it fits: `serve` asks the policy until
it has no proposal. The head of the queue is passed a bounded number of times (see policies/fifo).
"""

from __future__ import annotations

from corekit.ids import DeviceId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import changes as to
from gpu_scheduler.core.explain import explain, impossible
from gpu_scheduler.core.fits import fits_ever
from gpu_scheduler.core.leases import grant
from gpu_scheduler.core.queue import place_of
from gpu_scheduler.core.state import Bypass, LeaseEntry
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.turn import Turn
from gpu_scheduler.model import Explanation, Health, HostState, Request, Step


def admit(turn: Turn, waiting: to.Waiting) -> tuple[do.Outcome, LeaseEntry | None]:
    """Judge a new request: granted with its lease, impossible, or (still) to wait."""
    if impossible(waiting.request, turn.state.inventory):
        return do.Outcome.IMPOSSIBLE, None
    proposal = turn.policy.admit(turn.state, waiting)
    if proposal is None:
        return do.Outcome.WAITING, None
    _count_bypass(turn, waiting, proposal.devices)
    return do.Outcome.GRANTED, grant(turn, waiting, proposal.devices, accepted=True)


def enqueue(turn: Turn, waiting: to.Waiting) -> None:
    """Into the queue at its place, or back to it under another session."""
    turn.emit(to.RequestQueued(waiting=waiting))
    turn.start_patience(waiting)
    turn.capacity_freed = True


def drop(turn: Turn, attempt: str) -> None:
    """Out of the queue; idempotent."""
    if attempt in turn.state.queue.entries:
        turn.emit(to.RequestDropped(attempt=attempt))
        turn.state.timers.cancel(TimerKind.WAIT, attempt)
        turn.capacity_freed = True  # what was kept for it is free


def explained(turn: Turn, request: Request, waiting: to.Waiting | None = None) -> Explanation:
    inventory, queue = turn.state.inventory, turn.state.queue
    if waiting is None:
        return explain(request, inventory)
    position = queue.position(waiting) if waiting.attempt in queue.entries else None
    return explain(request, inventory, attempt=waiting.attempt, position=position)


def serve(turn: Turn) -> None:
    """Grant to waiting requests until the policy has no more to propose."""
    while True:
        _tend_head(turn)
        proposal = turn.policy.next(turn.state)
        if proposal is None:
            return
        waiting = turn.state.queue.entries[proposal.attempt]
        _count_bypass(turn, waiting, proposal.devices)
        _grant_to_waiter(turn, waiting, proposal.devices)


def _grant_to_waiter(turn: Turn, waiting: to.Waiting, devices: tuple[DeviceId, ...]) -> None:
    turn.state.timers.cancel(TimerKind.WAIT, waiting.attempt)
    entry = grant(turn, waiting, devices, accepted=False)
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
    head = turn.state.queue.head()
    if head is None or place_of(served) <= place_of(head):
        return
    inventory = turn.state.inventory
    if any(fits_ever(head.request, inventory.shape_of(device)) for device in devices):
        _watch_head(turn, head)
        turn.state.bypass.count += 1
        turn.capacity_freed = True  # `serve` sees to it that this was not once too often


def _watch_head(turn: Turn, head: to.Waiting | None) -> None:
    """Count for the present head; a former one lets go of what was kept for it."""
    bypass = turn.state.bypass
    attempt = None if head is None else head.attempt
    if bypass.attempt != attempt:
        turn.state.inventory.keep([DeviceId(d) for d in bypass.kept], None)
        turn.state.bypass = Bypass(attempt)


def _tend_head(turn: Turn) -> None:
    """Keep devices for a head that was passed often enough; anew when one became unusable."""
    head = turn.state.queue.head()
    _watch_head(turn, head)
    if head is None:
        return
    bypass, inventory = turn.state.bypass, turn.state.inventory
    wanted = turn.policy.keep(turn.state, head)
    if bypass.kept and _all_usable(turn, head.request) and wanted:
        return  # stay with the choice: its devices have been draining
    inventory.keep([DeviceId(d) for d in bypass.kept], None)
    bypass.kept = wanted
    inventory.keep(wanted, head.attempt)


def _all_usable(turn: Turn, request: Request) -> bool:
    inventory = turn.state.inventory
    devices = [inventory.devices.get(DeviceId(d)) for d in turn.state.bypass.kept]
    return all(
        entry is not None
        and entry.device.health is Health.OK
        and inventory.hosts[entry.host].shown_state is HostState.UP
        and fits_ever(request, inventory.shape_of(entry.device.id))
        for entry in devices
    )


# ---------------------------------------------------------------------- giving up


def patience_over(turn: Turn, attempt: str) -> None:
    """max_wait_s has passed: refused as busy."""
    waiting = turn.state.queue.entries.get(attempt)
    if waiting is not None:
        reason = explained(turn, waiting.request, waiting)
        _withdraw(turn, waiting)
        push = do.BusyPush(holder=waiting.holder, attempt=attempt, explanation=reason)
        turn.push(waiting.session, push)


def judge_again(turn: Turn) -> None:
    """The known inventory shrank: tell those whose request became impossible."""
    for need, lot in list(turn.state.queue.by_need()):
        if not impossible(need, turn.state.inventory):
            continue
        reason = explained(turn, need)
        for waiting in lot:
            _withdraw(turn, waiting)
            push = do.ImpossiblePush(
                holder=waiting.holder, attempt=waiting.attempt, explanation=reason
            )
            turn.push(waiting.session, push)


def _withdraw(turn: Turn, waiting: to.Waiting) -> None:
    drop(turn, waiting.attempt)
    record = turn.record_of(waiting.holder)
    if record is not None:
        turn.write(record, Step.RECEIVED)

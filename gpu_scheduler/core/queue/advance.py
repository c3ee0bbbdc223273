"""Leases granted ahead: the next request gets a share while its present lease still runs.

    expected end of a lease near ──▶ the policy chooses as if it had ended ──▶ granted ahead
    granted ahead ── shares freed ──▶ booked ── session ──▶ ACTIVE
                  ── too long, device unavailable or reserved ──▶ WITHDRAWN, not counted

A lease ahead has an id, a fence and a secret, but no shares: its function starts, and waits at its
host. The shares are booked in the transaction that frees them, before the queue is served, for the
first one whose session waits there, else for the oldest. A booked lease without a session gives
way to one ahead whose session waits (late binding), and waits for the next shares itself. Hosts
report which sessions wait, and when the last one of a lease has left; that is not durable, so the
hello of a host repeats it.

A lease is expected to end by learned times. A function that comes early costs its own seconds, one
that comes late those of the device: with the prices f and d of a second the cheapest start has the
part f / (f + d) of functions come late (`Advance.late_pct`), the critical ratio of the newsvendor
problem (Arrow, Harris, Marschak: "Optimal Inventory Policy", Econometrica 19, 1951). That part is
the quantile of the remaining time, and its complement that of the start.

A host that has memory for it loads what the workload of a lease ahead needs while the lease before
it runs. Then the lease is granted so much earlier as that takes, if that is longer than the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from corekit.ids import DeviceId, LeaseId, SessionId
from gpu_scheduler.core.admission.quotas import within_quota
from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.inventory.devices import fits, unavailable_reason
from gpu_scheduler.core.leases.history import with_lease
from gpu_scheduler.core.leases.leases import (
    accept_within_s,
    end,
    notify,
    reserved_s,
    take_residents,
    takes_of,
)
from gpu_scheduler.core.placement.eviction import resident_key, usable
from gpu_scheduler.core.queue.decide import QueueTransaction
from gpu_scheduler.core.queue.policy import Choice
from gpu_scheduler.core.replay.apply import count_shares
from gpu_scheduler.core.state.learned_times import Times, weighted_quantile
from gpu_scheduler.core.state.state import (
    NO_RESIDENTS_TAKEN,
    FunctionAccount,
    LeaseEntry,
    State,
)
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.model import (
    Advance,
    Door,
    EndReason,
    LeaseLifetime,
    LeaseState,
    Request,
    Resident,
)
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.verdicts import NoFit

#: Most leases ahead of one device.
AHEAD_MAX = 4
#: Most leases ahead that one freed device is compared with, the oldest first.
LOOKED_MAX = 64
#: Most leases that are about to end for which one event asks the policy.
ASKED_MAX = 8
_MEDIAN = 0.5
#: No availability has this version.
_NO_VERSION = -1
#: Of a device that serves no request soon.
_LEFT = (NoFit.DRAINED, NoFit.SUSPECT, NoFit.BAD, NoFit.HOST_LOST, NoFit.RESERVED_FOR_HEAD)


# ---------------------------------------------------------------------- leases that end soon


def watch(tx: QueueTransaction, entry: LeaseEntry) -> None:
    """Arm the timer of the time from which another lease may be granted ahead of this one."""
    state = tx.state
    if not _is_followed(state, entry) or (left_s := _left_s(tx, entry, _MEDIAN)) is None:
        return
    in_s = max(0.0, left_s - state.parameters.advance_s_max)
    state.timers.arm(TimerKind.ADVANCE, entry.lease.id, tx.at_s + in_s)


def ends_soon(tx: QueueTransaction, lease: LeaseId) -> None:
    """Note that a lease ends soon; the queue is served then."""
    if lease in tx.state.leases:
        tx.state.ending[lease] = None
        tx.capacity_freed = True


def _is_followed(state: State, entry: LeaseEntry) -> bool:
    """True when another lease may wait for the shares of this one."""
    lease = entry.lease
    return (
        state.parameters.advance_s_max > 0
        and lease.hold is LeaseLifetime.SESSION
        and len(lease.shares) == 1
        and lease.state in (LeaseState.RESERVED, LeaseState.ACTIVE)
        and not entry.ahead
        and not entry.overruns
        and state.inventory.hosts[lease.shares[0].host].advance
    )


def _times(state: State, entry: LeaseEntry) -> Times | None:
    model = entry.lease.shares[0].model
    return state.learned_times.of(entry.lease.tenant, entry.request.workload, model)


def _left_s(tx: QueueTransaction, entry: LeaseEntry, quantile: float) -> float | None:
    """The quantile of the time until a lease frees its shares; None = nothing was learned.

    One that has run for longer than all that were observed may end at any time.
    """
    times = _times(tx.state, entry)
    if times is None or not times.executions_s:
        return None
    if entry.active_s is None:
        execution_s = weighted_quantile(times.executions_s, quantile)
        start_s = 0.0 if entry.knocked else times.start_s(quantile) or 0.0
        return max(0.0, entry.granted_s + start_s - tx.wall_s) + execution_s
    ran_s = max(0.0, tx.wall_s - entry.active_s)
    longer = tuple(one for one in times.executions_s if one > ran_s)
    return weighted_quantile(longer, quantile) - ran_s if longer else 0.0


def booked_in_s(tx: QueueTransaction, entry: LeaseEntry) -> float | None:
    """The expected time until a lease ahead has its shares; None = nothing was learned."""
    state, device = tx.state, entry.lease.shares[0].device
    holders = [state.leases[one] for one in entry.lease.after if one in state.leases]
    lefts_s = [_left_s(tx, one, _MEDIAN) for one in holders]
    if any(left_s is None for left_s in lefts_s):
        return None
    before = in_order(state, device)
    return max((one or 0.0 for one in lefts_s), default=0.0) + sum(
        _execution_s(state, one, _MEDIAN) for one in before[: before.index(entry)]
    )


def _execution_s(state: State, entry: LeaseEntry, quantile: float) -> float:
    times = _times(state, entry)
    return 0.0 if times is None else times.execution_s(quantile) or 0.0


# ---------------------------------------------------------------------- grants


def choices(tx: QueueTransaction) -> Iterator[tuple[Choice, tuple[LeaseId, ...]]]:
    """The next grants ahead: what the policy chooses as if a lease had ended, and that lease.

    Each is granted before the next one is asked for.
    """
    state = tx.state
    if tx.policy.promises or state.preemptions or not state.queue.accepting:
        return
    for lease in list(islice(state.ending, ASKED_MAX)):
        while (entry := state.leases.get(lease)) is not None:
            if not _any_has_function(tx):
                return
            choice = _choice_behind(tx, entry)
            if choice is None:
                if lease in state.ending:  # the next event asks for others
                    del state.ending[lease]
                    state.ending[lease] = None
                break
            state.ahead_counts["granted"] += 1
            yield choice, (lease,)
        if entry is None:
            state.ending.pop(lease, None)


def _choice_behind(tx: QueueTransaction, entry: LeaseEntry) -> Choice | None:
    """The grant ahead of which a lease runs; None: not now, or never."""
    state, lease = tx.state, entry.lease
    device = lease.shares[0].device if lease.shares else None
    known = None if device is None else state.inventory.devices.get(device)
    if device is None or known is None or not _is_followed(state, entry):
        state.ending.pop(lease.id, None)
        return None
    available = unavailable_reason(state.inventory.state_of(device)) is None
    if not available or len(state.ahead.get(device, ())) >= AHEAD_MAX:
        return None
    with _ended(tx, entry), _resumed(state, lease.tenant):
        tx.asked = None
        view = tx.view()
        answer = tx.policy.decide(view)
        tx.asked = None
    state.clear_freed()  # it was served before
    if not isinstance(answer, Choice) or answer.devices != (device,):
        return None
    account = _account_of(state, state.queue.entries[answer.attempt].session)
    if account is not None and not _has_function(tx, account):
        return None
    in_s = _due_in_s(tx, entry, answer)
    if in_s is not None and account is not None:
        in_s = max(in_s, account.paused_until_s - tx.at_s)
    if in_s is None or in_s > SAME_S:  # a timer that is nearer could be at this same time
        state.ending.pop(lease.id, None)
        if in_s is not None:
            state.timers.arm(TimerKind.ADVANCE, lease.id, tx.at_s + in_s)
        return None
    tx.drawn = view.drawn if not tx.policy.orders else 0
    return answer


def _account_of(state: State, session: str | None) -> FunctionAccount | None:
    """The account of the functions of a session; None = not known, and without limits."""
    name = None if session is None else state.account_of.get(SessionId(session))
    return None if name is None else state.function_accounts[name]


def _any_has_function(tx: QueueTransaction) -> bool:
    """False when a policy can choose only requests of accounts that are full."""
    state = tx.state
    names = {state.account_of.get(session) for session in state.queue.by_session}
    return any(name is None or _has_function(tx, state.function_accounts[name]) for name in names)


def _has_function(tx: QueueTransaction, account: FunctionAccount) -> bool:
    """True when one more function of an account may wait ahead."""
    most, ahead = account.ahead_max, tx.state.ahead.values()
    if most is None or sum(map(len, ahead)) < most:
        return True
    owners = (tx.owner_of(tx.state.leases[lease]) for leases in ahead for lease in leases)
    return sum(_account_of(tx.state, owner) is account for owner in owners) < most


@contextmanager
def _resumed(state: State, tenant: str) -> Iterator[None]:
    """The policy sees the requests of a tenant whose quota a lease that ends has used up."""
    queue = state.queue
    for_size = queue.suspended_before(_NO_VERSION)
    groups = [
        one
        for one in queue.suspended(tenant)
        if one.keys and one not in for_size and within_quota(state, one.request)
    ]
    for group in groups:
        queue.resume(group)
    firsts = [group.first[3] for group in groups]
    try:
        yield
    finally:
        for attempt in firsts:
            queue.suspend(attempt)


def _due_in_s(tx: QueueTransaction, entry: LeaseEntry, choice: Choice) -> float | None:
    """Seconds until a request should be granted ahead; None: its terms or learned times forbid it.

    The leases that are ahead already run before it.
    """
    state = tx.state
    waiting, device = state.queue.entries[choice.attempt], choice.devices[0]
    request, advance = waiting.request, waiting.request.advance
    by_session = waiting.hold is LeaseLifetime.SESSION and waiting.door is Door.GATEWAY
    if advance is None or not by_session or request.count != 1:
        return None
    late = _late(advance)
    model = state.inventory.devices[device].device.model
    own = state.learned_times.of(request.tenant, request.workload, model)
    start_s = None if own is None else own.start_s(1 - late)
    left_s = _left_s(tx, entry, late)
    if own is None or start_s is None or left_s is None:
        return None
    if _loads_ahead(state, entry, request, device):
        start_s = max(start_s, own.loading_s(1 - late) or 0.0)
    ahead = (state.leases[lease] for lease in state.ahead.get(device, ()))
    left_s += sum(_execution_s(state, one, late) for one in ahead)
    return left_s - min(start_s, _wait_s_max(state, advance))


def _loads_ahead(state: State, before: LeaseEntry, request: Request, device: DeviceId) -> bool:
    """True when the host of a device can load what a request needs beside the leases there, and
    none of those `before` it leaves a worker of its workload."""
    inventory, key = state.inventory, resident_key(request)
    name = inventory.devices[device].host
    if key is None or not inventory.hosts[name].loads_ahead:
        return False
    ahead = [state.leases[lease] for lease in state.ahead.get(device, ())]
    if any(resident_key(one.request) == key for one in (before, *ahead)):
        return False
    memory_mib = inventory.residents.shown_mib(name, key)
    if memory_mib is None or memory_mib > inventory.state_of(device).free_mib:
        return False
    limits = state.parameters
    may_load = min(limits.warm_loads_max, limits.warm_workers_max, limits.warm_memory_pct_max) > 0
    return may_load and usable(request, inventory, device) is None


def _late(advance: Advance) -> float:
    return max(0.01, advance.late_pct / 100)


def _wait_s_max(state: State, advance: Advance) -> float:
    return min(advance.wait_s, state.parameters.advance_s_max)


@contextmanager
def _ended(tx: QueueTransaction, entry: LeaseEntry) -> Iterator[None]:
    """The state as if a lease had freed its share, and left a warm worker of its workload."""
    state, share = tx.state, entry.lease.shares[0]
    inventory, tenants = state.inventory, state.tenants
    shares = dict(inventory.devices[share.device].shares)
    tenants.release(entry.lease.tenant, entry.amount)
    count_shares(state, entry, -1)
    inventory.deallocate(entry.lease.id, share)
    warm = _warm_worker(state, entry)
    if warm is not None:
        inventory.change_residents(share.device, (warm,), ())
    try:
        yield
    finally:
        if warm is not None:
            inventory.change_residents(share.device, (), (warm.id,))
        inventory.allocate(entry.lease.id, share)
        inventory.devices[share.device].shares.clear()
        inventory.devices[share.device].shares.update(shares)
        count_shares(state, entry, +1)
        tenants.add(entry.lease.tenant, entry.amount)
        tenants.freed.pop(entry.lease.tenant, None)


def _warm_worker(state: State, entry: LeaseEntry) -> Resident | None:
    """The worker that a lease will leave; None where none stays, or for a policy of order."""
    key, times = resident_key(entry.request), _times(state, entry)
    if key is None or not state.parameters.warm_workers_max:
        return None
    loading_s = 0.0 if times is None else times.loading_s(_MEDIAN) or 0.0
    memory_mib = entry.lease.shares[0].memory_mib
    return Resident(id=entry.lease.id, workload=key, memory_mib=memory_mib, loading_s=loading_s)


# ---------------------------------------------------------------------- booking


def book(tx: QueueTransaction) -> None:
    """Give freed shares to the leases that wait for them; withdraw those that get none."""
    state = tx.state
    if not state.ahead:
        return
    version, freed = state.inventory.availability_version, state.inventory.freed
    changed, state.ahead_checked = state.ahead_checked != version, version
    for device in [one for one in state.ahead if changed or one in freed]:
        _book_on(tx, device)
    for device in list(freed) if state.ahead else ():
        _let_go_for(tx, device)


def _book_on(tx: QueueTransaction, device: DeviceId) -> None:
    for entry in in_order(tx.state, device):
        reason = fits(entry.request, tx.state.inventory.state_of(device), entry.lease.attempt)
        if reason in _LEFT:
            text = f"device {device} does not become free for it: {reason}"
            end(tx, entry, EndReason.WITHDRAWN, text)
        elif _waits(tx.state, entry, device):
            continue
        elif reason is None and not within_own_quota(tx.state, entry):
            end(tx, entry, EndReason.WITHDRAWN, f"tenant {entry.lease.tenant} used up its quota")
        elif reason is None:
            book_one(tx, entry)
        else:
            return


def _let_go_for(tx: QueueTransaction, device: DeviceId) -> None:
    """Withdraw a lease that waits for one that does not end, where another device is free for it.

    Its function starts again sooner: it competes for that device, and others, in its place.
    """
    state = tx.state
    if device not in state.inventory.devices:
        return
    freed = state.inventory.state_of(device)
    ahead = (one for leases in state.ahead.values() for one in leases)
    for lease in list(islice(ahead, LOOKED_MAX)):
        entry = state.leases[lease]
        fitting = fits(entry.request, freed, entry.lease.attempt) is None
        if fitting and entry.lease.shares[0].device != device and _overruns(tx, entry):
            end(tx, entry, EndReason.WITHDRAWN, f"device {device} was free before its own")
            return


def _overruns(tx: QueueTransaction, entry: LeaseEntry) -> bool:
    """True when a lease before this one runs for longer than nearly all of its workload did."""
    advance = entry.request.advance or Advance()
    before = [tx.state.leases[one] for one in entry.lease.after if one in tx.state.leases]
    return any(
        one.active_s is not None
        and (times := _times(tx.state, one)) is not None
        and tx.wall_s - one.active_s > (times.execution_s(1 - _late(advance)) or 0.0)
        for one in before
    )


def within_own_quota(state: State, entry: LeaseEntry) -> bool:
    """True when the tenant of a lease may hold its shares, beside what it holds."""
    tenant = entry.lease.tenant
    return state.tenants.allows(tenant, entry.amount, state.parameters.quota(tenant))


def _waits(state: State, entry: LeaseEntry, device: DeviceId) -> bool:
    """True while a lease behind which it was granted holds its share."""
    shares = state.inventory.devices[device].shares
    return any(lease in shares for lease in entry.lease.after)


def in_order(state: State, device: DeviceId) -> list[LeaseEntry]:
    """The leases ahead of a device in the order of their booking.

    Those whose session waits are first, then by fence.
    """
    entries = [state.leases[lease] for lease in state.ahead.get(device, ())]
    return sorted(entries, key=lambda entry: (not entry.knocked, entry.lease.fence))


def book_one(tx: QueueTransaction, entry: LeaseEntry) -> None:
    """Give a lease its shares: from now on its function must come as that of any other."""
    devices = tuple(share.device for share in entry.lease.shares)
    takes = takes_of(entry.request, tx.state.inventory, devices)  # as long as its share is free
    tx.emit(to.LeaseBooked(lease=entry.lease.id, booked_s=tx.wall_s))
    tx.state.ahead_counts["booked"] += 1
    if takes:
        take_residents(tx, entry, takes)
    _changed(tx, entry)
    watch(tx, entry)


def unbook(tx: QueueTransaction, entry: LeaseEntry, after: LeaseId) -> None:
    """Take the shares from a lease whose session is not open; it waits for another lease."""
    tx.emit(to.LeaseBooked(lease=entry.lease.id, booked_s=tx.wall_s, after=(after,)))
    tx.state.ahead_counts["gave_way"] += 1
    tx.capacity_freed = True
    for device, taken in entry.taken.items():  # of the evicted ones its host reports
        if taken.used is not None:
            tx.state.inventory.change_residents(device, (taken.used,), ())
    entry.taken = NO_RESIDENTS_TAKEN
    tx.state.timers.cancel(TimerKind.ADVANCE, entry.lease.id)
    tx.state.ending.pop(entry.lease.id, None)
    _changed(tx, entry)


def _changed(tx: QueueTransaction, entry: LeaseEntry) -> None:
    """Its deadline, its hosts, its record and its watchers follow."""
    tx.set_deadline(entry, reserved_s(tx, entry) if entry.accepted else accept_within_s(tx, entry))
    tx.push_installs(entry)
    record = tx.record_of(entry.lease.holder)
    if record is not None and record.lease == entry.lease.id:
        tx.write(with_lease(record, entry, tx))
    notify(tx, entry, tx.owner_of(entry))

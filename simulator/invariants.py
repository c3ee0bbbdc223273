"""Invariants of the state after every event, for tests and the simulator; empty = all hold."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId, SessionId, attempt_id
from gpu_scheduler.core.admission.quotas import clamped_to_quota, within_quota
from gpu_scheduler.core.admission.tenants import NOTHING, Amount, amount_of, capacity_of
from gpu_scheduler.core.admission.usage_counts import UsageCount, UsageCounts
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX, fits
from gpu_scheduler.core.inventory.index import Index
from gpu_scheduler.core.inventory.inventory import DeviceEntry, current_state
from gpu_scheduler.core.inventory.residents import Residents
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.queue.advance import AHEAD_MAX, in_order, within_own_quota
from gpu_scheduler.core.queue.policy import Policy, values_of
from gpu_scheduler.core.state.state import State
from gpu_scheduler.model import LeaseState, Record, Step
from simulator.booking_invariants import check_bookings

_WITH_LEASE = (Step.RESERVED, Step.STAGED, Step.RUNNING)
_ONLY_WITH_DEVICE = (Step.WAITING, Step.RESERVED)


def check(state: State) -> list[str]:
    """Every violation as one sentence."""
    return [
        *_devices(state),
        *_index(state),
        *_leases(state),
        *_ahead(state),
        *_records(state),
        *_strikes(state),
        *_queue(state),
        *_hosts(state),
        *_tenants(state),
        *_tallies(state),
        *check_bookings(state),
    ]


def _devices(state: State) -> Iterator[str]:
    for entry in state.inventory.devices.values():
        name = entry.device.id
        memory = sum(share.memory_mib for share in entry.shares.values())
        compute = sum(share.compute_guarantee_permille for share in entry.shares.values())
        if (memory, compute) != (entry.allocated_mib, entry.allocated_permille):
            yield f"{name}: {entry.allocated_mib} MiB are booked, but its shares add up to {memory}"
        if memory > entry.device.memory_mib:
            yield f"{name}: {memory} MiB allocated of {entry.device.memory_mib}"
        if compute > COMPUTE_PERMILLE_MAX:
            yield f"{name}: {compute / 10:g} % of compute allocated"
        yield from _exclusivity(entry)
        if entry.device_state != current_state(entry, state.inventory.hosts[entry.host]):
            yield f"{name}: indexed under an outdated state"


def _index(state: State) -> Iterator[str]:
    """The indexes equal those of a fresh index of the same inventory."""
    inventory = state.inventory
    index = Index()
    residents = Residents()
    warm: dict[str, Index] = {}
    for id_, entry in inventory.devices.items():
        device_state = inventory.state_of(id_)
        index.add(id_, device_state, loaded=bool(inventory.residents.of(id_)))
        residents.change(id_, device_state, inventory.residents.of(id_).values(), ())
        for key in entry.resident:
            warm.setdefault(key, Index()).add(id_, device_state)
    if index.groups != inventory.index.groups:
        yield "a device is not indexed where it belongs"
    for key in (*warm, "an unknown key"):
        found = inventory.warm(key)
        if (None if found is None else found.groups) != getattr(warm.get(key), "groups", None):
            yield f"the devices with warm key {key} are not indexed as they should be"
    yield from _residents(inventory.residents, residents)


def _residents(found: Residents, fresh: Residents) -> Iterator[str]:
    """The books of residents, and their indexes, equal fresh ones."""
    if dict.fromkeys(found.devices()) != dict.fromkeys(fresh.devices()):
        yield "the devices with residents are not those with entries"
    if found.beside.groups != fresh.beside.groups:
        yield "a device is not indexed by the memory beside its residents"
    for device in fresh.devices():
        if found.memory_mib(device) != fresh.memory_mib(device):
            yield f"{device}: {found.memory_mib(device)} MiB are booked for its residents"
    for key in (*fresh.workloads(), *found.workloads()):
        left, right = found.with_workload(key), fresh.with_workload(key)
        if getattr(left, "groups", None) != getattr(right, "groups", None):
            yield f"the devices with workload {key} are not indexed as they should be"


def _exclusivity(entry: DeviceEntry) -> Iterator[str]:
    exclusive = [lease for lease, share in entry.shares.items() if share.exclusive]
    if exclusive and len(entry.shares) > 1:
        yield f"{entry.device.id}: exclusive to {exclusive[0]}, but has other leases"
    if entry.exclusive != (exclusive[0] if exclusive else None):
        yield f"{entry.device.id}: its exclusive lease is booked as {entry.exclusive}"


def _leases(state: State) -> Iterator[str]:
    fence = 0
    for entry in state.leases.values():
        lease = entry.lease
        if not fence < lease.fence <= state.position:
            yield f"{lease.id}: fence {lease.fence} after {fence}, journal at {state.position}"
        fence = max(fence, lease.fence)
        if lease.state is LeaseState.ENDED:
            yield f"{lease.id}: ended but still known"
        if state.lease_of.get(lease.attempt) != lease.id:
            yield f"{lease.id}: attempt {lease.attempt} has another live lease"
        holds = lease.state is not LeaseState.ENDING and not entry.ahead
        for share in lease.shares:
            device = state.inventory.devices.get(share.device)
            if device is None or (lease.id in device.shares) is not holds:
                yield f"{lease.id}: its share of {share.device} is not booked as it should be"
    if len(state.lease_of) != len(state.leases):
        yield "leases and the index of attempts differ in number"


def _ahead(state: State) -> Iterator[str]:
    """Leases granted ahead: listed where they wait, few, and none whose shares are free."""
    listed = {(device, lease) for device, leases in state.ahead.items() for lease in leases}
    ahead = [entry for entry in state.leases.values() if entry.ahead]
    if listed != {(e.lease.shares[0].device, e.lease.id) for e in ahead}:
        yield "leases ahead are not listed at their devices"
    for entry in ahead:
        lease = entry.lease
        device = lease.shares[0].device
        if lease.state is not LeaseState.RESERVED or len(lease.shares) != 1:
            yield f"{lease.id}: ahead, but {lease.state} with {len(lease.shares)} shares"
        if entry.deadline_s is None:
            yield f"{lease.id}: ahead without a limit of its wait"
        if len(state.ahead.get(device, ())) > AHEAD_MAX + 1:
            yield f"{device}: {len(state.ahead[device])} leases are ahead there"
    for device in state.ahead:
        yield from _free_for_ahead(state, device)


def _free_for_ahead(state: State, device: DeviceId) -> Iterator[str]:
    shares = state.inventory.devices[device].shares
    for entry in in_order(state, device):
        if any(lease in shares for lease in entry.lease.after):
            continue
        reason = fits(entry.request, state.inventory.state_of(device), entry.lease.attempt)
        if reason is None and within_own_quota(state, entry):
            yield f"{entry.lease.id}: ahead, although its shares are free"
        return


def _records(state: State) -> Iterator[str]:
    if list(state.record_order) != list(state.records):
        yield "records and the order of their pages differ"
    for record in state.records.values():
        lease = state.live_lease(record)
        attempt = attempt_id(record.holder, record.attempt)
        if record.step is Step.ENDED and (lease is not None or record.outcome is None):
            yield f"{record.holder}: ended with a live lease or without an outcome"
        if record.step is Step.RECEIVED and lease is not None:
            yield f"{record.holder}: RECEIVED with a live lease"
        if (record.step is Step.WAITING) is not (attempt in state.queue.entries):
            yield f"{record.holder}: step {record.step} and the queue disagree"
        yield from _device_of(record, has_lease=lease is not None)
        if lease is not None and record.reason is not None:
            yield f"{record.holder}: a live lease and a reason why it ended"
    yield from _owners(state)


def _owners(state: State) -> Iterator[str]:
    for record in state.records.values():
        owned = record.holder in state.owned.get(SessionId(record.owner or ""), {})
        if record.step is not Step.ENDED and owned is (record.holder in state.orphans):
            yield f"{record.holder}: indexes of owners disagree"
        if len(set(record.ended_owners)) != record.strikes or record.owner in record.ended_owners:
            yield f"{record.holder}: strikes by {record.ended_owners}, owned by {record.owner}"
    for session, holders in state.owned.items():
        if not holders:
            yield f"session {session} owns an empty list"


def _strikes(state: State) -> Iterator[str]:
    struck: dict[str, dict[str, None]] = {}
    for record in state.records.values():
        for session in record.ended_owners if record.step is not Step.ENDED else ():
            struck.setdefault(session, {})[record.holder] = None
    if struck != state.struck:
        yield f"strikes are indexed as {state.struck}, not {struck}"
    for session in struck.keys() & state.sessions.keys():
        yield f"session {session} lives, and {list(struck[session])} count it as ended"


def _device_of(record: Record, *, has_lease: bool) -> Iterator[str]:
    if not record.with_device and (has_lease or record.step in _ONLY_WITH_DEVICE):
        yield f"{record.holder}: {record.step} or a lease, but its attempt needs no device"
    needs_lease = record.with_device and record.step in _WITH_LEASE
    if needs_lease and not has_lease and record.reason is None:
        yield f"{record.holder}: {record.step} without a lease or a reason"


def _queue(state: State) -> Iterator[str]:
    for attempt in [a for theirs in state.queue.unresponsive.values() for a in theirs]:
        if attempt not in state.queue.entries:
            yield f"{attempt}: unresponsive, but not waiting"
    for waiting in state.queue.entries.values():
        if waiting.attempt in state.lease_of:
            yield f"{waiting.attempt}: is waiting but has a lease"
        if waiting.holder is None:
            continue
        record = state.records.get(waiting.holder)
        if record is None or record.owner != waiting.session:
            yield f"{waiting.attempt}: belongs to another session than its record"
        elif record.waiting_since_s != waiting.waiting_since_s:
            yield f"{waiting.attempt}: its place in the queue differs from its record"
    if not state.has_room or len(state.leases) >= state.parameters.leases_max:
        return
    for waiting in state.queue.group_heads() if _is_work_conserving(state) else ():
        asked = clamped_to_quota(state, waiting.request)
        if (
            within_quota(state, asked)
            and place(asked, state.inventory, waiting.attempt) is not None
        ):
            yield f"{waiting.attempt}: is waiting although it fits"


def _is_work_conserving(state: State) -> bool:
    """True when the policy in force promises to leave nothing waiting that fits."""
    policy = state.installed.get(state.parameters.policy)
    if not isinstance(policy, Policy):  # of a machine that only replays
        return True
    return policy.declare(values_of(policy, state.parameters)).work_conserving


def _tenants(state: State) -> Iterator[str]:
    held: dict[str, Amount] = {}
    shares: dict[tuple[str, str], int] = {}
    for entry in state.leases.values():
        if entry.lease.state is not LeaseState.ENDING and not entry.ahead:
            tenant, workload = entry.lease.tenant, entry.request.workload
            held[tenant] = held.get(tenant, NOTHING).plus(amount_of(entry.lease.shares))
            if workload is not None:
                key = (tenant, workload)
                shares[key] = shares.get(key, 0) + len(entry.lease.shares)
    if shares != state.shares_of:
        yield f"workloads hold {shares} shares, but {state.shares_of} are counted"
    if held != state.tenants.held:
        yield f"tenants hold {held}, but the books show {state.tenants.held}"
    devices = (entry.device for entry in state.inventory.devices.values())
    if state.tenants.capacity != capacity_of(devices):
        yield f"capacity is booked as {state.tenants.capacity}"


def _tallies(state: State) -> Iterator[str]:
    """The counts of keys and tenants equal a fresh count."""
    recounted = UsageCounts()
    for record in state.records.values():
        recounted.record_changed(None, record)
    for waiting in state.queue.entries.values():
        recounted.reservation_waits(waiting, +1)
    counts = ((recounted.total, state.usage_counts.total), *_pairs(recounted, state.usage_counts))
    if recounted != state.usage_counts or any(list(a.ended) != list(b.ended) for a, b in counts):
        yield f"keys and tenants are counted as {state.usage_counts}, not {recounted}"
    if recounted.total.waiting != len(state.queue.entries):
        yield f"{len(state.queue.entries)} requests wait, but {recounted.total.waiting} are counted"


def _pairs(left: UsageCounts, right: UsageCounts) -> Iterator[tuple[UsageCount, UsageCount]]:
    """The counts of each key and tenant that both have."""
    for a, b in ((left.keys, right.keys), (left.tenants, right.tenants)):
        yield from ((a[name], b[name]) for name in a.keys() & b.keys())


def _hosts(state: State) -> Iterator[str]:
    for host in state.inventory.hosts.values():
        for lease in host.leases:
            entry = state.leases.get(lease)
            if entry is None or all(share.host != host.host for share in entry.lease.shares):
                yield f"{host.host}: lists lease {lease}, which has no share there"

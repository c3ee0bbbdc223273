"""Warm floors: the devices on which hosts keep workers of a workload loaded without a lease.

Each worker of a floor has a slot on a device. A slot stays where it is while a worker is there, or
a lease of the workload, which leaves one; else while the device has room for it beside all leases
and the other slots. So no floor takes the place of another one. A slot without a worker moves to a
device with room when its own has none, or when no worker has come for `PATIENCE_S`. Hosts load, and
leases go first: they take the memory, and the slot moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain, islice, takewhile

from corekit.ids import DeviceId, HostId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.inventory.devices import (
    COMPUTE_PERMILLE_MAX,
    fits,
    permanent_mismatch,
    share_of,
    unavailable_reason,
)
from gpu_scheduler.core.inventory.floors import FloorKey, Slot
from gpu_scheduler.core.inventory.index import feasibility_key
from gpu_scheduler.core.inventory.inventory import HostEntry
from gpu_scheduler.core.placement.candidates import Search
from gpu_scheduler.core.placement.eviction import resident_key
from gpu_scheduler.core.placement.explain import REASON_TEXT
from gpu_scheduler.core.placement.gangs import fitting_by_preference
from gpu_scheduler.core.state.state import State
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.floors import (
    HOST_BYTES_MAX,
    TENANT_WORKERS_MAX,
    FloorView,
    HostFloor,
    WarmFloor,
    first_within,
)
from gpu_scheduler.model import Health, HostState, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.verdicts import NoFit

#: Between two checks; after one that was cut short.
CHECK_S, SOON_S = 5.0, 0.5
#: Without a worker for this long, a slot moves: loads fail there, or take too long.
PATIENCE_S = 600.0
#: Most devices of one preference with room that are compared for a slot.
COMPARED_MAX = 64
#: A check ends after so many slots, or devices, which is also the most for one slot: 0.1 s. The
#: next one continues.
CHECK_SLOTS_MAX, SEARCHED_MAX = 32, 1024
#: Most floors that are shown; most devices that are compared to name the nearest one.
VIEWS_MAX, NAMED_MAX = 200, 16
#: Workers on such devices stay for now.
_PASSING = (None, NoFit.HOST_STALE, NoFit.SUSPECT)


def keep_warm(tx: Transaction, event: on.Asked[ops.KeepWarm]) -> answers.KeepWarmAnswer:
    """Replace the floors of a session, but for those that its key may not declare. Idempotent."""
    numbered = list(enumerate(event.op.floors))
    allowed = tuple(floor for number, floor in numbered if number not in event.denied)
    refused = tuple(
        FloorView(
            tenant=floor.request.tenant,
            workload=floor.request.workload or "",
            workers_min=floor.workers_min,
            workers=0,
            why=event.denied[number],
        )
        for number, floor in numbered
        if number in event.denied
    )
    if tx.state.floors.declare(event.session, allowed, refused):
        check(tx)
    return answers.KeepWarmAnswer(refused=refused)


def check(tx: Transaction, name: str = "") -> None:  # noqa: ARG001 - there is one timer
    """Place the slots of all floors, and push what has changed to the hosts."""
    state = tx.state
    floors, wanted = state.floors, state.floors.wanted()
    floors.slots, floors.resumes_at = _placed(tx, wanted)
    state.inventory.residents.kept = _kept(state)
    known, found = state.inventory.hosts, _by_host(state)
    floors.pushed = {name: sent for name, sent in floors.pushed.items() if name in known}
    for host in [known[name] for name in {**floors.pushed, **found}]:
        now = first_within(found.get(host.host, ()), HOST_BYTES_MAX)
        is_open = host.state is HostState.UP and host.gateway is not None
        if is_open and now != floors.pushed.get(host.host, ()):
            tx.push_to_host(host.host, host_ops.KeepWarmPush(floors=now))
            floors.pushed[host.host] = now
    if wanted:
        pause_s = CHECK_S if floors.resumes_at is None else SOON_S
        state.timers.arm(TimerKind.FLOORS, "", tx.at_s + pause_s)
    else:
        state.timers.cancel(TimerKind.FLOORS, "")


def welcomed(tx: Transaction, host: HostEntry) -> tuple[HostFloor, ...]:
    """The floors of a host that registers, as it is sent them now."""
    now = first_within(_by_host(tx.state, host.host).get(host.host, ()), HOST_BYTES_MAX)
    tx.state.floors.pushed[host.host] = now
    return now


def _by_host(state: State, only: HostId | None = None) -> dict[HostId, list[HostFloor]]:
    """The floors of all hosts, or of one, as they keep them."""
    found: dict[HostId, list[HostFloor]] = {}
    for key, floor in state.floors.wanted().items():
        counts = Counter(slot.device for slot in state.floors.slots.get(key, ()))
        for device, count in sorted(counts.items()):
            entry = state.inventory.devices.get(device)
            if entry is not None and only in (None, entry.host):
                one = HostFloor(
                    tenant=key[0],
                    workload=key[1],
                    share=share_of(floor.request, entry.device, entry.host),
                    workers_min=count,
                    loads=floor.loads,
                )
                found.setdefault(entry.host, []).append(one)
    return found


def _kept(state: State) -> dict[DeviceId, set[str]]:
    """The published keys of the workloads that devices keep."""
    kept: dict[DeviceId, set[str]] = {}
    for key, floor in state.floors.wanted().items():
        name = resident_key(floor.request)
        for slot in state.floors.slots.get(key, ()):
            if name is not None:
                kept.setdefault(slot.device, set()).add(name)
    return kept


# ---------------------------------------------------------------------- slots


def _allowed(state: State) -> bool:
    limits = state.parameters
    return min(limits.warm_workers_max, limits.warm_memory_pct_max) > 0


def _workers_max(state: State, tenant: str) -> int:
    """The most workers of all floors of a tenant."""
    devices = state.parameters.quota(tenant).devices
    return TENANT_WORKERS_MAX if devices is None else int(devices)


def _placed(
    tx: Transaction, wanted: dict[FloorKey, WarmFloor]
) -> tuple[dict[FloorKey, tuple[Slot, ...]], FloorKey | None]:
    """The slots of all floors: those that stay first, then the missing ones; and the floor at which
    the search continues in the next check."""
    state = tx.state
    if not _allowed(state):
        return {}, None
    books, slots, late = _Books(tx), dict[FloorKey, list[Slot]](), dict[FloorKey, set[DeviceId]]()
    left = {tenant: _workers_max(state, tenant) for tenant, _ in wanted}
    for key, floor in wanted.items():
        known = state.floors.slots.get(key, ())[: min(floor.workers_min, left[key[0]])]
        stay = [books.kept(floor.request, slot) for slot in known]
        slots[key] = [slot for slot in stay if slot is not None]
        late[key] = {old.device for old, new in zip(known, stay, strict=True) if new is None}
        left[key[0]] -= len(slots[key])
    begin, resumes_at = state.floors.resumes_at, None
    for key in [key for key in wanted if begin is None or key >= begin]:
        request, workers_min = wanted[key].request, wanted[key].workers_min
        while left[key[0]] > 0 and len(slots[key]) < workers_min and not books.is_full:
            slot = books.placed(request, slots[key], late[key])
            if slot is None:
                break
            slots[key].append(slot)
            left[key[0]] -= 1
        else:
            if books.is_full:
                resumes_at = key
                break
    state.floors.slots_mib = books.slots_mib
    return {key: tuple(found) for key, found in slots.items() if found}, resumes_at


class _Books:
    """The memory that slots have, and the workers that hold them."""

    def __init__(self, tx: Transaction) -> None:
        self._state, self._at_s = tx.state, tx.at_s
        self.slots_mib: Counter[DeviceId] = Counter()
        self._held: Counter[tuple[FloorKey, DeviceId]] = Counter()
        self._slots = self._searched = 0
        self._missed: set[tuple[object, ...]] = set()

    @property
    def is_full(self) -> bool:
        """Whether the rest is for the next check."""
        return self._slots >= CHECK_SLOTS_MAX or self._searched >= SEARCHED_MAX

    def kept(self, request: Request, slot: Slot) -> Slot | None:
        """The slot, if it stays where it is."""
        state, device = self._state, slot.device
        if device not in state.inventory.devices:
            return None
        here = state.inventory.state_of(device)
        passing = unavailable_reason(here) in _PASSING
        if not passing or permanent_mismatch(request, here.device_class) is not None:
            return None
        if self._hold(request, device):
            return Slot(device, self._at_s)
        is_late = self._at_s - slot.seen_s >= PATIENCE_S
        return None if is_late or not self._book(request, device) else slot

    def placed(
        self, request: Request, slots: Collection[Slot], late: Collection[DeviceId]
    ) -> Slot | None:
        """A slot on another device: where a worker is, then spread, then with the most room."""
        inventory = self._state.inventory
        kind = feasibility_key(request), request.sharing
        name = resident_key(request) or ""
        if kind in self._missed and inventory.residents.with_workload(name) is None:
            return None
        self._slots += 1
        until = self._searched + SEARCHED_MAX
        there = Counter(slot.device for slot in slots)
        # a worker without a lease computes nothing
        loads = replace(request, compute_guarantee_pct=0)
        for devices in fitting_by_preference(Search(loads, inventory, None)):
            ranked = (
                (device in late, not is_held, there[device], -room_mib, device)
                for device in takewhile(lambda _: self._searched < until, devices)
                for is_held, room_mib in self._room(request, device)
            )
            best = min(islice(ranked, COMPARED_MAX), default=None)
            if best is not None:
                device = best[-1]
                if not self._hold(request, device):
                    self._book(request, device)
                return Slot(device, self._at_s)
        self._missed.add(kind)
        return None

    def _room(self, request: Request, device: DeviceId) -> Iterable[tuple[bool, int]]:
        """Whether a worker is there already, and the memory that is free; nothing: no room."""
        state = self._state
        self._searched += 1
        host = state.inventory.hosts[state.inventory.devices[device].host]
        left_mib = state.inventory.state_of(device).free_mib - self.slots_mib[device]
        is_held = self._holder_mib(request, device) is not None
        if host.loads_ahead and (is_held or self._fits(request, device)):
            yield is_held, left_mib

    def _fits(self, request: Request, device: DeviceId) -> bool:
        return _misfit(self._state, request, device, self.slots_mib[device]) is None

    def _book(self, request: Request, device: DeviceId) -> bool:
        if not self._fits(request, device):
            return False
        known = self._state.inventory.devices[device]
        self.slots_mib[device] += share_of(request, known.device, known.host).memory_mib
        return True

    def _hold(self, request: Request, device: DeviceId) -> bool:
        """Have a worker that is there hold a slot; False: there is none."""
        memory_mib = self._holder_mib(request, device)
        if memory_mib is None:
            return False
        self.slots_mib[device] += memory_mib
        self._held[_key(request), device] += 1
        return True

    def _holder_mib(self, request: Request, device: DeviceId) -> int | None:
        """The memory, beside all leases, of the next worker that holds no slot; None: no such."""
        found = _workers_mib(self._state, request, device)
        number = self._held[_key(request), device]
        return found[number] if number < len(found) else None


def _misfit(state: State, request: Request, device: DeviceId, slots_mib: int) -> NoFit | None:
    """The reason why no worker fits beside leases and slots, whatever its host's state is."""
    here = state.inventory.state_of(device)
    if request.sharing is Sharing.EXCLUSIVE and slots_mib:
        return NoFit.SHARED_TAKEN
    idle = here._replace(
        free_mib=here.free_mib - slots_mib,
        free_permille=COMPUTE_PERMILLE_MAX,
        reserved_for=None,
        host_state=HostState.UP,  # a moment of silence moves no slot
        health=Health.OK,
    )
    return fits(request, idle)


def _key(request: Request) -> FloorKey:
    return request.tenant, request.workload or ""


def _workers_mib(state: State, request: Request, device: DeviceId) -> list[int]:
    """The memory, beside all leases, of each worker of the workload on a device."""
    shares = state.inventory.devices[device].shares
    own = [lease for lease in shares if _key(state.leases[lease].request) == _key(request)]
    name = resident_key(request)
    residents = state.inventory.residents.of(device).values()
    return [0] * len(own) + [one.memory_mib for one in residents if one.workload == name]


# ---------------------------------------------------------------------- views


def view_of(tx: Transaction, request: Request) -> FloorView | None:
    """The floor of the workload of a request, with what there is of it; None = it has none."""
    key, floors = _key(request), tx.state.floors
    if request.workload is None:
        return None
    if (floor := floors.wanted().get(key)) is None:
        return next((one for one in floors.refused() if (one.tenant, one.workload) == key), None)
    used = sum(len(slots) for (tenant, _), slots in floors.slots.items() if tenant == key[0])
    return _view(tx.state, key, floor, used)


def views(tx: Transaction) -> tuple[tuple[FloorView, ...], int]:
    """The first floors by tenant and workload, with what there is of them, then refused ones; and
    the number that is left out."""
    state, wanted, refused = tx.state, tx.state.floors.wanted(), tx.state.floors.refused()
    used: Counter[str] = Counter()
    for (tenant, _), slots in state.floors.slots.items():
        used[tenant] += len(slots)
    shown = islice(wanted.items(), VIEWS_MAX)
    kept = tuple(_view(state, key, floor, used[key[0]]) for key, floor in shown)
    found = (*kept, *refused[: VIEWS_MAX - len(kept)])
    return found, len(wanted) + len(refused) - len(found)


def _view(state: State, key: FloorKey, floor: WarmFloor, used: int) -> FloorView:
    slots = state.floors.slots.get(key, ())
    by_device = Counter(slot.device for slot in slots if slot.device in state.inventory.devices)
    there = {one: len(_workers_mib(state, floor.request, one)) for one in by_device}
    workers = sum(min(count, there[device]) for device, count in by_device.items())
    missing = [device for device, count in by_device.items() if there[device] < count]
    why = ""
    if not _allowed(state):
        why = "warm workers are switched off (warm_workers_max, warm_memory_pct_max)"
    elif (left := floor.workers_min - len(slots)) > 0:
        why = _why_left(state, floor.request, left, used)
    elif missing:
        more = f" and {len(missing) - 3} more devices" if len(missing) > 3 else ""
        why = f"being loaded on {', '.join(missing[:3])}{more}"
    return FloorView(
        tenant=key[0], workload=key[1], workers_min=floor.workers_min, workers=workers, why=why
    )


def _why_left(state: State, request: Request, left: int, used: int) -> str:
    key = _key(request)
    most, resumes_at = _workers_max(state, key[0]), state.floors.resumes_at
    if used >= most:
        return f"its tenant has {used} workers of floors, of at most {most}"
    if resumes_at is not None and key >= resumes_at:
        return f"a device for {left} more is being searched"
    return f"no device has room for {left} more{_nearest(state, request)}"


def _nearest(state: State, request: Request) -> str:
    """The lack of the device that could have a worker, and has the most memory left."""
    inventory, slots_mib = state.inventory, state.floors.slots_mib
    groups = chain.from_iterable(inventory.index.ranked(request))
    feasible = islice(chain.from_iterable(one.nearest_first() for one in groups), NAMED_MAX)
    ranked = (
        (unavailable_reason(here) is None, here.free_mib - slots_mib.get(device, 0), device)
        for device in feasible
        for here in [inventory.state_of(device)]
    )
    is_available, left_mib, device = max(ranked, default=(False, 0, None))
    if device is None:
        return ", and no known one ever has"
    known, here = inventory.devices[device], inventory.state_of(device)
    need_mib = share_of(request, known.device, known.host).memory_mib
    reason = _misfit(state, request, device, slots_mib.get(device, 0))
    if not inventory.hosts[known.host].loads_ahead:
        lack = "does not load without a lease"
    elif not is_available or reason not in (None, NoFit.MEMORY):
        lack = f"is {REASON_TEXT[unavailable_reason(here) or reason or NoFit.MEMORY]}"
    else:
        lack = f"has {max(0, left_mib)} MiB free of {need_mib} MiB needed"
    return f": {known.host}/{known.device.index} {lack}"

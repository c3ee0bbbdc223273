"""Every client owns devices, which no other client uses: "exclusive" of the thesis.

A client is a tenant with a workload, or a tenant alone (`client`). Its requests run on devices that
it owns, oldest first. It takes a device without an owner when it has a request that no free device
of its own fits, up to `take_max_pct` of the devices that could serve it: with 50, two clients of
four devices own two each, whichever comes first.

It *steals* one from the client with the least queue time for each device, when its own is more than
`steal_pct` percent of that one's: queue time is the sum of the expected times of the waiting
requests (one second for a request of unknown time). The victim keeps at least one device. A device
that the thief owned before is stolen first, then an idle one; after a steal there is none for
`steal_pause_s`, because a stolen device begins cold. A lease is never ended for it: a stolen device
changes its owner at once, and serves the new owner when it is free. A client without any device
takes a free one of the client that owns most, once no older request can use that. A client that has
no request, and got no lease for `idle_s`, owns no free device any more.

A decision looks at the clients with requests or devices, and at the devices with room for the
smallest request: what is owned is indexed by device and by client.

Bound: no request is overtaken on the devices of its own client. A request for several devices
takes free devices of any owner, those of its client first, and may wait for these without end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from corekit.ids import DeviceId
from gpu_scheduler.api import (
    Choice,
    Declaration,
    HeldReason,
    Pause,
    Policy,
    PolicyParameter,
    Scalar,
    Values,
    View,
    Waiting,
)
from gpu_scheduler.core.inventory.available import Rank
from gpu_scheduler.core.inventory.index import preference
from gpu_scheduler.core.queue.view import PlacementKey
from gpu_scheduler.core.state.request_group import RequestGroup
from gpu_scheduler.model import Placement, Request

#: Most free devices that are compared for a request of a client without any, or for several.
FREE_MAX = 1_024
_COST = "a step for each client, each device of an idle client, and each device with room"
_NAMED_MAX = 3  #: most devices that a reason names
UNKNOWN_S = 1.0  #: the expected time of a request whose time is unknown
_TAKE_MAX = "take_max_pct"
_OWNER = "owner/"  #: device → client
_BEFORE = "before/"  #: device → the client that owned it before
_USED_S = "used_s/"  #: client → wall clock of its last grant
_STOLEN_S = "stolen_s"  #: wall clock of the last steal


class Exclusive(Policy):
    """Order: by queue key within a client; device: one that the client owns."""

    summary = "the oldest request of a client, on a device that the client owns or steals"
    parameters = (
        PolicyParameter(
            name="steal_pct",
            meaning="a queue above this part of another's steals a device of it; 0 = never",
            default=150.0,
            at_least=0.0,
            at_most=1e6,
        ),
        PolicyParameter(
            name="steal_pause_s",
            meaning="shortest time between two steals",
            default=6.0,
            at_least=0.0,
            at_most=1e6,
        ),
        PolicyParameter(
            name=_TAKE_MAX,
            meaning="most of the devices that a client owns without stealing, but one at least",
            default=100.0,
            at_least=0.0,
            at_most=100.0,
        ),
        PolicyParameter(
            name="idle_s",
            meaning="a client without requests owns no free device this long after its last grant",
            default=300.0,
            at_least=0.0,
            at_most=1e6,
        ),
        PolicyParameter(
            name="client",
            meaning="owner of devices: a tenant with a workload, or a tenant",
            default="workload",
            choices=("workload", "tenant"),
        ),
    )

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - the same for all
        bound = "(k + 1) × L, with k requests before it and no lease longer than L"
        starves = "requests for several devices"
        return Declaration(
            work_conserving=False, wait_bound=bound, starves=starves, decision_cost=_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        owners = _Owners(view)
        changed = _forgotten(view, owners)
        choice = _choice(view, owners, changed)
        if choice is None and (stolen := _stolen(view, owners)):
            changed.update(stolen)
            choice = _choice(view, owners, changed)
        if choice is not None:
            return choice
        pause_s = view.number("steal_pause_s") if _STOLEN_S in changed else _pause_s(view)
        until_s = view.at_s + pause_s if pause_s > 0 else None
        return Pause(until_s=until_s, remember=changed)

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        client, owners = _client_of(view, waiting.request), _Owners(view)
        if client not in owners.counts:
            return HeldReason(f"client {client} owns no device yet")
        own = nsmallest(_NAMED_MAX, owners.devices(client), key=view.rank)
        more = " and others" if owners.counts[client] > _NAMED_MAX else ""
        listed = ", ".join(map(view.name, own)) + more
        return HeldReason(f"client {client} owns {listed}, and steals no other yet")


def _client_of(view: View, request: Request) -> str:
    return _client(view, request.tenant, request.workload)


def _client(view: View, tenant: str, workload: str | None) -> str:
    return tenant if view.values["client"] == "tenant" else f"{tenant}/{workload or ''}"


class _Owners:
    """The owners in one decision, as remembered; free devices of idle clients have none.

    Steps: one for each client that waits or owns, and for each device of an idle client.
    """

    def __init__(self, view: View) -> None:
        self._remembered = view.remembered(_OWNER)
        self._stolen: dict[DeviceId, str] = {}
        #: Clients with requests → their tenants and workloads.
        self.waiting: dict[str, list[tuple[str, str | None]]] = {}
        for name in view.state.queue.by_workload().queues:
            if not any(view.groups_of(*name)):  # a quota holds its requests back
                continue
            self.waiting.setdefault(_client(view, *name), []).append(name)
        by_client = self._remembered.names
        self.lost = dict.fromkeys(view.unknown_devices(_OWNER))  #: remembered, without an owner now
        for client, devices in by_client.items():
            if client not in self.waiting and _is_idle(view, str(client)):
                known = [DeviceId(one) for one in devices if one not in self.lost]
                self.lost |= {one: None for one in known if not any(view.leases(one))}
        #: Owner → number of its devices.
        self.counts = {str(client): len(devices) for client, devices in by_client.items()}
        for device in self.lost:
            self._count(str(self._remembered.values[device]), -1)

    def of(self, device: DeviceId) -> str | None:
        """The owner of a device."""
        if device in self._stolen:
            return self._stolen[device]
        owner = None if device in self.lost else self._remembered.values.get(device)
        return None if owner is None else str(owner)

    def devices(self, client: str) -> Iterator[DeviceId]:
        """The devices of a client, without regard to a steal of this decision."""
        names = self._remembered.names.get(client, {})
        return (device for device in map(DeviceId, names) if device not in self.lost)

    def steal(self, device: DeviceId, thief: str, victim: str) -> None:
        """Change the owner of a device."""
        self._stolen[device] = thief
        self._count(victim, -1)
        self._count(thief, +1)

    def _count(self, client: str, by: int) -> None:
        self.counts[client] = self.counts.get(client, 0) + by
        if not self.counts[client]:
            del self.counts[client]


def _is_idle(view: View, client: str) -> bool:
    """True when the last grant of a client is long ago."""
    used_s = float(view.memory.get(_USED_S + client, 0.0))
    return view.wall_s - used_s > view.number("idle_s")


def _forgotten(view: View, owners: _Owners) -> dict[str, Scalar | None]:
    """The changes that forget what is about devices without an owner, and clients without any."""
    names = [kind + device for device in owners.lost for kind in (_OWNER, _BEFORE)]
    clients = view.remembered(_USED_S).values
    names += [_USED_S + client for client in clients if client not in owners.counts]
    return {name: None for name in names if name in view.memory}


def _choice(view: View, owners: _Owners, changed: Mapping[str, Scalar | None]) -> Choice | None:
    """The oldest request that has devices, with what is remembered besides."""
    room = _Room(view, owners)
    for group in room.candidates():
        waiting = view.first(group)
        devices = room.devices(waiting)
        if devices is not None:
            remember = {**changed, **_granted(view, waiting, devices)}
            return Choice(waiting.attempt, devices, remember)
    return None


def _granted(
    view: View, waiting: Waiting, devices: tuple[DeviceId, ...]
) -> dict[str, Scalar | None]:
    """The new owner of the device of a grant; a request for several devices leaves the owners."""
    if len(devices) > 1:
        return {}
    client = _client_of(view, waiting.request)
    return {_OWNER + devices[0]: client, _USED_S + client: view.wall_s}


# ---------------------------------------------------------------------- devices


class _Room:
    """The devices with room in one decision by owner, and the requests that may use them."""

    def __init__(self, view: View, owners: _Owners) -> None:
        self.view, self.owners = view, owners
        self.by_owner: dict[str | None, list[DeviceId]] = {}
        for device in _open_devices(view):
            self.by_owner.setdefault(owners.of(device), []).append(device)
        self._best: dict[tuple[PlacementKey, str | None], DeviceId | None] = {}

    def candidates(self) -> Iterable[RequestGroup]:
        """The groups of clients that may use a device with room, the oldest group first."""
        waiting, counts = self.owners.waiting, self.owners.counts
        if self.by_owner and (None in self.by_owner or any(one not in counts for one in waiting)):
            return self.view.fitting_groups()  # one of the first is likely to have a device
        found = dict.fromkeys(_exceptional_groups(self.view))
        for client in (one for one in self.by_owner if one in waiting):
            for name in waiting[client]:
                found |= dict.fromkeys(self.view.groups_of(*name))
        return sorted(found, key=attrgetter("first"))

    def devices(self, waiting: Waiting) -> tuple[DeviceId, ...] | None:
        """The devices for a request: its client's, then without an owner, then another's."""
        client, request = _client_of(self.view, waiting.request), waiting.request
        key = self.view.placement_key(waiting)
        may_use = client in self.by_owner or client not in self.owners.counts
        if request.count == 1 and key is not None and not may_use and None not in self.by_owner:
            return None
        placed = self.view.place(waiting)
        if placed is None or not self.view.is_allowed(waiting):
            return None
        if request.count > 1 and request.placement is Placement.SAME_HOST:
            return placed
        if request.count > 1 or key is None or client not in self.owners.counts:
            return self._of_sample(waiting, client)
        best = self._best_of(waiting, key, client)
        if best is None and None in self.by_owner and self._may_take_more(waiting, client):
            best = self._best_of(waiting, key, None)
        return None if best is None else (best,)

    def _best_of(self, waiting: Waiting, key: PlacementKey, owner: str | None) -> DeviceId | None:
        """The device of an owner that fits: by the preferences of the request, then in order."""
        if (key, owner) not in self._best:
            view, devices = self.view, self.by_owner.get(owner, ())
            fitting = [device for device in devices if view.fits(waiting, device)]
            ranked = ((_preference(view, waiting, one), view.rank(one), one) for one in fitting)
            self._best[key, owner] = min(ranked, default=(None, None, None))[2]
        return self._best[key, owner]

    def _of_sample(self, waiting: Waiting, client: str) -> tuple[DeviceId, ...] | None:
        """The devices for a request for several, or of a client that may take another's."""
        counts, count = self.owners.counts, waiting.request.count
        may_take_another = count > 1 or client not in counts
        may_take_more = count > 1 or self._may_take_more(waiting, client)
        ranked = []
        for device in self.view.sample(waiting, FREE_MAX):
            whose = self.owners.of(device)
            if whose == client:
                ranked.append((0, 0, self.view.rank(device)))
            elif whose is None and may_take_more:
                ranked.append((1, 0, self.view.rank(device)))
            elif whose is not None and may_take_another:
                ranked.append((2, -counts[whose], self.view.rank(device)))
        chosen = tuple(DeviceId(rank[2]) for *_, rank in sorted(ranked)[:count])
        return chosen if len(chosen) == count else None

    def _may_take_more(self, waiting: Waiting, client: str) -> bool:
        """True while a client owns less of the devices that serve its request than it may take."""
        view, count = self.view, self.owners.counts.get(client, 0)
        part = view.number(_TAKE_MAX) / 100
        if part >= 1 or not count:
            return True
        serving = (device for device in view.after(None) if view.serves(waiting, device))
        needed = (count + 1) / part if part else math.inf  # devices, of which one more is its part
        return part > 0 and sum(1 for _ in islice(serving, math.ceil(needed))) >= needed


def _exceptional_groups(view: View) -> Iterator[RequestGroup]:
    """The groups for several devices, and those whose first request has devices reserved."""
    index = view.state.queue.by_workload()
    for request_class, of_class in index.by_class.items():
        if request_class.request.count > 1:
            firsts = (key for keys in of_class.firsts.values() for key in keys)
            yield from (index.by_first[key[3]] for key in firsts)
    preempting = (index.by_first.get(attempt) for attempt in view.state.preemptions)
    yield from (group for group in preempting if group is not None)


def _open_devices(view: View) -> Iterator[DeviceId]:
    """The devices that have the compute which a waiting request asks for at least.

    Every request for one device without devices reserved for it fits only some of these.
    """
    classes = view.state.queue.by_workload().by_class
    least = min((one.request.compute_guarantee_permille for one in classes), default=0)
    for group in view.state.inventory.index.groups.values():
        for _, row in group.rows_up_from(least):
            yield from row.freest(0)


def _preference(view: View, waiting: Waiting, device: DeviceId) -> tuple[int, int]:
    """The rank of a device in the preferences of a request; lower is better."""
    return preference(waiting.request, view.state.inventory.state_of(device).device_class)


# ---------------------------------------------------------------------- stealing


def _pause_s(view: View) -> float:
    """The time until the next steal is allowed."""
    last_s = view.memory.get(_STOLEN_S)
    if last_s is None:
        return 0.0
    return max(0.0, view.number("steal_pause_s") - (view.wall_s - float(last_s)))


def _stolen(view: View, owners: _Owners) -> dict[str, Scalar | None]:
    """The changes of owners by stealing, also applied to `owners`."""
    ratio = view.number("steal_pct") / 100
    if not ratio or _pause_s(view) > 0:
        return {}
    theft = _theft(view, owners, ratio)
    if theft is None:
        return {}
    thief, victim, device = theft
    owners.steal(device, thief, victim)
    return {_OWNER + device: thief, _BEFORE + device: victim, _STOLEN_S: view.wall_s}


def _theft(view: View, owners: _Owners, ratio: float) -> tuple[str, str, DeviceId] | None:
    """Thief, victim and device of the next steal; None when no queue is that much fuller."""
    fullness = {client: _fullness(view, owners, client) for client in owners.counts}
    rich = [client for client, count in owners.counts.items() if count > 1]
    if not rich:
        return None
    victim = min(rich, key=lambda client: (fullness[client], client))
    thief = max(fullness, key=lambda client: (fullness[client], client))
    if thief == victim or fullness[thief] <= ratio * fullness[victim]:
        return None

    def order(device: DeviceId) -> tuple[bool, bool, Rank]:
        other = view.recalled(_BEFORE + device) != thief
        return other, any(view.leases(device)), view.rank(device)

    return thief, victim, min(owners.devices(victim), key=order)


def _fullness(view: View, owners: _Owners, client: str) -> float:
    """The expected time of the waiting requests of a client, for each of its devices."""
    queues = owners.waiting.get(client, ())
    queued_s = sum(view.queued_s(*name, unknown_s=UNKNOWN_S) for name in queues)
    return queued_s / owners.counts[client]


POLICY = Exclusive()

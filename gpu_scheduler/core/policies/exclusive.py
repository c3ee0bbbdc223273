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

Bound: no request is overtaken on the devices of its own client. A request for several devices
takes free devices of any owner, those of its client first, and may wait for these without end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.core.placement.device_order import Rank
from gpu_scheduler.core.queue.policy import Choice, Declaration, HeldReason, Pause, Values
from gpu_scheduler.core.queue.policy_view import View
from gpu_scheduler.model import Placement, Request
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Scalar, Waiting

#: Most free devices that are compared for one request.
FREE_MAX = 1_024
UNKNOWN_S = 1.0  #: the expected time of a request whose time is unknown
_TAKE_MAX = "take_max_pct"
_OWNER = "owner/"  #: device → client
_BEFORE = "before/"  #: device → the client that owned it before
_USED_S = "used_s/"  #: client → wall clock of its last grant
_STOLEN_S = "stolen_s"  #: wall clock of the last steal


@dataclass(slots=True)
class Client:
    """One client: its devices and its queue."""

    devices: dict[DeviceId, None] = field(default_factory=dict)
    queued_s: float = 0.0  #: the sum of the expected times of its waiting requests

    @property
    def fullness(self) -> float:
        """The queue time for each of its devices."""
        return self.queued_s / len(self.devices)


class Exclusive:
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
        return Declaration(work_conserving=False, wait_bound=bound, starves=starves)

    def decide(self, view: View) -> Choice | Pause:
        owners = _owners(view)
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
        client, owners = _client_of(view, waiting.request), _owners(view)
        own = [view.name(device) for device, owner in owners.items() if owner == client]
        if not own:
            return HeldReason(f"client {client} owns no device yet")
        listed = ", ".join(own[:3]) + (" and others" if len(own) > 3 else "")
        return HeldReason(f"client {client} owns {listed}, and steals no other yet")


def _client_of(view: View, request: Request) -> str:
    if view.values["client"] == "tenant":
        return request.tenant
    return f"{request.tenant}/{request.workload or ''}"


def _owners(view: View) -> dict[DeviceId, str]:
    """The owner of each device that has one; none of a free device of an idle client."""
    remembered = {
        DeviceId(name.removeprefix(_OWNER)): str(owner)
        for name, owner in view.memory.items()
        if name.startswith(_OWNER)
    }
    silent = dict.fromkeys(remembered.values())  # clients without requests
    for group in view.groups():
        silent.pop(_client_of(view, view.first(group).request), None)
    idle = {client: None for client in silent if _is_idle(view, client)}
    return {
        device: owner
        for device, owner in remembered.items()
        if view.is_known(device) and (owner not in idle or any(view.leases(device)))
    }


def _is_idle(view: View, client: str) -> bool:
    """True when the last grant of a client is long ago."""
    used_s = float(view.memory.get(_USED_S + client, 0.0))
    return view.wall_s - used_s > view.number("idle_s")


def _forgotten(view: View, owners: Mapping[DeviceId, str]) -> dict[str, Scalar | None]:
    """The changes that forget what is about devices without an owner, and clients without any."""
    clients = dict.fromkeys(owners.values())
    changed: dict[str, Scalar | None] = {}
    for name in view.memory:
        kind, _, whose = name.partition("/")
        if kind + "/" == _USED_S:
            known = whose in clients
        else:
            known = name == _STOLEN_S or DeviceId(whose) in owners
        if not known:
            changed[name] = None
    return changed


def _choice(
    view: View, owners: Mapping[DeviceId, str], changed: Mapping[str, Scalar | None]
) -> Choice | None:
    """The oldest request that has devices, with what is remembered besides."""
    counts = Counter(owners.values())
    for group in view.fitting_groups():
        waiting = view.first(group)
        devices = _devices(view, waiting, owners, counts)
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


def _devices(
    view: View, waiting: Waiting, owners: Mapping[DeviceId, str], counts: Mapping[str, int]
) -> tuple[DeviceId, ...] | None:
    """The devices for a request: its client's, then without an owner, then another's."""
    request, client = waiting.request, _client_of(view, waiting.request)
    if request.count > 1 and request.placement is Placement.SAME_HOST:
        return view.place(waiting)
    may_take_another = request.count > 1 or client not in counts
    may_take_more = request.count > 1 or _may_take_more(view, waiting, counts.get(client, 0))
    ranked = []
    for device in view.sample(waiting, FREE_MAX):
        whose = owners.get(device)
        if whose == client:
            ranked.append((0, 0, view.rank(device)))
        elif whose is None and may_take_more:
            ranked.append((1, 0, view.rank(device)))
        elif whose is not None and may_take_another:
            ranked.append((2, -counts[whose], view.rank(device)))
    chosen = tuple(DeviceId(rank[2]) for *_, rank in sorted(ranked)[: request.count])
    return chosen if len(chosen) == request.count else None


def _may_take_more(view: View, waiting: Waiting, count: int) -> bool:
    """True while a client owns less of the devices that serve its request than it may take."""
    part = view.number(_TAKE_MAX) / 100
    if part >= 1 or not count:
        return True
    serving = (device for device in view.after(None) if view.serves(waiting, device))
    needed = (count + 1) / part if part else math.inf  # devices, of which one more is its part
    return part > 0 and sum(1 for _ in islice(serving, math.ceil(needed))) >= needed


# ---------------------------------------------------------------------- stealing


def _pause_s(view: View) -> float:
    """The time until the next steal is allowed."""
    last_s = view.memory.get(_STOLEN_S)
    if last_s is None:
        return 0.0
    return max(0.0, view.number("steal_pause_s") - (view.wall_s - float(last_s)))


def _stolen(view: View, owners: dict[DeviceId, str]) -> dict[str, Scalar | None]:
    """The changes of owners by stealing, also applied to `owners`."""
    ratio = view.number("steal_pct") / 100
    if not ratio or _pause_s(view) > 0:
        return {}
    theft = _theft(view, _clients(view, owners), ratio)
    if theft is None:
        return {}
    thief, victim, device = theft
    owners[device] = thief
    return {_OWNER + device: thief, _BEFORE + device: victim, _STOLEN_S: view.wall_s}


def _clients(view: View, owners: Mapping[DeviceId, str]) -> dict[str, Client]:
    """The clients that own devices."""
    clients: dict[str, Client] = {}
    for device, owner in owners.items():
        clients.setdefault(owner, Client()).devices[device] = None
    for group in view.groups():
        waiting = view.first(group)
        client = clients.get(_client_of(view, waiting.request))
        if client is not None:
            expected_s = view.expected_s(waiting.request)
            each_s = UNKNOWN_S if expected_s is None else expected_s
            client.queued_s += each_s * len(group.keys)
    return clients


def _theft(
    view: View, clients: Mapping[str, Client], ratio: float
) -> tuple[str, str, DeviceId] | None:
    """Thief, victim and device of the next steal; None when no queue is that much fuller."""
    rich = [name for name, client in clients.items() if len(client.devices) > 1]
    if not rich:
        return None
    victim = min(rich, key=lambda name: (clients[name].fullness, name))
    thief = max(clients, key=lambda name: (clients[name].fullness, name))
    if thief == victim or clients[thief].fullness <= ratio * clients[victim].fullness:
        return None

    def preference(device: DeviceId) -> tuple[bool, bool, Rank]:
        other = view.recalled(_BEFORE + device) != thief
        return other, any(view.leases(device)), view.rank(device)

    return thief, victim, min(clients[victim].devices, key=preference)


POLICY = Exclusive()

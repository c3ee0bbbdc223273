"""Every client owns devices, which nobody else uses: "exclusive" of the thesis.

A client is a tenant with a workload, or a tenant alone (`client`). Its requests run on devices that
it owns, oldest first. It takes a device without an owner when it has a request that no free device
of its own fits. It *steals* one from the client with the least queue time for each device, when its
own is more than `steal_pct` percent of that one's: queue time is the sum of the expected times of
the waiting requests (one second for a request of unknown time), and the owner keeps at least one.
An idle device is stolen first. A lease is never ended for it: a stolen device changes its owner at
once, and serves the new owner when it is free. A client without any device takes a free one of
whoever owns most, once no older request can use that.

Bound: no request is overtaken on the devices of its own client. A request for several devices
takes free devices of any owner, those of its client first, and may wait for these without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.core.queue.policy import Choice, Declaration, HeldReason, Pause, Values
from gpu_scheduler.core.queue.policy_view import View
from gpu_scheduler.model import Placement
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Scalar, Waiting

#: Most free devices that are compared for one request.
FREE_MAX = 1_024
UNKNOWN_S = 1.0  #: the expected time of a request whose time is unknown
_OWNER = "owner/"  #: device → client
_TURN = "turn/"  #: device → number of its last grant
_TURNS = "turns"  #: number of grants


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
        changed: dict[str, Scalar | None] = {
            name: None for name in view.memory if "/" in name and not _is_known(view, name)
        }
        changed.update(_stolen(view, owners))
        for group in view.groups():
            waiting = view.first(group)
            devices = _devices(view, waiting, owners)
            if devices is not None:
                return Choice(waiting.attempt, devices, {**changed, **_granted(view, waiting, devices)})
        return Pause(remember=changed)

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        client, owners = _client_of(view, waiting), _owners(view)
        own = [view.name(device) for device, owner in owners.items() if owner == client]
        if not own:
            return HeldReason(f"client {client} owns no device yet")
        listed = ", ".join(own[:3]) + (" and others" if len(own) > 3 else "")
        return HeldReason(f"client {client} owns {listed}, and steals no other yet")


def _is_known(view: View, name: str) -> bool:
    return view.is_known(name.partition("/")[2])


def _client_of(view: View, waiting: Waiting) -> str:
    request = waiting.request
    if view.values["client"] == "tenant":
        return request.tenant
    return f"{request.tenant}/{request.workload or ''}"


def _owners(view: View) -> dict[DeviceId, str]:
    """The owner of each device that has one."""
    owners: dict[DeviceId, str] = {}
    for name in view.memory:
        if name.startswith(_OWNER) and _is_known(view, name):
            owners[DeviceId(name.removeprefix(_OWNER))] = view.recalled(name)
    return owners


def _granted(
    view: View, waiting: Waiting, devices: tuple[DeviceId, ...]
) -> dict[str, Scalar | None]:
    """The new owner of the device of a grant; a request for several devices leaves the owners."""
    turn = int(view.memory.get(_TURNS, 0)) + 1
    changed: dict[str, Scalar | None] = {_TURNS: turn}
    changed.update((_TURN + device, turn) for device in devices)
    if len(devices) == 1:
        changed[_OWNER + devices[0]] = _client_of(view, waiting)
    return changed


# ---------------------------------------------------------------------- devices


def _devices(
    view: View, waiting: Waiting, owners: Mapping[DeviceId, str]
) -> tuple[DeviceId, ...] | None:
    """The devices for a request: its client's, then without an owner, then another's."""
    request, client = waiting.request, _client_of(view, waiting)
    if request.count > 1 and request.placement is Placement.SAME_HOST:
        return view.place(waiting)
    counts: dict[str, int] = {}
    for owner in owners.values():
        counts[owner] = counts.get(owner, 0) + 1
    may_take_another = request.count > 1 or client not in counts
    ranked = []
    for device in islice(view.fitting(waiting), FREE_MAX):
        owner = owners.get(device)
        if owner == client:
            ranked.append(((0, 0, _turn(view, device)), device))
        elif owner is None:
            ranked.append(((1, 0, _turn(view, device)), device))
        elif may_take_another:
            ranked.append(((2, -counts[owner], _turn(view, device)), device))
    ranked.sort(key=lambda one: (one[0], view.rank(one[1])))
    devices = tuple(device for _, device in ranked[: request.count])
    return devices if len(devices) == request.count else None


def _turn(view: View, device: DeviceId) -> int:
    """The number of the last grant of a device; 0 = never granted."""
    return int(view.memory.get(_TURN + device, 0))


# ---------------------------------------------------------------------- stealing


def _stolen(view: View, owners: dict[DeviceId, str]) -> dict[str, Scalar | None]:
    """The changes of owners by stealing, also applied to `owners`."""
    ratio = view.number("steal_pct") / 100
    changed: dict[str, Scalar | None] = {}
    if not ratio:
        return changed
    clients = _clients(view, owners)
    for _ in range(len(owners)):
        theft = _theft(view, clients, ratio)
        if theft is None:
            break
        thief, victim, device = theft
        del clients[victim].devices[device]
        clients[thief].devices[device] = None
        owners[device] = thief
        changed[_OWNER + device] = thief
    return changed


def _clients(view: View, owners: Mapping[DeviceId, str]) -> dict[str, Client]:
    """The clients that own devices."""
    clients: dict[str, Client] = {}
    for device, owner in owners.items():
        clients.setdefault(owner, Client()).devices[device] = None
    for group in view.groups():
        waiting = view.first(group)
        client = clients.get(_client_of(view, waiting))
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
    devices = clients[victim].devices
    device = min(devices, key=lambda one: (any(view.leases(one)), _turn(view, one), view.rank(one)))
    return thief, victim, device


POLICY = Exclusive()

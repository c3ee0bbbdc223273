"""Round robin over the devices: a strict cycle, which waits for a busy device.

With `queues: one` only the oldest request may start, on the device that follows the last one
granted, by host and index; it waits for that device even if others are free. A device that is out
of service, or that could never serve the request, is passed over. With `queues: device` every
request joins the queue of the next device as it arrives, and the queues are independent.

Bound: nothing overtakes a request in its queue, and the device at its head is free within the
length of a lease. With a queue for each device, a request for several devices starts from the
queue of one, on the devices of the usual placement, and may wait for these without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

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
from gpu_scheduler.model import Placement

#: Most waiting requests that have a place in the queue of a device; later ones get one as these go.
ASSIGNED_MAX = 2_000
_LAST = "last"  #: the last device of the cycle that was granted or assigned
_COST = "a step for each available device, and for each request that waits in their queues"
_OF = "queue/"  #: attempt → the device in whose queue it waits


class RoundRobin(Policy):
    """Order: by queue key; device: the next in the cycle, free or not."""

    summary = "the oldest request, on the next device in turn, even if that is busy"
    parameters = (
        PolicyParameter(
            name="queues",
            meaning="one queue, which a busy device blocks, or one for each device",
            default="one",
            choices=("one", "device"),
        ),
    )

    def declare(self, values: Values) -> Declaration:
        bound = "(k + 1) × L, with k requests before it and no lease longer than L"
        starves = "requests for several devices" if values["queues"] == "device" else ""
        return Declaration(
            work_conserving=False, wait_bound=bound, starves=starves, decision_cost=_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        if view.values["queues"] == "device":
            return _from_device_queues(view)
        turn = _turn(view)
        if turn is None:
            return Pause()
        waiting, devices = turn
        if not all(view.fits(waiting, device) for device in devices):
            return Pause()
        return Choice(waiting.attempt, devices, {_LAST: devices[-1]})

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        if view.values["queues"] == "device":
            device = DeviceId(view.recalled(_OF + waiting.attempt))
            named = view.name(device) if view.is_known(device) else "a device"
            return HeldReason(f"it waits in the queue of {named}")
        turn = _turn(view)
        if turn is None:
            return None
        head, devices = turn
        named = ", ".join(view.name(device) for device in devices)
        which = "its turn is" if head.attempt == waiting.attempt else f"{head.attempt} is next,"
        return HeldReason(f"{which} on {named}")


def _turn(view: View) -> tuple[Waiting, tuple[DeviceId, ...]] | None:
    """The oldest request that available devices can serve, and its turn in the cycle."""
    for group in view.groups():
        waiting = view.first(group)
        devices = _next(view, waiting)
        if devices:
            return waiting, devices
    return None


def _next(view: View, waiting: Waiting) -> tuple[DeviceId, ...]:
    """The next devices in the cycle that can serve the request; empty when there are too few."""
    request = waiting.request
    if request.count > 1 and request.placement is Placement.SAME_HOST:
        return view.place(waiting) or ()
    cycle = (device for device in _cycle(view) if view.serves(waiting, device))
    devices = tuple(islice(cycle, request.count))
    return devices if len(devices) == request.count else ()


def _cycle(view: View, last: Scalar | None = None) -> Iterator[DeviceId]:
    after = DeviceId(str(last)) if last is not None else DeviceId(view.recalled(_LAST))
    return view.after(view.rank(after) if view.is_known(after) else None)


# ---------------------------------------------------------------------- a queue for each device


def _from_device_queues(view: View) -> Choice | Pause:
    """The first request of the queue of a device that is free."""
    changed = _assigned(view)
    heads: dict[str, None] = {}  # devices whose first request was seen
    for waiting in islice(view.waiting(), ASSIGNED_MAX):
        name = _OF + waiting.attempt
        device = changed.get(name) or view.recalled(name)
        if not isinstance(device, str) or not device or device in heads:
            continue
        heads[device] = None
        devices = _devices(view, waiting, DeviceId(device))
        if devices is not None:
            return Choice(waiting.attempt, devices, {**changed, name: None})
    return Pause(remember=changed)


def _devices(view: View, waiting: Waiting, device: DeviceId) -> tuple[DeviceId, ...] | None:
    if waiting.request.count > 1:
        return view.place(waiting)
    return (device,) if view.fits(waiting, device) else None


def _assigned(view: View) -> dict[str, Scalar | None]:
    """The changes that give every early request a device, and forget requests that are gone."""
    changed: dict[str, Scalar | None] = {}
    for name in view.memory:
        if name.startswith(_OF) and not view.is_waiting(name.removeprefix(_OF)):
            changed[name] = None
    for waiting in islice(view.waiting(), ASSIGNED_MAX):
        name = _OF + waiting.attempt
        device = DeviceId(view.recalled(name))
        if view.is_known(device) and view.serves(waiting, device):
            continue
        cycle = _cycle(view, changed.get(_LAST))
        following = next((one for one in cycle if view.serves(waiting, one)), None)
        if following is not None:
            changed[name] = changed[_LAST] = following
    return changed


POLICY = RoundRobin()

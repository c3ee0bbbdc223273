"""Warm first, after HARDLESS: a device that finished is offered work of the same configuration.

The queue is scanned before anything is taken: the oldest request whose workload a device with room
has loaded is served before older requests of other workloads; without one, the oldest request that
fits is. A device has a workload loaded if its host published a warm worker of it, or if a lease of
it has just ended there: the policy remembers the last workload of each slot, so that it need not
wait for the next report. A wrong guess costs a cold start, as any other choice would. The slots of
a device that left the inventory are forgotten with the next grant; above `DEVICES_MAX` devices
those of no further one are remembered, and only its published workers count.

The oldest request is overtaken `overtakes_max` times at most, by requests on devices that it could
use. Then it goes first; and if it does not fit, as many devices as it needs, those nearest to being
free, are kept for it. HARDLESS itself has no bound, and can starve a workload.

Bound: with k requests before it and no lease longer than L, a request waits at most
(k + 1) × (overtakes_max + 2) × L, as under `fifo`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.api import (
    GROUPS_COST,
    MEMORY_CHARS_MAX,
    MEMORY_MAX,
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
from gpu_scheduler.core.leases.lengths import free_for_s
from gpu_scheduler.core.placement.eviction import resident_key
from gpu_scheduler.core.queue.view import SAMPLE_MAX
from gpu_scheduler.model import Request

#: Most devices that are compared to be kept for an overtaken request.
KEPT_SAMPLE_MAX = 4096
_OVERTAKES = "overtakes_max"
_HEAD, _PASSED = "head", "passed"  #: the oldest request, and the number of its overtakes
_SLOTS = "slots/"  #: device → the last workload of each of its slots, oldest first
_NO_WORKLOAD = "-"
_DIGITS = 12  #: of a workload's key: they distinguish those of one device
#: Most devices whose slots are remembered, beside the two values of the oldest request.
DEVICES_MAX = MEMORY_MAX - 2
_SLOTS_MAX = MEMORY_CHARS_MAX // (_DIGITS + 1)


class WarmFirst(Policy):
    """Order: warm requests by queue key, then all by queue key; device: a warm one."""

    summary = "the oldest request that a device has loaded already, else the oldest that fits"
    parameters = (
        PolicyParameter(
            name=_OVERTAKES,
            meaning="most overtakes of the oldest request by warm ones",
            default=16.0,
            at_least=0.0,
            at_most=1e6,
        ),
    )

    def declare(self, values: Values) -> Declaration:
        most = f"{float(values[_OVERTAKES]):.0f} + 2"
        bound = f"(k + 1) × ({most}) × L, with k requests before it, no lease longer than L"
        return Declaration(work_conserving=False, wait_bound=bound, decision_cost=GROUPS_COST)

    def decide(self, view: View) -> Choice | Pause:
        head = _head(view)
        if head is None:
            return Pause()
        kept: Collection[DeviceId] = ()
        if _is_overdue(view, head):
            if (devices := view.place(head)) is not None:
                return _choice(view, head, head, devices)
            kept = _kept(view, head)
        requests = [view.first(group) for group in view.fitting_groups()]
        for waiting in requests:
            if (device := _warm_device(view, waiting, kept)) is not None:
                return _choice(view, head, waiting, (device,))
        for waiting in requests:
            if (devices := _any_devices(view, waiting, kept)) is not None:
                return _choice(view, head, waiting, devices)
        return Pause()

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        head = _head(view) or waiting
        if head.attempt == waiting.attempt or not _is_overdue(view, head):
            return None
        if view.place(waiting) is None or _any_devices(view, waiting, _kept(view, head)):
            return None  # devices are not free, or it is next
        count = int(view.number(_OVERTAKES))
        return HeldReason(
            f"the free devices are kept for {head.attempt}, which {count} later ones overtook"
        )


def _head(view: View) -> Waiting | None:
    """The oldest request."""
    return next(map(view.first, view.groups()), None)


def _is_overdue(view: View, head: Waiting) -> bool:
    """True when the oldest request has been overtaken as often as it may be."""
    return _passed(view, head) >= view.number(_OVERTAKES)


def _passed(view: View, head: Waiting) -> int:
    passed = view.memory.get(_PASSED, 0)
    return int(passed or 0) if view.recalled(_HEAD) == head.attempt else 0


def _kept(view: View, head: Waiting) -> tuple[DeviceId, ...]:
    """The devices that are kept for an overdue request: those nearest to being free for it."""
    serving = (device for device in view.after(None) if view.serves(head, device))

    def nearness(device: DeviceId) -> tuple[float, tuple[str, int, str]]:
        free_s = free_for_s(view.state, view.budget, device, head.request)
        return (math.inf if free_s is None else free_s, view.rank(device))

    return tuple(sorted(islice(serving, KEPT_SAMPLE_MAX), key=nearness)[: head.request.count])


def _warm_device(view: View, waiting: Waiting, kept: Collection[DeviceId]) -> DeviceId | None:
    """A device with room that has the workload of the request loaded; published ones first.

    A warm worker is published some time after a lease that ended left it, perhaps after the next
    lease began to use it: one of a workload with a live lease on the device does not count.
    """
    if waiting.request.count > 1 or waiting.request.workload is None:
        return None
    own, ended = _slot_of(waiting.request), None
    for device in _free(view, waiting, kept):
        is_idle, is_warm = own in _idle_slots(view, device), view.is_warm(waiting.request, device)
        if is_warm and (is_idle or not _live_slots(view, device)[own]):
            return device
        if is_idle and ended is None:
            ended = device
    return ended


def _any_devices(
    view: View, waiting: Waiting, kept: Collection[DeviceId]
) -> tuple[DeviceId, ...] | None:
    """The devices of the usual placement, without those that are kept."""
    devices = view.place(waiting)
    if devices is None or not any(device in kept for device in devices):
        return devices
    if waiting.request.count > 1:
        return None
    other = next(_free(view, waiting, kept), None)
    return None if other is None else (other,)


def _free(view: View, waiting: Waiting, kept: Collection[DeviceId]) -> Iterator[DeviceId]:
    fitting = (device for device in view.fitting(waiting) if device not in kept)
    return islice(fitting, SAMPLE_MAX)


# ---------------------------------------------------------------------- memory


def _choice(view: View, head: Waiting, waiting: Waiting, devices: tuple[DeviceId, ...]) -> Choice:
    """The grant, with the workloads of its slots and the overtakes of the oldest request."""
    remember: dict[str, Scalar | None] = {
        _SLOTS + gone: None for gone in view.unknown_devices(_SLOTS)
    }
    known = view.remembered(_SLOTS).values
    left = DEVICES_MAX - len(known) + len(remember)
    for device in devices:
        left -= device not in known
        if device in known or left >= 0:
            remember[_SLOTS + device] = " ".join(_slots_with(view, device, waiting.request))
    if waiting.attempt == head.attempt:
        remember |= {_HEAD: None, _PASSED: None}
    elif any(view.serves(head, device) for device in devices):
        remember |= {_HEAD: head.attempt, _PASSED: _passed(view, head) + 1}
    return Choice(waiting.attempt, devices, remember)


def _slots_with(view: View, device: DeviceId, request: Request) -> list[str]:
    """The slots of a device after a grant: it takes the slot of its own workload, if that is idle,
    else the one that is idle for the longest time, else one more."""
    slots, idle, own = _slots(view, device), _idle_slots(view, device), _slot_of(request)
    if idle:
        slots.remove(own if own in idle else idle[0])
    return [*slots, own][-_SLOTS_MAX:]


def _slots(view: View, device: DeviceId) -> list[str]:
    return view.recalled(_SLOTS + device).split()


def _idle_slots(view: View, device: DeviceId) -> list[str]:
    """The last workloads of the slots without a lease, the longest idle first."""
    live = _live_slots(view, device)
    idle: list[str] = []
    for workload in reversed(_slots(view, device)):  # the newest are those of the live leases
        if live[workload]:
            live[workload] -= 1
        else:
            idle.insert(0, workload)
    return idle


def _live_slots(view: View, device: DeviceId) -> Counter[str]:
    return Counter(_slot_of(entry.request) for entry in view.leases(device))


def _slot_of(request: Request) -> str:
    key = resident_key(request)
    return _NO_WORKLOAD if key is None else key[-_DIGITS:]


POLICY = WarmFirst()

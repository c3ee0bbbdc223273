"""Warm and cold starts for deciding policies: the best devices of a request, patience, overdue.

A request whose workload is loaded somewhere waits for a warm worker: the longer, the more devices
have loaded it already, up to three. A request that waited for too long is
overdue: it is next, and what could serve it is kept free for it. So the patience of others, and
their shorter times, delay it by no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.queue.policy import HeldReason
from gpu_scheduler.core.queue.view import PlacementKey, View
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Waiting

PATIENCE = PolicyParameter(
    name="patience_s",
    meaning="wait for a warm worker, times the devices that have loaded the workload, up to 3",
    default=5.0,
    at_least=0.0,
)
OVERDUE = PolicyParameter(
    name="overdue_s",
    meaning="a request that waited for this long is next, and devices are kept free for it",
    default=600.0,
    at_least=0.0,
)
#: The most by which patience is multiplied: a request of a popular workload does not wait for long.
PATIENCE_FACTOR_MAX = 3
#: The most workloads that one decision compares, those that wait longest.
GROUPS_MAX = 64
#: The cost of a decision that compares them.
STARTS_COST = f"a step for up to {GROUPS_MAX} groups that fit, and for 256 free devices of each"
#: The bound on waiting of a policy that serves overdue requests first.
WAIT_BOUND = "overdue_s + (k + 1) × L, with k overdue requests before it and no lease longer than L"


class Start(NamedTuple):
    """A start that is possible now."""

    waiting: Waiting
    devices: tuple[DeviceId, ...]
    warm: bool  #: every device has a warm worker of the workload
    wait_s: float = 0.0  #: the patience that a cold start still needs; 0 = none


def overdue(view: View) -> Waiting | None:
    """The first request in the order of the queue that waited for too long."""
    return view.overdue(view.number(OVERDUE.name))


class Starts:
    """The best starts that are possible now, for one question.

    Devices that could serve `head`, an overdue request, are used by no other request.
    """

    def __init__(self, view: View, head: Waiting | None) -> None:
        self.view, self.head = view, head
        #: The best devices for workloads that no device has loaded.
        self._cold: dict[PlacementKey, tuple[DeviceId, ...]] = {}

    def all(self) -> list[Start]:
        """The starts of the `GROUPS_MAX` workloads that wait longest among those that fit."""
        groups = islice(self.view.fitting_groups(), GROUPS_MAX)
        found = (self.best(self.view.first(group)) for group in groups)
        return [start for start in found if start is not None]

    def best(self, waiting: Waiting) -> Start | None:
        """The best start of a request; None when no device is free for it.

        A warm device is best, then one where nothing is evicted or the least to load again, then
        one with the fewest residents.
        """
        request = waiting.request
        if request.count > 1:
            placed = self.view.place(waiting) or ()
            devices = () if self._any_kept(placed) else placed
            warm = all(self.view.is_warm(request, device) for device in devices)
        else:
            devices, warm = self._device(waiting)
        if not devices:
            return None
        return Start(waiting, devices, warm, 0.0 if warm else patience_s(self.view, waiting))

    def _device(self, waiting: Waiting) -> tuple[tuple[DeviceId, ...], bool]:
        """The best device of a request for one; True when it is warm."""
        if self.view.is_loaded(waiting.request):
            free = self._free(waiting)
            hot = [device for device in free if self.view.is_warm(waiting.request, device)]
            return self._cheapest(waiting, hot or free), bool(hot)
        key = self.view.placement_key(waiting)
        if key is None:
            return self._cheapest(waiting, self._free(waiting)), False
        if key not in self._cold:
            self._cold[key] = self._cheapest(waiting, self._free(waiting))
        return self._cold[key], False

    def _free(self, waiting: Waiting) -> list[DeviceId]:
        return [one for one in self.view.sample(waiting) if not self._any_kept((one,))]

    def _any_kept(self, devices: Iterable[DeviceId]) -> bool:
        head = self.head
        return head is not None and any(self.view.serves(head, device) for device in devices)

    def _cheapest(self, waiting: Waiting, free: list[DeviceId]) -> tuple[DeviceId, ...]:
        cost = partial(self.view.eviction_cost, waiting)
        return (min(free, key=cost),) if free else ()


def patience_s(view: View, waiting: Waiting) -> float:
    """The time for which a request still waits for a warm worker, before a cold start.

    0 under a policy without the parameter.
    """
    if PATIENCE.name not in view.values:
        return 0.0
    whole_s = view.number(PATIENCE.name) * min(view.workers(waiting.request), PATIENCE_FACTOR_MAX)
    return max(0.0, min(whole_s, view.number(OVERDUE.name)) - view.waits_s(waiting))


def held_for_warm(view: View, waiting: Waiting) -> HeldReason | None:
    """The reason why a request waits although a device is free."""
    head = overdue(view)
    if head is not None and head.attempt != waiting.attempt:
        start = Starts(view, None).best(waiting)
        if start is not None and any(view.serves(head, device) for device in start.devices):
            return HeldReason(f"its devices are kept free for {head.attempt}, which is overdue")
    start = Starts(view, head).best(waiting)
    if start is None or start.warm or start.wait_s <= 0:
        return None
    count = view.workers(waiting.request)
    where = f"{count} device{'s have' if count > 1 else ' has'} loaded its workload"
    text = f"{where}: it waits {start.wait_s:.1f} s more for one of them before a cold start"
    return HeldReason(text, view.at_s + start.wait_s)

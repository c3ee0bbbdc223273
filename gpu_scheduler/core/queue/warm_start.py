"""Warm and cold starts for deciding policies: the best devices of a request, patience, overdue.

A request whose workload is loaded somewhere waits for a warm worker: the longer, the more devices
have loaded it already, up to three. A request that waited for too long is
overdue: it is next, and what could serve it is kept free for it. So the patience of others, and
their shorter times, delay it by no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.queue.policy import HeldReason
from gpu_scheduler.core.queue.policy_view import SAMPLE_MAX, View
from gpu_scheduler.core.queue.workload_group import WorkloadGroup
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
#: The most waiting workloads that one decision compares, those that wait longest.
GROUPS_MAX = 64
#: The bound on waiting of a policy that serves overdue requests first.
WAIT_BOUND = "overdue_s + (k + 1) × L, with k overdue requests before it and no lease longer than L"


class Start(NamedTuple):
    """A start that is possible now."""

    waiting: Waiting
    devices: tuple[DeviceId, ...]
    warm: bool  #: every device has a warm worker of the workload
    wait_s: float = 0.0  #: the patience that a cold start still needs; 0 = none


def overdue(view: View, groups: Iterable[WorkloadGroup]) -> Waiting | None:
    """The first request in the order of the queue that waited for too long."""
    limit_s = view.number(OVERDUE.name)
    firsts = (view.first(group) for group in groups)
    return next((one for one in firsts if view.waits_s(one) >= limit_s), None)


def best_start(view: View, waiting: Waiting, head: Waiting | None = None) -> Start | None:
    """The best devices for a request now; None when none is free for it.

    Devices that could serve `head`, an overdue request, are not. A warm device is best, then one
    where nothing is evicted or the least to load again, then one with the fewest residents.
    """
    placed = view.place(waiting)
    if placed is None:
        return None
    request = waiting.request
    if len(placed) > 1:
        devices: tuple[DeviceId, ...] = () if _any_for(view, placed, head) else placed
        warm = all(view.is_warm(request, device) for device in devices)
    else:
        sample = islice(view.fitting(waiting), SAMPLE_MAX)
        free = [device for device in sample if not _any_for(view, (device,), head)]
        hot = [device for device in free if view.is_warm(request, device)]
        devices, warm = _cheapest(view, waiting, hot or free), bool(hot)
    if not devices:
        return None
    return Start(waiting, devices, warm, 0.0 if warm else patience_s(view, waiting))


def _any_for(view: View, devices: Iterable[DeviceId], head: Waiting | None) -> bool:
    return head is not None and any(view.serves(head, device) for device in devices)


def _cheapest(view: View, waiting: Waiting, free: list[DeviceId]) -> tuple[DeviceId, ...]:
    def cost(device: DeviceId) -> tuple[float, int, tuple[str, int, str]]:
        evicted_s = view.reloading_s(waiting, device)
        return evicted_s, len(view.residents(device)), view.rank(device)

    return (min(free, key=cost),) if free else ()


def patience_s(view: View, waiting: Waiting) -> float:
    """The time for which a request still waits for a warm worker, before a cold start."""
    whole_s = view.number(PATIENCE.name) * min(view.workers(waiting.request), PATIENCE_FACTOR_MAX)
    return max(0.0, min(whole_s, view.number(OVERDUE.name)) - view.waits_s(waiting))


def held_for_warm(view: View, waiting: Waiting) -> HeldReason | None:
    """The reason why a request waits although a device is free."""
    head = overdue(view, view.groups())
    if head is not None and head.attempt != waiting.attempt:
        start = best_start(view, waiting)
        if start is not None and _any_for(view, start.devices, head):
            return HeldReason(f"its devices are kept free for {head.attempt}, which is overdue")
    start = best_start(view, waiting, head)
    if start is None or start.warm or start.wait_s <= 0:
        return None
    count = view.workers(waiting.request)
    where = f"{count} device{'s have' if count > 1 else ' has'} loaded its workload"
    text = f"{where}: it waits {start.wait_s:.1f} s more for one of them before a cold start"
    return HeldReason(text, view.at_s + start.wait_s)

"""First come, first served on the next free device in the cyclic order: "balance" of the thesis.

The oldest request that fits gets the free device that follows the last one granted, by host and
index; so all devices are used evenly, and none is free while a request fits it. A request for
several devices gets those of the usual placement.

Bound: none in general. Requests of equal size are served in the order of the queue; a request for
several devices, or for most of one, waits while smaller requests use what becomes free.
"""

from __future__ import annotations

from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.core.queue.policy import Choice, HeldReason, Pause
from gpu_scheduler.core.queue.policy_view import View
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Waiting

#: Most free devices that are compared for one request.
SAMPLE_MAX = 256
_LAST = "last"  #: the device of the last grant


class Balance:
    """Order: by queue key; device: the next free one."""

    summary = "the oldest request, on the free device that follows the last one granted"
    work_conserving = True
    wait_bound = ""
    starves = "requests for several devices or most of one, while smaller ones keep coming"
    parameters: tuple[PolicyParameter, ...] = ()

    def decide(self, view: View) -> Choice | Pause:
        for group in view.groups():
            waiting = view.first(group)
            placed = view.place(waiting)
            if placed is not None:
                devices = (_next(view, waiting),) if len(placed) == 1 else placed
                return Choice(waiting.attempt, devices, {_LAST: devices[-1]})
        return Pause()

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:  # noqa: ARG002 - never
        return None


def _next(view: View, waiting: Waiting) -> DeviceId:
    """The free device that follows the last one granted."""
    last = DeviceId(view.recalled(_LAST))
    after = view.rank(last) if view.is_known(last) else ("", -1, "")
    free = islice(view.fitting(waiting), SAMPLE_MAX)
    return min(free, key=lambda device: (view.rank(device) <= after, view.rank(device)))


POLICY = Balance()

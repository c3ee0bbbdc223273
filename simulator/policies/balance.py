"""First come, first served on the next free device in the cyclic order: "balance" of the thesis.

The oldest request that fits gets the free device that follows the last one granted, by host and
index; so all devices are used evenly, and none is free while a request fits it. A request for
several devices gets those of the usual placement.

Bound: requests of equal size are served in the order of the queue. A request for several devices,
or for most of one, waits while smaller requests use what becomes free.
"""

from __future__ import annotations

from gpu_scheduler.api import (
    FIRST_FIT_COST,
    LARGE,
    Choice,
    Declaration,
    Pause,
    Policy,
    Values,
    View,
)

_LAST = "last"  #: the device of the last grant


class Balance(Policy):
    """Order: by queue key; device: the next free one."""

    summary = "the oldest request, on the free device that follows the last one granted"

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - it has no parameters
        bound = "(k + 1) × L, with k requests before it and no lease longer than L"
        return Declaration(
            work_conserving=True, wait_bound=bound, starves=LARGE, decision_cost=FIRST_FIT_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        for group in view.fitting_groups():
            waiting = view.first(group)
            devices = view.place(waiting)
            assert devices is not None, f"{waiting.attempt} fits"
            if len(devices) == 1:
                devices = (view.next_free(waiting, view.recalled(_LAST)),)
            return Choice(waiting.attempt, devices, {_LAST: devices[-1]})
        return Pause()


POLICY = Balance()

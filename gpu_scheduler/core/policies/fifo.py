"""First come, first served within a priority, without holding back those that fit.

A request that does not fit is passed by later ones that do, at most `bypass_max` times on devices
it could use. Then the `count` devices nearest to being free for it are kept for it: it waits no
longer than the leases that are on those devices already, whatever else arrives behind it.
"""

from __future__ import annotations

from corekit.ids import DeviceId
from gpu_scheduler.core.changes import Waiting
from gpu_scheduler.core.placement import keepable, place
from gpu_scheduler.core.policies.base import Proposal
from gpu_scheduler.core.state import StateView

#: Passing keeps devices busy; 64 is a few seconds of a busy pool, far below any job's patience.
BYPASS_MAX = 64


class Fifo:
    """Order: (priority descending, waiting_since, id)."""

    def __init__(self, bypass_max: int = BYPASS_MAX) -> None:
        self._bypass_max = bypass_max

    def admit(self, view: StateView, newcomer: Waiting) -> Proposal | None:
        # Nothing queued fits (`next` was asked until None), so whatever fits a newcomer is free
        # for it; what is kept for the head does not fit it.
        return _proposal(view, newcomer)

    def next(self, view: StateView) -> Proposal | None:
        proposals = (_proposal(view, waiting) for waiting in view.queue.heads())
        return next((p for p in proposals if p is not None), None)

    def keep(self, view: StateView, head: Waiting) -> tuple[DeviceId, ...]:
        if view.bypass.count < self._bypass_max:
            return ()
        return keepable(head.request, view.inventory)


def _proposal(view: StateView, waiting: Waiting) -> Proposal | None:
    devices = place(waiting.request, view.inventory, waiting.attempt)
    return None if devices is None else Proposal(attempt=waiting.attempt, devices=devices)

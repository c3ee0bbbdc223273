"""Warm first, shortest first; a cold start only after patience.

A request whose workload has a warm worker on a free device starts there, the one with the shortest
expected time first. Another one waits: `patience_s` for each device that has loaded its workload
already, at most three times, then it loads it on one more. The first request of a workload loads
at once. So there are few cold starts, and short requests do not wait for long ones.

Bound: a request is overdue after `overdue_s`; then it is next, warm or cold, and devices that could
serve it are granted to no other request. With k overdue requests before it and no lease longer than
L, it waits at most overdue_s + (k + 1) × L.

A decision looks at the 64 workloads that wait longest of those that fit, and for each at up to 256
free devices.
"""

from __future__ import annotations

import math

from gpu_scheduler.core.queue.policy import Choice, Declaration, HeldReason, Pause, Policy
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.core.queue.warm_start import (
    OVERDUE,
    PATIENCE,
    STARTS_COST,
    WAIT_BOUND,
    Start,
    Starts,
    held_for_warm,
    overdue,
)
from gpu_scheduler.protocol.changes import Waiting


class Sticky(Policy):
    """Order: warm starts by expected time, then cold starts by queue key."""

    summary = "warm starts first, the shortest first; cold starts only after patience"
    parameters = (PATIENCE, OVERDUE)

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - the same for all
        return Declaration(work_conserving=False, wait_bound=WAIT_BOUND, decision_cost=STARTS_COST)

    def decide(self, view: View) -> Choice | Pause:
        head = overdue(view)
        if head is not None and (start := Starts(view, None).best(head)) is not None:
            return Choice(head.attempt, start.devices)
        starts = Starts(view, head).all()
        warm = [start for start in starts if start.warm]
        if warm:
            best = min(warm, key=lambda start: _expected_s(view, start))  # of equal ones the first
            return Choice(best.waiting.attempt, best.devices)
        due = next((start for start in starts if start.wait_s <= 0), None)
        if due is not None:
            return Choice(due.waiting.attempt, due.devices)
        soonest_s = min((start.wait_s for start in starts), default=None)
        return Pause(None if soonest_s is None else view.at_s + soonest_s)

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        return held_for_warm(view, waiting)


def _expected_s(view: View, start: Start) -> float:
    expected_s = view.expected_s(start.waiting.request)
    return math.inf if expected_s is None else expected_s


POLICY = Sticky()

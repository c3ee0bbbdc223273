"""Fair queueing with anticipatory stickiness, after MQFQ-Sticky (arXiv 2507.08954).

Each workload of a tenant is a flow with a virtual time: the device time that its grants were
expected to take, divided by the weight of its tenant. A flow that was idle continues at the
virtual time of the present, the least one of all flows that wait. A flow may run ahead of it by
`overrun_s`; among those that do not, warm starts come first, then the flow that is farthest behind.
The window lets a flow use its warm workers several times in a row instead of alternating.

Stickiness is anticipatory: a flow that waits for its own warm worker leaves a free device to others
for `patience_s` times the number of devices that have loaded its workload, three at most.

Bound: that of `sticky`: a request that waited for `overdue_s` is next. The device time of two flows
that always wait for equal devices differs by at most overrun_s and two jobs, per unit of weight.

A decision looks at the 64 flows that wait longest of those that fit, and for each at up to 256 free
devices; the present is the least virtual time of these, and of the 64 flows that wait longest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from operator import itemgetter

from gpu_scheduler.core.queue.policy import Choice, Declaration, HeldReason, Pause, Policy
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.core.queue.warm_start import (
    GROUPS_MAX,
    OVERDUE,
    PATIENCE,
    STARTS_COST,
    WAIT_BOUND,
    Start,
    Starts,
    held_for_warm,
    overdue,
)
from gpu_scheduler.model import Request
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Scalar, Waiting

OVERRUN = PolicyParameter(
    name="overrun_s",
    meaning="device time by which a flow may run ahead of the one that is farthest behind",
    default=10.0,
    at_least=0.0,
)
#: Remembered virtual times; above it those in the past are dropped, and no new one is remembered.
FLOWS_MAX = 5_000
_NOW = "now"  #: virtual time of the present
_UNKNOWN_S = 1.0  #: charged for a job of which nothing is known


class FairSticky(Policy):
    """Order: warm starts of flows within the window, then cold ones, each by virtual time."""

    summary = "fair between workloads by device time; warm starts first within a window"
    parameters = (OVERRUN, PATIENCE, OVERDUE)

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - the same for all
        return Declaration(work_conserving=False, wait_bound=WAIT_BOUND, decision_cost=STARTS_COST)

    def decide(self, view: View) -> Choice | Pause:
        head = overdue(view)
        start = None if head is None else Starts(view, None).best(head)
        starts = [start] if start is not None else Starts(view, head).all()
        if not starts:
            return Pause()
        tag_of = _tags(view)
        tagged = [(tag_of(one.waiting.request), one) for one in starts]
        oldest = (tag_of(group.request) for group in islice(view.groups(), GROUPS_MAX))
        now_s = min(chain((tag_s for tag_s, _ in tagged), oldest))
        if start is not None:
            return _choice(view, start, tagged[0][0], now_s)
        tagged.sort(key=itemgetter(0))
        until_s = now_s + view.number("overrun_s")
        within = [one for one in tagged if one[0] <= until_s]
        among = within or tagged  # nothing within the window fits: the others need not wait
        ready = [one for one in among if one[1].warm] or [o for o in among if o[1].wait_s <= 0]
        if ready:
            tag_s, first = ready[0]
            return _choice(view, first, tag_s, now_s)
        soonest_s = min((one.wait_s for _, one in among), default=None)
        return Pause(None if soonest_s is None else view.at_s + soonest_s)

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        tag_of = _tags(view)
        ahead_s = tag_of(waiting.request) - min(
            (tag_of(group.request) for group in view.groups()), default=0.0
        )
        if ahead_s > view.number(OVERRUN.name) and Starts(view, None).best(waiting) is not None:
            used = f"its workload has used {ahead_s:.1f} s more of the devices than another one"
            return HeldReason(
                f"{used} that waits; at most {view.number(OVERRUN.name):g} s are fair"
            )
        return held_for_warm(view, waiting)


def _flow(request: Request) -> str:
    return f"{request.tenant}/{request.workload or ''}"


def _tags(view: View) -> Callable[[Request], float]:
    """The virtual time at which the next job of a flow begins."""
    now_s = view.recalled_number(_NOW)
    return lambda request: max(view.recalled_number(_flow(request)), now_s)


def _choice(view: View, start: Start, tag_s: float, now_s: float) -> Choice:
    request = start.waiting.request
    expected_s = view.expected_s(request)
    used_s = (_UNKNOWN_S if expected_s is None else expected_s) * request.count
    remember: dict[str, Scalar | None] = {_NOW: max(now_s, view.recalled_number(_NOW))}
    if len(view.memory) >= FLOWS_MAX:
        remember |= {
            name: None
            for name in view.memory
            if name != _NOW and view.recalled_number(name) <= now_s
        }
    flow = _flow(request)
    if len(view.memory) < FLOWS_MAX or flow in view.memory or len(remember) > 1:
        remember[flow] = tag_s + used_s / view.weight(request.tenant)
    return Choice(start.waiting.attempt, start.devices, remember)


POLICY = FairSticky()

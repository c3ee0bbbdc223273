"""Buckets of expected time, each served about equally often: "MLFQS" of the thesis.

Of the buckets with a request that fits, one is drawn with equal chances; its oldest request gets
the next free device. The first bucket holds the requests of up to `first_s`, and the bound of each
further bucket is `factor` times as large; the last one also holds those of unknown time.

Bound: a bucket with requests that fit gets an equal part of the grants, on average, so no length
of a request starves. Many tenants in one bucket share its part. A request for several devices, or
for most of one, waits while smaller requests use what becomes free.
"""

from __future__ import annotations

import math

from gpu_scheduler.api import (
    GROUPS_COST,
    LARGE,
    Choice,
    Declaration,
    Pause,
    Policy,
    PolicyParameter,
    Values,
    View,
    Waiting,
)
from gpu_scheduler.model import Request

_LAST = "last"  #: the device of the last grant


class FeedbackQueues(Policy):
    """Order: a drawn bucket, then by queue key; device: the next free one."""

    summary = "the oldest request of a bucket of expected time, drawn with equal chances"
    parameters = (
        PolicyParameter(
            name="buckets", meaning="number of buckets", default=8.0, at_least=1.0, at_most=64.0
        ),
        PolicyParameter(
            name="first_s",
            meaning="longest time of the first bucket",
            default=1.0,
            at_least=1e-3,
            at_most=1e6,
        ),
        PolicyParameter(
            name="factor",
            meaning="longest time of a bucket, over that of the one before",
            default=4.0,
            at_least=1.1,
            at_most=1e3,
        ),
    )

    def declare(self, values: Values) -> Declaration:
        bound = f"one of {values['buckets']:g} grants goes to its bucket at least, on average"
        return Declaration(
            work_conserving=True, wait_bound=bound, starves=LARGE, decision_cost=GROUPS_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        oldest: dict[int, Waiting] = {}
        for group in view.fitting_groups():
            waiting = view.first(group)
            oldest.setdefault(_bucket(view, waiting.request), waiting)
        if not oldest:
            return Pause()
        buckets = sorted(oldest)
        drawn = int(view.draw() * len(buckets)) if len(buckets) > 1 else 0
        waiting = oldest[buckets[drawn]]
        devices = view.place(waiting)
        assert devices is not None, f"{waiting.attempt} fits"
        if len(devices) == 1:
            devices = (view.next_free(waiting, view.recalled(_LAST)),)
        return Choice(waiting.attempt, devices, {_LAST: devices[-1]})


def _bucket(view: View, request: Request) -> int:
    """The number of the bucket of a request."""
    last = int(view.number("buckets")) - 1
    expected_s = view.expected_s(request)
    if expected_s is None:
        return last
    steps = math.log(expected_s / view.number("first_s"), view.number("factor"))
    return min(last, max(0, math.ceil(steps)))


POLICY = FeedbackQueues()

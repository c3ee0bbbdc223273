"""Earliest deadline first, a baseline: every run is admitted, its steps are served by what is due.

The deadline of a step is that of its run: when it was admitted, and its objective of latency.
Requests without one come last, in the order of the queue. Devices are those of the usual placement.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from operator import itemgetter
from typing import ClassVar

from gpu_scheduler.api import (
    Admission,
    Choice,
    Declaration,
    Pause,
    Policy,
    PromiseAsked,
    Scalar,
    Values,
    View,
    job_of,
)
from gpu_scheduler.core.state.request_class import QueueKey

_DUE = "due/"  #: of a job, wall clock
#: Values that are remembered: later runs have no deadline.
_REMEMBERED_MAX = 19_000
_SINCE = itemgetter(1)  #: of a place in the queue: since when the request waits


class EarliestDeadlineFirst(Policy):
    """Order: by deadline, then by queue key."""

    summary = "the request of the run that is due first; the others by age"
    promises: ClassVar[bool] = True

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - it has no parameters
        return Declaration(
            work_conserving=True,
            wait_bound="",
            starves="requests that are due later, while earlier ones keep coming",
            decision_cost="a step for each waiting request of a group that fits",
        )

    def admit(self, view: View, asked: PromiseAsked) -> Admission:
        latency_s = asked.latency_s
        if latency_s is None or len(view.memory) + len(asked.steps) > _REMEMBERED_MAX:
            return Admission("admitted without a deadline", admitted=True)
        due_s = view.wall_s + latency_s
        remember = {_DUE + step.job: due_s for step in asked.steps}
        return Admission("admitted, without a promise", admitted=True, remember=remember)

    def decide(self, view: View) -> Choice | Pause:
        due, entries = view.remembered(_DUE).values, view.state.queue.entries

        def place(key: QueueKey) -> tuple[Scalar, float, str]:
            return due.get(job_of(entries[key[3]]), inf), key[1], key[3]

        keys = list(chain.from_iterable(group.keys for group in view.fitting_groups()))
        if not due:  # most are not even compared by name
            oldest_s = min(map(_SINCE, keys), default=inf)
            keys = [key for key in keys if key[1] == oldest_s]
        first = min(keys, key=place, default=None)
        if first is None:
            return Pause()
        waiting = entries[first[3]]
        devices = view.place(waiting)
        assert devices is not None, f"{waiting.attempt} fits"
        return Choice(waiting.attempt, devices, {_DUE + job_of(waiting): None})


POLICY = EarliestDeadlineFirst()

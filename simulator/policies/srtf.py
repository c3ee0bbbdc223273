"""Shortest first: the request with the shortest expected time, on the next free device.

The expected time is the learned execution time of the request's workload, else the stated length
of its lease; a request without either comes last. Equal times are served by age. Requests of one
workload whose stated lengths differ by less than a fifth count as equal.

With `strict_head` a request that is longer than the shortest one known starts only while two of
its devices are free, so that one is left for a short request: the printed form of the thesis.

Bound: none. A long request waits while shorter ones keep coming.
"""

from __future__ import annotations

import math
from itertools import islice

from corekit.ids import DeviceId
from gpu_scheduler.api import (
    GROUPS_COST,
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

_LAST = "last"  #: the device of the last grant
_SHORTEST = "shortest_s"  #: the shortest expected time of a grant


class ShortestFirst(Policy):
    """Order: by expected time, then by queue key; device: the next free one."""

    summary = "the request with the shortest expected time, on the next free device"
    parameters = (
        PolicyParameter(
            name="strict_head",
            meaning="longer requests than the shortest known start only while two devices are free",
            default=False,
        ),
    )

    def declare(self, values: Values) -> Declaration:
        starves = "long requests, while shorter ones keep coming"
        return Declaration(
            not values["strict_head"], wait_bound="", starves=starves, decision_cost=GROUPS_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        fitting = [
            (_expected_s(view, waiting := view.first(group)), group.first, waiting)
            for group in view.fitting_groups()
        ]
        for expected_s, _, waiting in sorted(fitting, key=lambda one: one[:2]):
            if _needs_two(view, expected_s) and not _two_are_free(view, waiting):
                continue
            return Choice(waiting.attempt, _devices(view, waiting), _change(view, waiting))
        return Pause()

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        expected_s = _expected_s(view, waiting)
        if not _needs_two(view, expected_s) or _two_are_free(view, waiting):
            return None
        shortest_s = view.recalled_number(_SHORTEST, math.inf)
        long = "its time is unknown" if math.isinf(expected_s) else f"it takes {expected_s:g} s"
        short = f"a request of {shortest_s:g} s is the shortest known"
        return HeldReason(f"{long}, {short}: it starts while two devices are free")


def _expected_s(view: View, waiting: Waiting) -> float:
    expected_s = view.expected_s(waiting.request)
    return math.inf if expected_s is None else expected_s


def _devices(view: View, waiting: Waiting) -> tuple[DeviceId, ...]:
    devices = view.place(waiting)
    assert devices is not None, f"{waiting.attempt} fits"
    return devices if len(devices) > 1 else (view.next_free(waiting, view.recalled(_LAST)),)


def _needs_two(view: View, expected_s: float) -> bool:
    return bool(view.values["strict_head"]) and expected_s > view.recalled_number(
        _SHORTEST, math.inf
    )


def _two_are_free(view: View, waiting: Waiting) -> bool:
    """True when two devices fit, or as many as could ever serve the request."""
    free = len(list(islice(view.fitting(waiting), 2)))
    could = (device for device in view.after(None) if view.serves(waiting, device))
    return free >= 2 or free >= len(list(islice(could, 2)))


def _change(view: View, waiting: Waiting) -> dict[str, Scalar | None]:
    expected_s = _expected_s(view, waiting)
    last: dict[str, Scalar | None] = {_LAST: _devices(view, waiting)[-1]}
    return (
        {**last, _SHORTEST: expected_s}
        if expected_s < view.recalled_number(_SHORTEST, math.inf)
        else last
    )


POLICY = ShortestFirst()

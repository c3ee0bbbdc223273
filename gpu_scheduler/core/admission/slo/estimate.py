"""The expected end of a plan at another quantile of its times, and the steps that limit it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.admission.slo.frontier import Feeders
from gpu_scheduler.core.admission.slo.options import NO_DEVICE, Option
from gpu_scheduler.core.admission.slo.plan import Booked, without_device


def on_free_devices(
    options: Sequence[Option], ways_s: Sequence[float], feeders: Feeders, now_s: float
) -> tuple[Booked, ...]:
    """The places of all steps, if no step waits for a device and all of them load."""
    found: list[Booked] = []
    for option, way_s, own in zip(options, ways_s, feeders, strict=True):
        ready_s = max((found[i].end_s for i in own), default=now_s) + way_s
        if option.where == NO_DEVICE:
            found.append(without_device(option, ready_s))
            continue
        end_s, device = ready_s + option.cold_s, DeviceId("")
        until_s = end_s + option.release_s
        found.append(
            Booked(device, option.where, ready_s, end_s, until_s, False, None, inf, end_s - ready_s)
        )
    return tuple(found)


def expected_end_s(
    booked: Sequence[Booked],
    ways_s: Sequence[float],
    feeders: Feeders,
    now_s: float,
    other: tuple[Sequence[Option], Sequence[float]],
) -> float:
    """The end of the last step, if times and ways are those of `other` (options, ways).

    A step that waits for its device in the plan begins no earlier: what it waits for is not its
    own. A member of a batch runs as long as planned.
    """
    options, other_ways_s = other
    ends_s: list[float] = []
    for step, (place, option, own) in enumerate(zip(booked, options, feeders, strict=True)):
        planned_s = max((booked[i].end_s for i in own), default=now_s) + ways_s[step]
        start_s = max((ends_s[i] for i in own), default=now_s) + other_ways_s[step]
        if place.start_s > planned_s + SAME_S:
            start_s = max(start_s, place.start_s)
        if place.batch is not None:
            length_s = place.end_s - place.start_s
        else:
            length_s = option.execution_s if place.warm else option.cold_s
        ends_s.append(start_s + length_s)
    return max(ends_s)


def critical_steps(booked: Sequence[Booked], feeders: Feeders) -> list[int]:
    """The steps on the path that ends last, the first one first."""
    step = max(range(len(booked)), key=lambda i: booked[i].end_s)
    path = [step]
    while feeders[step]:
        step = max(feeders[step], key=lambda i: booked[i].end_s)
        path.append(step)
    return path[::-1]

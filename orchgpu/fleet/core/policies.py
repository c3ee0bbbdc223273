"""Hosts that a pool should have beside those for waiting requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from orchgpu.fleet.core.model import Offer, PolicyName, PoolMemory

#: Hosts of a pool, from its memory and the time.
Floor = Callable[[Offer, PoolMemory, float, float], int]
_HOUR_S = 3600.0


def fixed(offer: Offer, memory: PoolMemory, now_s: float, start_s: float) -> int:
    """All hosts, always: what a system without a fleet has."""
    del memory, now_s, start_s
    return offer.max


def tracking(offer: Offer, memory: PoolMemory, now_s: float, start_s: float) -> int:
    """None: hosts follow the waiting requests."""
    del offer, memory, now_s, start_s
    return 0


def forecast(offer: Offer, memory: PoolMemory, now_s: float, start_s: float) -> int:
    """The hosts at work in this hour of the day, as the days before had them.

    Those of an hour that begins within the start time are started before it does. A single job of
    one day makes no forecast: half a host is rounded down.
    """
    del offer
    if not memory.hours:
        return 0
    hours = {int((now_s + ahead_s) // _HOUR_S) % 24 for ahead_s in (0.0, start_s)}
    return max(math.ceil(memory.hours[hour] - 0.5) for hour in hours)


FLOORS: Mapping[PolicyName, Floor] = {
    PolicyName.FIXED: fixed,
    PolicyName.TRACKING: tracking,
    PolicyName.FORECAST: forecast,
}

"""Finding whom to serve, without looking at those who cannot be.

After every event nothing waits that could be served. So only what changed since can serve anybody:
openings (openings.py), and kins that are woken because a request of theirs came back or a quota has
room again. For each of them one request is looked at, the first in order that it may hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from corekit.values import Value
from gpu_scheduler.core.admission.quotas import affordable, within_quota
from gpu_scheduler.core.durable.changes import Waiting
from gpu_scheduler.core.leases.forecast import may_last_s
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.core.policies import POLICIES
from gpu_scheduler.core.queue.queue import Lines
from gpu_scheduler.core.queue.request_class import MEMORY_MIB_MAX, Heads, Kin, Place
from gpu_scheduler.core.transaction import Turn


class Found(Value):
    """One request and the devices it should have."""

    place: Place
    waiting: Waiting
    devices: tuple[DeviceId, ...]
    behalf: str  #: attempt whose kept devices it may have: its own, or the head's that lends them


def next_found(turn: Turn) -> Found | None:
    """Whom to serve next by the policy's order; None when nobody can be served."""
    state, queue, openings = turn.state, turn.state.queue, turn.state.openings
    openings.take_in(state.inventory)
    if not openings.shapes and not queue.woken:
        return None
    found = _for_head(turn)
    if found is not None:
        return found
    found = _first(turn, queue.lines)
    if found is None:
        state.forget_openings()
        return None
    for lines in POLICIES[state.parameters.policy].lines(turn):
        theirs = found if lines is queue.lines else _first(turn, lines)
        if theirs is not None:
            return theirs
    return found


def newcomer_found(turn: Turn, waiting: Waiting) -> Found | None:
    """Devices for a request that is not in the queue, when its tenant may have them."""
    state = turn.state
    behalf, head = waiting.attempt, state.bypass.attempt
    if head is not None:
        lasts_s = may_last_s(waiting.lease_s, waiting.hold, turn.budget)
        behalf = head if _done_by(turn, lasts_s, _lent_until_s(turn)) else behalf
    devices = place(affordable(state, waiting.request), state.inventory, behalf)
    if devices is None:
        return None
    place_ = state.queue.place_of(waiting)
    return Found(place=place_, waiting=waiting, devices=devices, behalf=behalf)


def _for_head(turn: Turn) -> Found | None:
    """Whom devices are kept for goes first of all once they are free."""
    bypass, queue = turn.state.bypass, turn.state.queue
    if not bypass.kept or bypass.attempt is None:
        return None
    waiting = queue.entries[bypass.attempt]
    asked = affordable(turn.state, waiting.request)
    devices = place(asked, turn.state.inventory, waiting.attempt)
    if devices is None:
        return None
    place_ = queue.place_of(waiting)
    return Found(place=place_, waiting=waiting, devices=devices, behalf=waiting.attempt)


def _first(turn: Turn, lines: Lines) -> Found | None:
    """The first in order of these lines that can be served."""
    best: Found | None = None
    for kin, most_mib, behalf in _chances(turn, lines):
        heads = lines.get(kin)
        if heads and (best is None or heads.least < best.place):
            best = _of_kin(turn, heads, most_mib, behalf, best) or best
    return best


def _chances(turn: Turn, lines: Lines) -> Iterator[tuple[Kin, int, str | None]]:
    """Kins that may be served, up to which memory, and with whose kept devices."""
    state, until_s = turn.state, _lent_until_s(turn)
    for kin in list(lines):
        lasts_s = may_last_s(kin.length_s, kin.hold, turn.budget)
        behalf = state.bypass.attempt if _done_by(turn, lasts_s, until_s) else None
        if kin in state.queue.woken:
            yield kin, MEMORY_MIB_MAX, behalf
            continue
        most_mib = max((kin.most_mib(shape, behalf) for shape in state.openings.shapes), default=-1)
        if most_mib >= 0:
            yield kin, most_mib, behalf


def _lent_until_s(turn: Turn) -> float | None:
    """Until when the policy lends what is kept for the head; None = not at all."""
    state = turn.state
    return POLICIES[state.parameters.policy].lend_until_s(turn) if state.bypass.kept else None


def _done_by(turn: Turn, lasts_s: float | None, until_s: float | None) -> bool:
    """Would a lease that is granted now be over by then?"""
    return until_s is not None and lasts_s is not None and turn.at_s + lasts_s <= until_s


def _of_kin(
    turn: Turn, heads: Heads, most_mib: int, behalf: str | None, before: Found | None
) -> Found | None:
    """The first of one kin that can be served, if it comes before another one.

    Who finds no devices shows that nobody of the kin does who wants as much; who finds only devices
    too large for its quota shows nothing of others.
    """
    state, queue = turn.state, turn.state.queue
    passed: Place | None = None
    while (first := heads.first(most_mib, after=passed)) is not None:
        if before is not None and first >= before.place:
            return None
        waiting = queue.entries[first[2]]
        request, whose = waiting.request, behalf or waiting.attempt
        if not within_quota(state, request):
            queue.bench(waiting.attempt)
            continue
        asked = affordable(state, request)
        devices = place(asked, state.inventory, whose)
        if devices is not None:
            return Found(place=first, waiting=waiting, devices=devices, behalf=whose)
        if asked is request or place(request, state.inventory, whose) is None:
            most_mib = request.memory_mib - 1
        else:
            passed = first
    return None

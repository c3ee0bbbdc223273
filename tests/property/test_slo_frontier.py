"""The frontier of a graph against brute force, and its slice against two filters."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.admission.slo.frontier import Feeders, Placement, Price, frontier, within

#: Two steps in sequence, each on a CPU and on a GPU: seconds and cost.
EXAMPLE: tuple[tuple[Price, ...], ...] = (((10, 1), (12, 6)), ((20, 2), (4, 10)))
CHAIN: Feeders = ((), (0,))


def all_placements(steps: tuple[tuple[Price, ...], ...], feeders: Feeders) -> list[Placement]:
    found = []
    for options in product(*(range(len(one)) for one in steps)):
        ends: list[float] = []
        for step, option in enumerate(options):
            start = max((ends[i] for i in feeders[step]), default=0.0)
            ends.append(start + steps[step][option][0])
        cost = sum(steps[step][option][1] for step, option in enumerate(options))
        found.append(Placement(max(ends), cost, options))
    return found


def brute_force(placements: list[Placement]) -> set[tuple[float, float]]:
    pairs = {(one.latency_s, one.cost_usd) for one in placements}
    return {
        (latency, cost)
        for latency, cost in pairs
        if not any(
            other != (latency, cost) and other[0] <= latency and other[1] <= cost for other in pairs
        )
    }


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[tuple[Price, ...], ...], Feeders]:
    count = draw(st.integers(1, 5))
    number = st.integers(0, 9).map(float)
    prices = st.lists(st.tuples(number, number), min_size=1, max_size=4).map(tuple)
    steps = tuple(draw(prices) for _ in range(count))
    feeders = tuple(tuple(i for i in range(step) if draw(st.booleans())) for step in range(count))
    return steps, feeders


@given(graphs(), st.integers(0, 40), st.integers(0, 40))
@settings(deadline=None)
def test_frontier_is_that_of_all_placements_and_the_slice_is_both_filters(
    graph: tuple[tuple[tuple[Price, ...], ...], Feeders], latency: int, cost: int
) -> None:
    steps, feeders = graph
    placements = all_placements(steps, feeders)
    size = 1
    for one in steps:
        size *= len(one)
    assert len(placements) == size
    found = frontier(steps, feeders)
    assert {(one.latency_s, one.cost_usd) for one in found} == brute_force(placements)
    assert len(found) == len(brute_force(placements))
    assert all(one in placements for one in found)
    both = [one for one in found if one.latency_s <= latency and one.cost_usd <= cost]
    assert list(within(found, latency, cost)) == both
    assert list(within(found, latency, None)) == [one for one in found if one.latency_s <= latency]
    assert list(within(found, None, cost)) == [one for one in found if one.cost_usd <= cost]


def test_the_example_has_two_placements_and_the_union_of_the_lists_admits_a_miss() -> None:
    found = frontier(EXAMPLE, CHAIN)
    pairs = [(one.latency_s, one.cost_usd) for one in found]
    assert pairs == [(14, 11), (30, 3)]
    assert [(one.latency_s, one.cost_usd) for one in within(found, 20, 12)] == [(14, 11)]
    union = {*within(found, 20, None), *within(found, None, 12)}
    assert any(one.latency_s > 20 for one in union)


def test_a_step_without_options_leaves_no_placement() -> None:
    assert frontier((((1.0, 1.0),), ()), CHAIN) == ()

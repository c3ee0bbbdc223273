"""The Pareto frontier of all placements of a graph: the critical path against the cost.

A placement names an option for each step. A state of the search is the finish of every step that a
later one waits for, and the cost so far; a state that another one equals or beats in all of them is
dropped. Three things keep states few: steps with the same later steps are one number, their last
finish; steps are placed in an order that keeps few numbers; a finish that delays nothing is raised
to the first one that does. So a graph of 8 steps with 4 options each has some hundred states
instead of 65,536 placements.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import inf
from operator import attrgetter, itemgetter, le
from typing import NamedTuple

#: Seconds and dollars of one option of a step.
Price = tuple[float, float]
#: The steps before each step, by index; all are smaller than its own.
Feeders = tuple[tuple[int, ...], ...]
#: Most states of the search. Above it some are dropped, so that a wide graph of many steps costs
#: bounded time: its frontier may lack placements, but has no wrong one.
STATES_MAX = 500
#: The same times the steps of the graph: an admission blocks every other event.
_STATES_OF_STEPS_MAX = 4000
_CACHED_MAX = 512
#: Beginnings of an order that are continued, times the steps of the graph.
_BEGINNINGS_MAX = 256
#: States of a search grow about so with each number.
_GROWTH = 4
_ROUNDING = 1e-9  #: seconds or dollars


class Placement(NamedTuple):
    """One placement on the frontier."""

    latency_s: float
    cost_usd: float
    options: tuple[int, ...]  #: of each step


class _State(NamedTuple):
    finishes_s: tuple[float, ...]
    cost_usd: float
    options: tuple[int, ...]


@lru_cache(maxsize=_CACHED_MAX)
def frontier(steps: tuple[tuple[Price, ...], ...], feeders: Feeders) -> tuple[Placement, ...]:
    """The placements that no other one equals or beats in latency and cost, by latency.

    Cost falls strictly along it. Without options for a step it is empty.
    """
    if not all(steps):
        return ()
    order = _order(feeders)
    place = {step: at for at, step in enumerate(order)}
    inner = tuple(tuple(place[i] for i in feeders[step]) for step in order)
    found = _search([steps[step] for step in order], inner)
    return tuple(
        one._replace(options=tuple(one.options[place[i]] for i in range(len(steps))))
        for one in found
    )


@lru_cache(maxsize=_CACHED_MAX)
def _order(feeders: Feeders) -> tuple[int, ...]:
    """All steps, each after its feeders, so that a state has few numbers at each step.

    Of each length the best beginnings are continued.
    """
    later = _later(feeders)
    begun = [_Beginning(0, (), frozenset())]
    for _ in feeders:
        longer: dict[frozenset[int], _Beginning] = {}
        for one in begun:
            for step, own in enumerate(feeders):
                if step in one.steps or not one.steps_include(own):
                    continue
                left = (waiting - {step} for waiting in one.waits)
                waits = frozenset({later[step], *left})
                effort = one.effort + _GROWTH ** len(waits)
                tried = _Beginning(effort, (*one.steps, step), waits)
                same = frozenset(tried.steps)
                longer[same] = min(longer.get(same, tried), tried, key=itemgetter(0, 1))
        begun = sorted(longer.values(), key=itemgetter(0, 1))
        del begun[max(1, _BEGINNINGS_MAX // len(feeders)) :]
    return begun[0].steps


class _Beginning(NamedTuple):
    """The first steps of an order."""

    effort: int
    steps: tuple[int, ...]
    waits: frozenset[frozenset[int]]  #: the numbers of a state after them

    def steps_include(self, steps: tuple[int, ...]) -> bool:
        return all(step in self.steps for step in steps)


def _later(feeders: Feeders) -> list[frozenset[int]]:
    """The steps that wait for each."""
    return [
        frozenset(i for i, own in enumerate(feeders) if step in own) for step in range(len(feeders))
    ]


def _search(steps: Sequence[Sequence[Price]], feeders: Feeders) -> list[Placement]:
    options = [_undominated(prices) for prices in steps]
    states_max = min(STATES_MAX, max(2, _STATES_OF_STEPS_MAX // len(steps)))
    later = _later(feeders)
    fastest_s = [prices[own[0]][0] for prices, own in zip(steps, options, strict=True)]
    bounds = _Bounds.of(steps, options, feeders)
    #: The steps that still wait for each number of a state; the empty set: the end of the run.
    waits: list[frozenset[int]] = []
    states = [_State((), 0.0, ())]
    for step, prices in enumerate(steps):
        reads = [i for i, waiting in enumerate(waits) if step in waiting]
        left = [waiting - {step} for waiting in waits]
        waits = sorted({*left, later[step]}, key=_by_size)
        moves, own = [waits.index(one) for one in left], waits.index(later[step])
        ahead = _Ahead.of(step + 1, fastest_s, feeders, waits)
        reached: list[_State] = []
        for state in states:
            start_s = max((state.finishes_s[i] for i in reads), default=0.0)
            kept = [0.0] * len(waits)
            for value, to in zip(state.finishes_s, moves, strict=True):
                kept[to] = max(kept[to], value)
            for option in options[step]:
                finishes = kept.copy()
                seconds, dollars = prices[option]
                finishes[own] = max(finishes[own], start_s + seconds)
                finishes, least_s = ahead.raised(finishes)
                cost_usd = state.cost_usd + dollars
                if not bounds.beat(least_s, cost_usd + bounds.least_usd[step + 1]):
                    reached.append(_State(tuple(finishes), cost_usd, (*state.options, option)))
        states = _pruned(reached, states_max)
    return [Placement(one.finishes_s[0], one.cost_usd, one.options) for one in states]


class _Ahead(NamedTuple):
    """The steps that are not placed yet: what each waits for, and the least time that it takes."""

    fastest_s: Sequence[float]  #: of these steps
    numbers: list[list[int]]  #: of a state, that each of them waits for
    before: list[list[int]]  #: the ones among them that each waits for
    waits: list[list[int]]  #: the ones among them that wait for each number of a state

    @classmethod
    def of(
        cls,
        first: int,
        fastest_s: Sequence[float],
        feeders: Feeders,
        waits: Sequence[frozenset[int]],
    ) -> _Ahead:
        ahead = range(first, len(feeders))
        return cls(
            fastest_s[first:],
            [[i for i, waiting in enumerate(waits) if step in waiting] for step in ahead],
            [[i - first for i in feeders[step] if i >= first] for step in ahead],
            [[step - first for step in waiting] for waiting in waits],
        )

    def raised(self, finishes_s: list[float]) -> tuple[list[float], float]:
        """Each finish, no less than the first start of a step that waits for it can be.

        That delays no step, so the placements stay the same, but more states equal each other. And
        the least latency that is left.
        """
        starts_s: list[float] = []
        ends_s: list[float] = []
        for fastest_s, numbers, before in zip(
            self.fastest_s, self.numbers, self.before, strict=True
        ):
            start_s = 0.0
            for i in numbers:
                if finishes_s[i] > start_s:
                    start_s = finishes_s[i]
            for i in before:
                if ends_s[i] > start_s:
                    start_s = ends_s[i]
            starts_s.append(start_s)
            ends_s.append(start_s + fastest_s)
        least_s = max([*finishes_s, *ends_s])
        raised = [
            min([starts_s[i] for i in waiting]) if waiting else least_s for waiting in self.waits
        ]
        return raised, least_s


def _by_size(steps: frozenset[int]) -> tuple[int, list[int]]:
    return len(steps), sorted(steps)


class _Bounds(NamedTuple):
    """The least cost of the rest of a run, and placements that are known already."""

    least_usd: list[float]  #: of each step and those after it, and 0 at the end
    latencies_s: list[float]  #: of the known placements, ascending
    costs: list[float]  #: falling

    @classmethod
    def of(
        cls,
        steps: Sequence[Sequence[Price]],
        options: Sequence[Sequence[int]],
        feeders: Feeders,
    ) -> _Bounds:
        least_usd = [0.0] * (len(steps) + 1)
        for step in reversed(range(len(steps))):
            least_usd[step] = least_usd[step + 1] + steps[step][options[step][-1]][1]
        known = sorted(_weighted(steps, options, feeders))
        found = cls(least_usd, [], [])
        for latency_s, cost in known:
            if not found.costs or cost < found.costs[-1]:
                found.latencies_s.append(latency_s)
                found.costs.append(cost)
        return found

    def beat(self, latency_s: float, cost_usd: float) -> bool:
        """True when a known placement is better than these by more than a rounding error."""
        at = bisect_left(self.latencies_s, latency_s - _ROUNDING)
        return at > 0 and self.costs[at - 1] < cost_usd - _ROUNDING


def _weighted(
    steps: Sequence[Sequence[Price]], options: Sequence[Sequence[int]], feeders: Feeders
) -> Iterator[tuple[float, float]]:
    """Latency and cost of placements with one price of time for all steps."""
    rates = {
        (b[1] - a[1]) / (a[0] - b[0])
        for prices, own in zip(steps, options, strict=True)
        for a, b in ((prices[i], prices[j]) for i, j in pairwise(own))
    }
    for rate in (0.0, *sorted(rates), inf):
        ends_s: list[float] = []
        chosen: list[Price] = []
        cost = 0.0
        for step, prices in enumerate(steps):
            by = itemgetter(0) if rate == inf else partial(_at_rate, rate)
            seconds, dollars = min((prices[i] for i in options[step]), key=by)
            ends_s.append(seconds + max((ends_s[i] for i in feeders[step]), default=0.0))
            cost += dollars
            chosen.append((seconds, dollars))
        yield max(ends_s), cost
        yield max(ends_s), _thrifty_usd(chosen, steps, options, feeders, max(ends_s))


def _thrifty_usd(
    chosen: list[Price],
    steps: Sequence[Sequence[Price]],
    options: Sequence[Sequence[int]],
    feeders: Feeders,
    latency_s: float,
) -> float:
    """The cost when each step takes the cheapest option that delays the end of the run by nothing.

    From the last step to the first: those before it keep their times.
    """
    ends_s: list[float] = []
    for (seconds, _), own in zip(chosen, feeders, strict=True):
        ends_s.append(seconds + max((ends_s[i] for i in own), default=0.0))
    latest_s = [latency_s] * len(steps)  #: the end of each step
    cost = 0.0
    for step in reversed(range(len(steps))):
        start_s = max((ends_s[i] for i in feeders[step]), default=0.0)
        in_time = (
            steps[step][i]
            for i in reversed(options[step])
            if start_s + steps[step][i][0] <= latest_s[step]
        )
        seconds, dollars = next(in_time, chosen[step])
        for i in feeders[step]:
            latest_s[i] = min(latest_s[i], latest_s[step] - seconds)
        cost += dollars
    return cost


def _at_rate(rate: float, price: Price) -> float:
    return price[0] * rate + price[1]


def _undominated(prices: Sequence[Price]) -> list[int]:
    """The options of a step that no other one equals or beats, the fastest first.

    Exact: a critical path grows with each time, and the cost is a sum.
    """
    found: list[int] = []
    for option in sorted(range(len(prices)), key=lambda i: (prices[i], i)):
        if not found or prices[option][1] < prices[found[-1]][1]:
            found.append(option)
    return found


def _pruned(states: list[_State], states_max: int) -> list[_State]:
    """The states that no other one equals or beats, sorted."""
    states.sort()
    numbers = len(states[0].finishes_s) if states else 0
    kept = _PRUNED.get(numbers, _pruned_by_pairs)(states)
    if len(kept) <= states_max:
        return kept
    step = len(kept) / (states_max - 1)
    cheapest = min(kept, key=attrgetter("cost_usd"))
    return sorted({*(kept[int(i * step)] for i in range(states_max - 1)), cheapest})


def _pruned_by_cost(states: list[_State]) -> list[_State]:
    """Of one number: sorted by it, each must cost less than all before it."""
    kept: list[_State] = []
    for state in states:
        if not kept or state.cost_usd < kept[-1].cost_usd:
            kept.append(state)
    return kept


def _pruned_by_steps(states: list[_State]) -> list[_State]:
    """Of two numbers: sorted by the first; the second and the cost form a staircase."""
    kept: list[_State] = []
    seconds_s: list[float] = []  #: ascending, of the states that no earlier one beats
    costs: list[float] = []  #: falling
    for state in states:
        second_s, cost = state.finishes_s[1], state.cost_usd
        at = bisect_right(seconds_s, second_s)
        if at and costs[at - 1] <= cost:
            continue
        kept.append(state)
        first = bisect_left(seconds_s, second_s)
        end = first
        while end < len(costs) and costs[end] >= cost:
            end += 1
        seconds_s[first:end], costs[first:end] = [second_s], [cost]
    return kept


def _pruned_by_pairs(states: list[_State]) -> list[_State]:
    """Of more numbers: against every one that is kept, those that beat others first."""
    kept: list[tuple[tuple[float, ...], _State]] = []
    for state in states:
        point = (*state.finishes_s, state.cost_usd)
        for place, (other, _) in enumerate(kept):
            if all(map(le, other, point)):
                if place:
                    half = place // 2
                    kept[half], kept[place] = kept[place], kept[half]
                break
        else:
            kept.append((point, state))
    return sorted(state for _, state in kept)


_PRUNED = {0: _pruned_by_cost, 1: _pruned_by_cost, 2: _pruned_by_steps}


def within(
    found: Sequence[Placement], latency_s: float | None, cost_usd: float | None
) -> Sequence[Placement]:
    """The placements that meet both objectives: one slice, because cost falls along latency."""
    first, end = 0, len(found)
    if latency_s is not None:
        end = bisect_right(found, latency_s, key=lambda one: one.latency_s)
    if cost_usd is not None:
        first = bisect_left(found, -cost_usd, key=lambda one: -one.cost_usd)
    return found[first:end]

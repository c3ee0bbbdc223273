"""Connections at the gateway wait in turn, and a newer one evicts one of the source with most."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.host.gateway.arrivals import (
    PORTION,
    PORTION_PROVEN,
    PROVEN_MAX,
    PROVEN_S,
    Arrivals,
    Slots,
)


def test_a_flood_from_two_sources_delays_another_one_by_no_portion() -> None:
    arrivals: Arrivals[str] = Arrivals(1000)
    for number in range(2900):
        arrivals.arrived("flood", f"10.0.0.{number % 2}", 0.0)
    arrivals.arrived("tenant", "10.0.0.9", 0.0)
    assert "tenant" in arrivals.portion()


def test_a_flood_loses_its_own_connections() -> None:
    arrivals: Arrivals[str] = Arrivals(100)
    arrivals.arrived("tenant", "10.0.0.9", 0.0)
    dropped = [arrivals.arrived("flood", "10.0.0.1", 0.0) for _ in range(300)]
    assert Counter(dropped) == {None: 99, "flood": 201}
    assert len(arrivals) == 100


def test_a_proven_source_is_served_before_a_thousand_unproven_ones() -> None:
    arrivals: Arrivals[str] = Arrivals(2000)
    arrivals.proved("10.0.0.9", 0.0)
    for number in range(1000):
        arrivals.arrived("flood", f"10.1.{number // 250}.{number % 250}", PROVEN_S - 1)
    arrivals.arrived("tenant", "10.0.0.9", PROVEN_S - 1)
    assert arrivals.portion()[0] == "tenant"
    arrivals.arrived("late", "10.0.0.9", PROVEN_S)
    assert "late" not in arrivals.portion(), "its proof is too old"


def test_a_flood_of_a_proven_source_leaves_places_for_others() -> None:
    arrivals: Arrivals[str] = Arrivals(1000)
    arrivals.proved("10.0.0.1", 0.0)
    for number in range(500):
        arrivals.arrived("proven", "10.0.0.1", 0.0)
        arrivals.arrived("other", f"10.1.0.{number % 250}", 0.0)
    counts = Counter(arrivals.portion())
    assert counts == {"proven": PORTION_PROVEN, "other": PORTION - PORTION_PROVEN}


def test_one_ipv6_network_is_one_source_and_a_local_socket_comes_first() -> None:
    arrivals: Arrivals[str] = Arrivals(2)
    arrivals.arrived("a", "2001:db8::1", 0.0)
    arrivals.arrived("b", "2001:db9::1", 0.0)
    assert arrivals.arrived("c", "2001:db8::2", 0.0) == "a"
    assert arrivals.arrived("local", "", 0.0) == "c"
    assert arrivals.portion() == ["local", "b"]


def test_proven_sources_are_forgotten_above_their_number() -> None:
    arrivals: Arrivals[str] = Arrivals(10)
    for number in range(PROVEN_MAX + 1):
        arrivals.proved(f"source{number}", 0.0)
    arrivals.arrived("first", "source0", 1.0)
    arrivals.arrived("last", f"source{PROVEN_MAX}", 1.0)
    assert arrivals.portion() == ["last", "first"]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.booleans()), max_size=60))
def test_every_connection_is_served_or_dropped_once(moves: list[tuple[str, bool]]) -> None:
    arrivals: Arrivals[int] = Arrivals(8)
    out: list[int] = []
    for number, (source, serves) in enumerate(moves):
        dropped = arrivals.arrived(number, source, 0.0)
        out += [] if dropped is None else [dropped]
        assert len(arrivals) <= 8
        if serves:
            out += arrivals.portion()
            arrivals.proved("a", 0.0)
    while len(arrivals):
        out += arrivals.portion()
    assert sorted(out) == list(range(len(moves)))
    assert arrivals.portion() == []


def test_a_source_above_its_limit_loses_its_oldest_connection() -> None:
    slots = Slots(5, 2)
    evicted: list[int] = []
    with contextlib.ExitStack() as stack:
        for number, source in enumerate("abbb"):
            stack.enter_context(slots.held(source, functools.partial(evicted.append, number)))
        assert evicted == [1]


def test_a_flood_evicts_no_connection_of_another_source() -> None:
    slots = Slots(6, 4)
    evicted: list[str] = []
    with contextlib.ExitStack() as stack:
        for source in ("tenant", *(f"flood{number % 2}" for number in range(50)), "tenant"):
            stack.enter_context(slots.held(source, functools.partial(evicted.append, source)))
    assert len(evicted) == 46
    assert "tenant" not in evicted


def test_one_ipv6_network_is_one_source() -> None:
    slots = Slots(5, 1)
    evicted: list[int] = []
    with slots.held("2001:db8::1", lambda: evicted.append(1)), slots.held("2001:db8::2", print):
        assert evicted == [1]


def test_a_slot_is_free_again_after_an_error() -> None:
    slots = Slots(1, 1)
    for _ in range(2):
        with pytest.raises(KeyError), slots.held("a", pytest.fail):
            raise KeyError

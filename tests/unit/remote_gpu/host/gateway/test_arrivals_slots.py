"""Slots at the gateway: a newer connection evicts one of the source that has most."""

from __future__ import annotations

import contextlib
import functools

import pytest

from remote_gpu.host.gateway.arrivals import Slots


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

"""Counted places: none for more than the limit, nor for more than one source may have."""

from __future__ import annotations

import contextlib

import pytest

from remote_gpu.host.gateway.peer_slots import Slots
from remote_gpu.wire.errors import Refusal, Refused


def test_a_source_takes_its_part_and_leaves_the_rest_to_others() -> None:
    slots = Slots(5, 3, "visitors")
    with contextlib.ExitStack() as stack:
        for source in ("a", "a", "a", "b"):
            stack.enter_context(slots.held(source))
        with pytest.raises(Refused, match="3 visitors are open here from a") as caught:
            stack.enter_context(slots.held("a"))
        assert caught.value.code == Refusal.BUSY
        stack.enter_context(slots.held("b"))
        with pytest.raises(Refused, match="5 visitors are open here"):
            stack.enter_context(slots.held("c"))
    for _ in range(2):  # all places are free again, also after an error inside
        with contextlib.suppress(KeyError), slots.held("a"), slots.held("a"), slots.held("a"):
            raise KeyError


def test_a_newer_one_takes_the_place_of_the_oldest() -> None:
    slots, lost = Slots(3, 2, "visitors"), []
    with contextlib.ExitStack() as stack:

        def enter(source: str, number: int) -> None:
            stack.enter_context(slots.held(source, lambda: lost.append(number)))

        for number, source in enumerate("abb"):
            enter(source, number)
        enter("b", 3)  # one of its own goes
        assert lost == [1]
        enter("c", 4)  # b has most
        assert lost == [1, 2]
        stack.enter_context(slots.held("d"))  # takes a place, and keeps it
        enter("e", 5)
        enter("f", 6)
        assert lost == [1, 2, 0, 3, 4]
        stack.enter_context(slots.held("d"))
        stack.enter_context(slots.held("e"))
        with pytest.raises(Refused, match="3 visitors are open here"):
            enter("f", 7)
    with slots.held("a"), slots.held("a"), slots.held("b"):  # nobody left twice
        assert lost == [1, 2, 0, 3, 4, 5, 6]


def test_a_flood_from_a_few_sources_takes_nothing_from_another_one() -> None:
    slots, lost = Slots(6, 4, "visitors"), []
    with contextlib.ExitStack() as stack:

        def enter(source: str) -> None:
            stack.enter_context(slots.held(source, lambda: lost.append(source)))

        enter("tenant")
        for number in range(50):
            enter(f"flood{number % 2}")
        assert "tenant" not in lost
        enter("tenant")
        assert "tenant" not in lost

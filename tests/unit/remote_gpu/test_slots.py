"""Counted places: none for more than the limit, nor for more than one source may have."""

from __future__ import annotations

import contextlib

import pytest

from remote_gpu.host.slots import Slots
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

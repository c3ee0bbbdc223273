"""Fixtures of tests of the scheduler's core: a world without hosts, and one with a host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol.changes import decode_entry, encode_entry
from simulator.invariants import check
from tests.scheduler_world import World, device


@pytest.fixture
def world() -> Iterator[World]:
    """A core without hosts; after the test its journal must replay to the same state."""
    made = World()
    yield made
    replayed = made.replayed()
    assert replayed.snapshot() == made.machine.snapshot()
    assert check(replayed.state) == []
    again = SchedulerMachine(made.budget, IdSource("compacted"))
    for entry in made.machine.snapshot():
        again.apply(decode_entry(encode_entry(entry)))
    assert again.snapshot() == made.machine.snapshot()
    assert check(again.state) == []


@pytest.fixture
def one(world: World) -> World:
    """One host with one device of 1000 MiB."""
    world.host("h1", device("d1"))
    return world


@pytest.fixture
def whole() -> Request:
    """A request for a whole device."""
    return Request(sharing=Sharing.EXCLUSIVE)

"""Policy `least_loaded`: the device with the least measured utilisation, with hysteresis."""

from typing import Any

import pytest

from gpu_scheduler.model import Request, Sharing, Usage
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device, world_with

SHARE = Request(memory_mib=100)


class Measured:
    """A host with devices of stated utilisation."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.devices = tuple(device(f"d{n}", index=n) for n in range(count))
        world.alive["s1"] = None
        world.host("h", *self.devices)

    def at(self, *utilisation_pct: int) -> None:
        """The report of these figures."""
        usage = tuple(
            Usage(device=device.id, memory_used_mib=0, utilisation_pct=figure)
            for device, figure in zip(self.devices, utilisation_pct, strict=True)
        )
        self.world.report("h", *self.devices, usage=usage)

    def place(self, attempt: str, request: Request = SHARE) -> Any:
        """The device of a request that is granted at once."""
        return self.world.granted(attempt, request).shares[0].device


@pytest.fixture
def two() -> Measured:
    """Two devices; leases are never young, so only reports count."""
    world = World(policy="least_loaded", policy_parameters={"least_loaded.settle_s": 0.0})
    return Measured(world, 2)


def test_the_device_with_the_least_utilisation_is_taken(two: Measured) -> None:
    two.at(60, 20)
    assert [two.place(attempt) for attempt in "abc"] == ["d1", "d1", "d1"]
    two.at(10, 20)
    assert two.place("d") == "d0"


def test_devices_of_about_equal_utilisation_take_turns(two: Measured) -> None:
    two.at(21, 29)
    assert [two.place(attempt) for attempt in "abc"] == ["d0", "d1", "d0"]


def test_young_leases_count_before_a_report_shows_them() -> None:
    world = World(policy="least_loaded")
    two = Measured(world, 2)
    two.at(0, 30)
    assert [two.place(attempt) for attempt in "abc"] == ["d0", "d0", "d1"]


def test_a_busy_device_stays_busy_until_it_is_idle_enough(two: Measured) -> None:
    two.at(85, 75)
    assert two.place("a") == "d1"
    two.at(60, 75)
    assert two.place("b") == "d1"
    two.at(50, 75)
    assert two.place("c") == "d0"


def test_a_share_waits_for_a_device_that_is_not_busy_but_not_for_long(two: Measured) -> None:
    two.at(85, 95)
    two.world.reserve("a", SHARE)
    explanation = two.world.ask(ops.Explain, attempt="a").explanation
    assert explanation.held_back is HeldBack.POLICY
    assert explanation.expected_s == pytest.approx(5.0)
    assert "every device that fits is busy, h/0 the least (85 %)" in explanation.sentence
    two.world.advance(4.9)
    assert two.world.leases == []
    two.world.advance(1.2)
    assert [lease.shares[0].device for lease in two.world.leases] == ["d0"]


def test_a_report_of_less_load_ends_the_wait(two: Measured) -> None:
    two.at(85, 95)
    two.world.reserve("a", SHARE)
    two.at(85, 40)
    two.world.advance(1.1)
    assert [lease.shares[0].device for lease in two.world.leases] == ["d1"]


def test_a_request_for_a_whole_device_does_not_wait(two: Measured) -> None:
    two.at(90, 95)
    assert two.place("a", Request(sharing=Sharing.EXCLUSIVE)) == "d0"


def test_devices_without_a_report_count_as_idle() -> None:
    world = world_with(device("d"), policy="least_loaded")
    assert world.granted("a", SHARE).shares[0].device == "d"


def test_without_patience_nothing_waits_that_fits(two: Measured) -> None:
    two.world.ask(ops.SetParameter, name="policy.least-loaded.patience_s", value="0")
    two.at(90, 95)
    assert two.place("a") == "d0"

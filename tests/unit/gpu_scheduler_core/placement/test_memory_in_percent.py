"""Memory in percent of a device: the MiB of a share follow from the device that it is on."""

from __future__ import annotations

import pytest

from gpu_scheduler.model import Placement, Request
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import World, device, world_with

EIGHTH = Request(memory_pct=12.5, compute_guarantee_pct=12.5)


@pytest.mark.parametrize("memory_mib", [8192, 7681, 7])
def test_eight_eighths_share_a_device_and_the_ninth_waits(memory_mib: int) -> None:
    """Row 8 of Table 4 of the KNIX paper, on devices of any size."""
    world = world_with(device("d", memory_mib))
    leases = [world.granted(f"pod-{number}", EIGHTH) for number in range(8)]
    assert [lease.shares[0].memory_mib for lease in leases] == [memory_mib // 8] * 8
    assert [lease.shares[0].compute_guarantee_pct for lease in leases] == [12.5] * 8
    assert world.reserve("ninth", EIGHTH).outcome is answers.Outcome.WAITING
    assert world.ask(ops.Explain, attempt="ninth").explanation.counts == {
        NoFit.COMPUTE if memory_mib < 8 else NoFit.MEMORY: 1
    }
    world.release(leases[3])
    assert world.grants() == ["ninth"]


def test_the_size_of_the_device_decides() -> None:
    world = world_with(device("small", 1000), device("large", 4000, index=1, model="L"))
    half = Request(memory_pct=50)
    on_large = world.granted("l", Request(memory_pct=50, models=("L",)))
    assert on_large.shares[0].memory_mib == 2000
    assert (
        world.granted("s", Request(memory_pct=50, memory_max_mib=1000)).shares[0].memory_mib == 500
    )
    world.granted("s2", Request(memory_mib=300, memory_max_mib=1000))
    # 200 of 1000 MiB are left on one and 2000 of 4000 on the other
    assert world.granted("any", half).shares[0].device == "large"
    assert world.reserve("next", half).outcome is answers.Outcome.WAITING


@pytest.mark.parametrize("placement", Placement)
def test_devices_of_different_sizes_serve_one_request(placement: Placement) -> None:
    world = world_with(device("small", 1000), device("large", 4000, index=1))
    lease = world.granted("a", Request(count=2, memory_pct=25, placement=placement))
    assert sorted((s.device, s.memory_mib) for s in lease.shares) == [
        ("large", 1000),
        ("small", 250),
    ]


def test_spread_takes_the_device_with_the_largest_part_free() -> None:
    world = world_with(device("a", 1000), device("b", 1000, index=1))
    first = world.granted("1", Request(memory_pct=30, placement=Placement.SPREAD))
    second = world.granted("2", Request(memory_pct=30, placement=Placement.SPREAD))
    assert {first.shares[0].device, second.shares[0].device} == {"a", "b"}


def test_a_request_for_a_part_is_no_best_effort() -> None:
    """Packed, although the other device has fewer leases."""
    world = world_with(device("a", 1000), device("b", 1000, index=1))
    world.granted("1", Request(memory_pct=50))
    world.granted("2", Request(memory_pct=25))
    (host,) = world.ask(ops.Inventory).hosts
    assert sorted(view.memory_free_mib for view in host.devices) == [250, 1000]


def test_a_quota_of_memory_bounds_the_size_of_the_device() -> None:
    world = World(quotas={"t": Quota(memory_mib=600)})
    world.host("h", device("large", 4000), device("small", 1000, index=1))
    quarter = Request(memory_pct=25, tenant="t")
    leases = [world.granted(str(number), quarter) for number in range(2)]
    assert [lease.shares[0].device for lease in leases] == ["small", "small"]
    assert world.reserve("third", quarter).outcome is answers.Outcome.WAITING  # 100 MiB are left
    world.release(leases[0])
    assert world.grants() == ["third"]


def test_the_largest_fit_of_an_impossible_request_is_a_size() -> None:
    world = world_with(device("d", 1000))
    answer = world.reserve("a", Request(count=2, memory_pct=50, compute_guarantee_pct=10))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert (answer.explanation.largest.memory_mib, answer.explanation.largest.memory_pct) == (
        1000,
        0,
    )
    assert "2 × device with 50 % memory, 10 % compute" in answer.explanation.sentence

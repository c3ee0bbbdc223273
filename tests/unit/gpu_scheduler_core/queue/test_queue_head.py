"""The head of the queue: a request that no available device can serve does not block others."""

from typing import Any

from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with


def part(memory_mib: int, tenant: str = "o", **fields: Any) -> Request:
    return Request(tenant=tenant, memory_mib=memory_mib, **fields)


def whole(**fields: Any) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, **fields)


def passed(world: World, request: Request, rounds: int = 4) -> bool:
    """Grant overlapping shares; True when one of them had to wait."""
    lease = world.granted("pass0", request)
    for n in range(1, rounds):
        answer = world.reserve(f"pass{n}", request)
        if answer.outcome is not answers.Outcome.GRANTED:
            return True
        world.release(lease)
        lease = answer.granted.lease
    return False


def test_more_room_in_a_quota_allows_larger_devices() -> None:
    world = World(quotas={"t": Quota(memory_mib=1500)})
    world.host("h", device("large", memory_mib=1200), device("d", index=1))
    own = world.granted("own", part(500, "t", models=("M",)))
    other = world.granted("other", part(100))
    assert {s.device for lease in (own, other) for s in lease.shares} == {"d"}
    answer = world.reserve("a", whole(tenant="t"))
    assert answer.outcome is answers.Outcome.WAITING
    world.release(own)
    assert world.grants() == ["a"]


def test_the_head_stays_the_head_while_only_larger_devices_are_free() -> None:
    world = World(quotas={"t": Quota(memory_mib=1200)}, bypass_max=1)
    world.host("h", device("large", memory_mib=2000), device("d", index=1))
    big = world.granted("big", whole(tenant="o", memory_mib=2000))
    world.granted("first", part(100))
    world.reserve("a", whole(tenant="t"))
    world.reserve("b", whole(tenant="o", memory_mib=2000))
    world.release(big)
    assert world.grants() == ["b"]
    assert passed(world, part(100, memory_max_mib=1000))


def test_a_request_at_its_quota_is_not_the_head() -> None:
    world = World(quotas={"t": Quota(memory_mib=1500)}, bypass_max=1)
    world.host("h", device("large", memory_mib=1200), device("d", index=1, kind=DeviceKind.CPU))
    world.granted("own", part(500, "t", kinds=(DeviceKind.CPU,)))
    world.granted("first", part(100, kinds=(DeviceKind.CUDA,)))
    world.reserve("a", whole(tenant="t", kinds=(DeviceKind.CUDA,)))
    world.reserve("b", whole(tenant="o", kinds=(DeviceKind.CUDA,)))
    assert passed(world, part(100, kinds=(DeviceKind.CUDA,)))


def test_a_request_for_a_drained_device_is_not_the_head() -> None:
    world = world_with(device("d"), device("e", index=1, kind=DeviceKind.CPU), bypass_max=1)
    world.ask(ops.Drain, host=HostId("h"), device=DeviceId("e"), revoke=False)
    world.granted("first", part(100))
    world.reserve("a", whole(kinds=(DeviceKind.CPU,)))
    world.reserve("b", whole(kinds=(DeviceKind.CUDA,)))
    assert passed(world, part(100))


def test_a_same_host_gang_is_the_head_only_while_a_host_has_enough() -> None:
    world = world_with(device("d"), device("e", index=1), bypass_max=1)
    world.host("i", device("f"))
    world.ask(ops.Drain, host=HostId("h"), device=DeviceId("e"), revoke=False)
    world.granted("hold", whole(tenant="o"))
    world.granted("first", part(100))
    world.reserve("gang", whole(count=2, placement=Placement.SAME_HOST))
    world.reserve("b", whole())
    assert passed(world, part(100))
    world.ask(ops.Undrain, host=HostId("h"), device=DeviceId("e"))
    assert world.machine.state.head_reservation.attempt == "gang"  # at its old place
    for lease in world.leases:
        world.release(lease)
    assert "gang" in {lease.attempt for lease in world.leases}


def test_a_gang_within_its_quota_reserves_a_host_with_small_enough_devices() -> None:
    world = World(quotas={"t": Quota(memory_mib=2400)}, bypass_max=0)
    world.host("h", device("large", 2000), device("larger", 3000, index=1))
    world.host("i", device("d"), device("e", index=1))
    share = world.granted("share", part(100))
    world.reserve("gang", whole(tenant="t", count=2, placement=Placement.SAME_HOST))
    assert set(world.machine.state.head_reservation.devices) == {"d", "e"}
    assert world.reserve("pass", part(100, memory_max_mib=1000)).outcome is answers.Outcome.WAITING
    world.release(share)
    assert world.grants() == ["gang"]


def test_a_head_that_lost_its_reserved_devices_blocks_no_other() -> None:
    world = world_with(device("d"), device("e", index=1, kind=DeviceKind.CPU), bypass_max=0)
    share = world.granted("first", part(100, kinds=(DeviceKind.CPU,)))
    world.granted("second", part(100, kinds=(DeviceKind.CUDA,)))
    world.reserve("a", whole(kinds=(DeviceKind.CPU,)))
    world.ask(ops.Drain, host=HostId("h"), device=DeviceId("e"), revoke=False)
    world.reserve("b", whole(kinds=(DeviceKind.CUDA,)))
    assert world.reserve("pass", part(100)).outcome is answers.Outcome.WAITING
    world.release(share)
    world.ask(ops.Undrain, host=HostId("h"), device=DeviceId("e"))
    assert world.grants() == ["a"]

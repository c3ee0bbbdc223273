"""Policy `srtf`: the shortest expected time first."""

from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device, world_with


def whole(lease_s: float | None) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, lease_s=lease_s)


def test_the_shortest_request_is_first_and_unknown_times_are_last() -> None:
    world = world_with(device("d"), policy="srtf")
    lease = world.granted("now", whole(None))
    for attempt, lease_s in (("unknown", None), ("long", 90.0), ("short", 2.0), ("middle", 20.0)):
        world.reserve(attempt, whole(lease_s))
    order = []
    for _ in range(4):
        world.release(lease)
        order += world.grants()
        (lease,) = world.leases
        world.renew(lease)
    assert order == ["short", "middle", "long", "unknown"]


def test_under_strict_head_a_single_device_serves_long_requests_too() -> None:
    world = world_with(device("d"), policy="srtf", policy_parameters={"srtf.strict_head": True})
    world.release(world.granted("short", whole(1.0)))
    assert world.granted("long", whole(60.0))


def test_explain_has_the_reason_of_strict_head() -> None:
    world = World(policy="srtf", policy_parameters={"srtf.strict_head": True})
    world.host("h", device("d0", index=0), device("d1", index=1))
    world.granted("short", whole(1.0))
    world.reserve("long", whole(60.0))
    explanation = world.ask(ops.Explain, attempt="long").explanation
    assert explanation.held_back is HeldBack.POLICY
    assert explanation.sentence.endswith(
        "policy srtf: it takes 60 s, a request of 1 s is the shortest known: "
        "it starts while two devices are free"
    )

"""Policy `rr`: the devices in turn, with one blocking queue or one for each device."""

import pytest

from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


@pytest.fixture
def world() -> World:
    made = World(policy="rr")
    made.alive["s1"] = None
    made.host("h", *(device(f"d{n}", index=n) for n in range(3)))
    return made


def turn(world: World, attempt: str, request: Request = WHOLE) -> list[str]:
    """The devices of a request that is granted at once."""
    return [share.device for share in world.granted(attempt, request).shares]


def test_a_device_out_of_service_is_passed_over(world: World) -> None:
    assert turn(world, "a") == ["d0"]
    world.ask(ops.Drain, host="h", device="d1")
    assert turn(world, "b") == ["d2"]


def test_a_request_for_several_devices_takes_as_many_turns(world: World) -> None:
    assert turn(world, "pair", Request(count=2)) == ["d0", "d1"]
    assert turn(world, "one", Request()) == ["d2"]


def test_a_request_that_no_available_device_serves_blocks_no_other(world: World) -> None:
    world.host("big", device("big", memory_mib=4000))
    world.ask(ops.Drain, host="big")
    world.reserve("large", Request(memory_mib=4000))
    assert turn(world, "small") == ["d0"]


def test_explain_has_the_turn(world: World) -> None:
    for attempt in "abc":
        turn(world, attempt)
    world.release(world.leases[2])
    world.reserve("d", WHOLE)
    world.reserve("e", WHOLE)
    texts = {}
    for attempt in "de":
        explanation = world.ask(ops.Explain, attempt=attempt).explanation
        assert explanation.held_back is HeldBack.POLICY
        texts[attempt] = explanation.sentence.partition("policy rr: ")[2]
    assert texts == {"d": "its turn is on h/0", "e": "d is next, on h/0"}


def test_the_queue_of_a_device_survives_a_restart_and_forgets_requests_that_are_gone(
    world: World,
) -> None:
    world.ask(ops.SetParameter, name="policy.rr.queues", value="device")
    leases = [world.granted(attempt, WHOLE) for attempt in "abc"]
    for attempt in "defg":
        world.reserve(attempt, WHOLE)
    assert world.ask(ops.Explain, attempt="e").explanation.sentence.endswith(
        "policy rr: it waits in the queue of h/1; when it can be served is unknown: "
        "3 of 3 feasible devices have leases without a stated length"
    )
    world.ask(ops.Withdraw, attempt="d")
    world.start()
    world.host("h", *(device(f"d{n}", index=n) for n in range(3)))
    world.advance(1.0)
    world.release(leases[0])
    assert world.grants() == ["g"]
    world.release(leases[1])
    assert world.grants() == ["e"]
    assert list(world.machine.state.memory.values) == ["last", "queue/f"]

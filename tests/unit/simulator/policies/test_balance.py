"""Policy `balance`: first come, first served on the next free device."""

from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol import answers
from tests.scheduler_world import device, world_with

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


def test_devices_take_turns() -> None:
    world = world_with(*(device(f"d{n}", index=n) for n in range(3)), policy="balance")
    used = []
    for turn in range(5):
        lease = world.granted(f"a{turn}", WHOLE)
        used.append(lease.shares[0].device)
        world.release(lease)
    assert used == ["d0", "d1", "d2", "d0", "d1"]


def test_the_turn_survives_a_restart() -> None:
    world = world_with(device("d0", index=0), device("d1", index=1), policy="balance")
    world.release(world.granted("a", WHOLE))
    world.start()
    world.host("h", device("d0", index=0), device("d1", index=1))
    assert world.granted("b", WHOLE).shares[0].device == "d1"


def test_a_small_request_overtakes_one_that_does_not_fit() -> None:
    world = world_with(device("d0", index=0), device("d1", index=1), policy="balance")
    first = world.granted("first", Request(memory_mib=600))
    world.granted("second", Request(memory_mib=600))
    assert world.reserve("pair", Request(count=2, sharing=Sharing.EXCLUSIVE)).granted is None
    assert world.reserve("large", Request(memory_mib=500)).granted is None
    small = world.reserve("small", Request(memory_mib=300))
    assert small.outcome is answers.Outcome.GRANTED
    world.release(first)
    assert world.grants() == ["large"]

"""Every state that keeps a request waiting, with the reported reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from corekit.ids import HostId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.model import Health, Request, Sharing, Symptom
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device

WHOLE = Request(sharing=Sharing.EXCLUSIVE, memory_mib=500)


def lent(world: Any) -> None:
    world.granted("taken", WHOLE)


def drained(world: Any) -> None:
    world.ask(ops.Drain, host=HostId("h"))


def device_drained(world: Any) -> None:
    world.ask(ops.Drain, host=HostId("h"), device="d")


def silent(world: Any) -> None:
    world.hosts.clear()
    world.advance(world.budget.host_stale_s + 1)


def lost(world: Any) -> None:
    world.hosts.clear()
    world.advance(world.budget.host_lost_s + 1)


def unhealthy(health: Health) -> Callable[[Any], None]:
    def change(world: Any) -> None:
        (device,) = world.hosts["h"]
        sick = replace(device, health=health, symptoms=(Symptom.HUNG,), detail="it hangs")
        world.report("h", sick)

    return change


def quota_used(world: Any) -> None:
    world.host("h2", world.spare)
    world.ask(ops.SetParameter, name="quota.default.devices", value=1)
    world.granted("taken", WHOLE)


def leases_full(world: Any) -> None:
    world.host("h2", world.spare)
    world.granted("taken", WHOLE)
    world.ask(ops.SetParameter, name="leases_max", value=1)


def disk_full(world: Any) -> None:
    world.handle(on.RoomChanged, has_room=False)


@pytest.mark.parametrize(
    ("state", "held_back", "says"),
    [
        (lent, None, "1 allocated exclusively"),
        (drained, HeldBack.OUT_OF_SERVICE, "out of service: h (DRAINED)"),
        (device_drained, HeldBack.OUT_OF_SERVICE, "out of service: h/0 (DRAINED)"),
        (silent, HeldBack.OUT_OF_SERVICE, "out of service: h (STALE)"),
        (lost, HeldBack.OUT_OF_SERVICE, "out of service: h (LOST)"),
        (unhealthy(Health.SUSPECT), HeldBack.OUT_OF_SERVICE, "h/0 (SUSPECT: it hangs)"),
        (unhealthy(Health.BAD), HeldBack.OUT_OF_SERVICE, "h/0 (BAD: it hangs)"),
        (
            quota_used,
            HeldBack.QUOTA,
            "has used up its quota of 1 devices (it holds 1 devices, 1000 MiB, 100 %)",
        ),
        (leases_full, HeldBack.LEASES_MAX, "the limit of 1 live leases"),
        (disk_full, HeldBack.JOURNAL_FULL, "no room for new grants"),
    ],
)
def test_the_rule_that_holds_back_a_request_is_reported(
    world: Any, state: Callable[[Any], None], held_back: HeldBack | None, says: str
) -> None:
    world.spare = device("d2")
    world.host("h", device("d"))
    world.host("s", device("small", memory_mib=10))  # can never serve it: no reason to wait
    state(world)
    answer = world.reserve("b", WHOLE)
    assert answer.outcome.value == "waiting", answer
    why = answer.explanation
    assert why.held_back is held_back
    assert says in why.sentence
    told = world.ask(ops.Explain, attempt="b").explanation
    assert (told.held_back, told.position) == (held_back, 1)
    assert says in told.sentence


def test_the_queue_is_served_when_the_journal_has_room_again(one: World) -> None:
    held = one.granted("a", WHOLE)
    one.reserve("b", WHOLE)
    one.handle(on.RoomChanged, has_room=False)
    assert one.grants() == []
    one.release(held)
    assert one.grants() == [], "a lease ends, and its device is not granted"
    refused = one.reserve("c", WHOLE, wait=False)
    assert refused.outcome is answers.Outcome.BUSY
    assert "no room for new grants" in refused.explanation.sentence
    one.handle(on.RoomChanged, has_room=True)
    assert one.grants() == ["b"]

"""A full disk stops all grants; live leases continue and end."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.model import EndReason, Request, Sharing
from gpu_scheduler.protocol import answers, ops

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


def pushes(actions: list[do.Action]) -> list[str]:
    granted = [a.push for a in actions if isinstance(a, do.PushToSession)]
    return [push.attempt for push in granted if isinstance(push, answers.GrantedPush)]


def test_the_queue_is_served_when_the_journal_has_room_again(one: Any) -> None:
    world = one
    held = world.reserve("a", WHOLE)
    world.reserve("b", WHOLE)
    assert pushes(world.handle(on.RoomChanged, has_room=False)) == []
    released = world.ask(
        ops.Release, lease=held.granted.lease.id, reason=EndReason.RELEASED, detail=""
    )
    assert pushes(released) == [], "a lease ends, and nobody gets its device"
    refused = world.reserve("c", WHOLE, wait=False)
    assert refused.outcome is answers.Outcome.BUSY
    assert "no room for new grants" in refused.explanation.sentence
    assert pushes(world.handle(on.RoomChanged, has_room=True)) == ["b"]

"""A full disk stops all grants; live leases continue and end."""

from __future__ import annotations

from gpu_scheduler.core import events as on
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol import answers
from tests.scheduler_world import World

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


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

"""Ring of the event stream, and its readers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpu_scheduler.daemon.events import ring as ring_module
from gpu_scheduler.daemon.events.ring import ChangeRing
from gpu_scheduler.daemon.events.subscriber import StreamLine, Subscriber
from gpu_scheduler.protocol.watch import ParameterChanged, Position, position_of


def ring_of(count: int) -> ChangeRing:
    ring = ChangeRing(3, "ab")
    for n in range(1, count + 1):
        ring.add(ParameterChanged(name="p", value=n), 0.0)
    return ring


async def read(subscriber: Subscriber, count: int) -> list[dict[str, Any]]:
    """At least so many events, and those that came with the last of them."""
    events: list[dict[str, Any]] = []
    async for portion in subscriber.portions():
        events += [json.loads(line.text) for line in portion]
        if len(events) >= count:
            break
    return events


def test_the_text_of_a_position_is_read_back() -> None:
    position = Position(epoch=3, run="ab", seq=17)
    assert position_of(str(position)) == position
    assert [position_of(text) for text in ("", "x", "1.2", "1.ab.-1")] == [None] * 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3.ab.5", None),
        ("3.ab.0", None),
        ("3.ab.6", "after the newest"),
        ("2.ab.5", "epoch 2"),
        ("3.cd.5", "epoch 3"),
        ("nonsense", "is not a position"),
    ],
)
def test_a_stream_continues_only_at_a_position_of_its_run(text: str, why: str | None) -> None:
    found = ring_of(5).resumable(text)
    assert isinstance(found, Position) if why is None else why in str(found)


def test_a_full_ring_loses_its_oldest_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "EVENTS_MAX", 3)
    ring = ring_of(5)
    assert [ring.lost_after(seq) for seq in range(6)] == [True, True, False, False, False, False]
    assert "too old" in str(ring.resumable("3.ab.1"))
    assert isinstance(ring.resumable("3.ab.2"), Position)


def test_the_bytes_of_a_ring_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "BYTES_MAX", 3 * len(b'{"name":"p","value":1}'))
    assert [ring_of(5).lost_after(seq) for seq in range(3)] == [True, True, False]


def test_no_stream_continues_before_an_interruption() -> None:
    ring = ring_of(5)
    ring.interrupt()
    assert "too old" in str(ring.resumable("3.ab.5"))
    assert isinstance(ring.resumable(str(ring.position(ring.last))), Position)


def test_a_reader_gets_the_changes_after_its_position() -> None:
    events = asyncio.run(read(Subscriber(ring_of(5), after=3), 2))
    assert [(one["value"], one["seq"], one["position"]) for one in events] == [
        (4, 1, "3.ab.4"),
        (5, 2, "3.ab.5"),
    ]


def test_a_reader_whose_next_change_is_lost_gets_that_as_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_module, "EVENTS_MAX", 3)
    ring = ring_of(1)
    slow = Subscriber(ring, after=0)
    for n in range(10):
        ring.add(ParameterChanged(name="p", value=n), 0.0)

    async def all_of() -> list[dict[str, Any]]:
        return [json.loads(line.text) async for lines in slow.portions() for line in lines]

    (lost,) = asyncio.run(all_of())
    assert (lost["event"], lost["why"]) == ("lost", "the reader is too slow")


def test_changes_of_one_moment_are_one_portion() -> None:
    subscriber = Subscriber(ring_of(5), after=0)

    async def first() -> list[StreamLine]:
        async for portion in subscriber.portions():
            return portion
        return []

    assert [line.position for line in asyncio.run(first())] == [f"3.ab.{n}" for n in range(1, 6)]


def test_the_end_of_a_stream_comes_after_the_changes_before_it() -> None:
    subscriber = Subscriber(ring_of(2), after=0)
    subscriber.end("ssgmd stops", 0.0)
    events = asyncio.run(read(subscriber, 3))
    assert [one["event"] for one in events] == ["parameter", "parameter", "lost"]


def test_a_revoked_key_ends_a_stream_at_once() -> None:
    subscriber = Subscriber(ring_of(2), after=0)
    subscriber.close()
    assert [one["event"] for one in asyncio.run(read(subscriber, 1))] == ["lost"]


def test_a_beat_waits_for_a_reader_that_has_read_everything() -> None:
    async def beats() -> list[dict[str, Any]]:
        behind = Subscriber(ring_of(1), after=0)
        behind.beat(0.0)
        first = await read(behind, 1)
        behind.beat(0.0)
        return first + await read(behind, 1)

    events = asyncio.run(beats())
    assert [(one["event"], one["position"]) for one in events] == [
        ("parameter", "3.ab.1"),
        ("beat", "3.ab.1"),
    ]

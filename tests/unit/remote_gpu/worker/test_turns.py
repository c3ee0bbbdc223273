"""The gate between lanes in threads and a gpud that grants and revokes tokens at random."""

from __future__ import annotations

import itertools
import math
import os
import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from remote_gpu.worker.turns import LINGER_S, Gate, Loads, Tokens, Waiter

LANES, CALLS = 4, 150


class Gpud:
    """Gives every token that is asked for while it has some, with another end each time."""

    def __init__(self, width: int) -> None:
        self.width, self.given, self.asks = width, 0, list[int]()
        self.heard: queue.SimpleQueue[dict[str, list[int]] | None] = queue.SimpleQueue()
        self.gate = Gate(7, lambda meta: self.heard.put(dict(meta)))
        self.most = 0

    def serve(self) -> None:
        ends = itertools.cycle([None, 0.0, 1e9, None, None])
        while (meta := self.heard.get()) is not None:
            [(word, (device, ticket))] = meta.items()
            assert device == 7
            if word == "ask":
                self.asks.append(ticket)
            else:
                self.given -= 1
            while self.asks and self.given < self.width:
                self.given += 1
                self.gate.granted(self.asks.pop(0), next(ends), self.width)
            self.most = max(self.most, self.given)
            self.gate.due(next(ends))


@pytest.mark.parametrize("width", [1, 2])
def test_every_call_of_every_lane_gets_its_turn(width: int) -> None:
    gpud, inside, most, done = Gpud(width), list[int](), list[int](), list[int]()

    def lane(number: int) -> None:
        for _ in range(CALLS):
            with gpud.gate.turn():
                inside.append(number)
                most.append(len(inside))
                os.sched_yield()  # lets another thread in
                inside.remove(number)
        done.append(number)

    host = threading.Thread(target=gpud.serve, daemon=True)
    lanes = [threading.Thread(target=lane, args=(number,), daemon=True) for number in range(LANES)]
    for thread in (host, *lanes):
        thread.start()
    for thread in lanes:
        thread.join(60.0)
    gpud.heard.put(None)
    host.join(60.0)
    assert sorted(done) == list(range(LANES))
    assert max(most) <= width
    assert gpud.most <= width


def test_an_error_inside_returns_the_token() -> None:
    gpud = Gpud(1)
    host = threading.Thread(target=gpud.serve, daemon=True)
    host.start()
    for _ in range(3):
        with pytest.raises(ValueError, match="inside"), gpud.gate.turn():
            raise ValueError("inside")
    gpud.heard.put(None)
    host.join(60.0)
    assert gpud.most == 1


def sent(calls: list[Any]) -> tuple[Tokens, list[tuple[str, int]]]:
    messages: list[tuple[str, int]] = []
    tokens = Tokens(lambda word, ticket: messages.append((word, ticket)))
    for name, *arguments in calls:
        getattr(tokens, name)(*arguments)
    return tokens, messages


def test_lanes_of_a_lease_share_a_token() -> None:
    first, second = Waiter(), Waiter()
    tokens, messages = sent(
        [("take", 0.0), ("wait", first), ("wait", second), ("granted", 1, math.inf, 1, 0.0)]
    )
    assert first.ticket == 1
    assert second.lock.locked()
    assert tokens.push(1)
    tokens.settle(0.1)
    assert second.ticket == 1
    assert messages == [("ask", 1)]
    tokens.due(0.05, 0.15)
    assert tokens.push(1)
    tokens.settle(0.2)
    assert messages == [("ask", 1), ("done", 1)]


@pytest.mark.parametrize(
    ("until_s", "look_s", "kept"),
    [
        (math.inf, 10.0, True),  # nobody waits
        (1.0, LINGER_S / 2, True),
        (1.0, LINGER_S, False),
        (LINGER_S / 4, LINGER_S / 2, False),
    ],
)
def test_an_idle_token_is_returned_in_time(until_s: float, look_s: float, kept: bool) -> None:
    tokens, messages = sent(
        [
            ("take", 0.0),
            ("wait", Waiter()),
            ("granted", 1, until_s, 1, 0.0),
            ("push", 1),
            ("settle", 0.0),
        ]
    )
    tokens.look(look_s)
    assert (("done", 1) in messages) != kept
    assert bool(tokens.take(look_s)) == kept


def test_a_caller_that_becomes_quick_keeps_its_token_again() -> None:
    tokens, messages = sent([("take", 0.0), ("wait", Waiter()), ("granted", 1, 1e9, 1, 0.0)])
    now_s, ticket, kept = 0.0, 1, list[bool]()
    for call in range(100):
        assert tokens.push(ticket)
        tokens.settle(now_s)
        kept.append(("done", ticket) not in messages)
        now_s += LINGER_S * (2 if call < 40 else 0.1)
        tokens.look(now_s)
        if not tokens.take(now_s):
            tokens.wait(Waiter())
            ticket += 1
            tokens.granted(ticket, 1e9, 1, now_s)
    assert sum(kept[:40]) <= 12
    assert all(kept[70:])


def test_the_answer_to_an_earlier_question_is_not_taken_for_a_later_one() -> None:
    def answer(meta: Mapping[str, Any]) -> None:
        for number in (0, meta["load"]):
            loads.answered(number, [[3, number, 1.5]])

    loads = Loads(answer)
    assert loads.ask() == {"3": [1, 1.5]}
    assert loads.ask() == {"3": [2, 1.5]}

"""A gate between lanes, which are threads, and a gpud that gives and asks back as it likes."""

from __future__ import annotations

import itertools
import os
import queue
import threading

import pytest

from remote_gpu.worker.turns import Gate

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
def test_every_call_of_every_lane_gets_its_turn(width) -> None:
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


def test_an_error_inside_gives_the_token_back() -> None:
    gpud = Gpud(1)
    host = threading.Thread(target=gpud.serve, daemon=True)
    host.start()
    for _ in range(3):
        with pytest.raises(ValueError, match="inside"), gpud.gate.turn():
            raise ValueError("inside")
    gpud.heard.put(None)
    host.join(60.0)
    assert gpud.most == 1

"""A worker's lanes: gpud gets every end, and the other lanes continue."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.worker import control
from remote_gpu.worker.joining import Callers
from remote_gpu.worker.lane import LaneActivity, LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.process import _end_lane, _start_lane, await_lanes
from remote_gpu.worker.registry import load_registry

REGISTRY = load_registry(["noop"])


@pytest.fixture
def small_stacks() -> Iterator[None]:
    yield
    threading.stack_size(0)


class Lane:
    """A lane of this process, with both its other ends."""

    def __init__(self, stack: ExitStack) -> None:
        self.client, lane = socket.socketpair()
        self.gpud, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.client, lane, self.gpud, worker):
            end.settimeout(60)
            stack.enter_context(end)
        callers = Callers(lambda meta: control.send(worker, meta))
        ended = partial(_end_lane, worker, 7, callers, None)
        self._start = (ended, lane, REGISTRY, Context())
        self._lane = lane

    def start(self, carried: Any = None) -> None:
        _start_lane(*self._start, carried or (lambda: self._lane))

    def ended(self) -> bool:
        received = control.receive(self.gpud)
        return received is not None and received[0] == {"lane_ended": 7}


def test_a_lane_without_a_thread_ends_alone(small_stacks: None) -> None:
    with ExitStack() as stack:
        lane, other = Lane(stack), Lane(stack)
        other.start()
        threading.stack_size(1 << 46)  # more than any machine has
        lane.start()
        assert lane.ended()
        assert lane.client.recv(1) == b""
        channel = Channel(other.client, FrameLimits())
        channel.send({"op": "noop"})
        assert channel.receive() is not None
        other.client.close()
        assert other.ended()


class Late(threading.Thread):
    """The thread of a lane, which ends after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None, "a look that never ends"
        self.looks -= 1

    def is_alive(self) -> bool:
        return self.looks > 0


@pytest.mark.parametrize(
    ("calling", "reports"),
    [((False, False), 0), ((True, False), 1), ((False, True), 1), ((True, True), 1)],
)
def test_lanes_are_awaited_however_late_they_end(calling: tuple[bool, bool], reports: int) -> None:
    lanes = [(Late(1000), LaneActivity()) for _ in calling]
    for (_, activity), runs in zip(lanes, calling, strict=True):
        activity.calling = runs
    seen: list[str] = []
    await_lanes(lanes, lambda: seen.append("busy"))
    assert not any(thread.is_alive() for thread, _ in lanes)
    assert len(seen) == reports


def test_a_lane_has_a_call_until_its_answer_is_sent() -> None:
    activity, seen = LaneActivity(), []

    class Observed(Runner):
        def run(self, name: str, args: Any, inputs: Any) -> Any:
            seen.append(activity.calling)
            return super().run(name, args, inputs)

    client, lane = socket.socketpair()
    with client, lane:
        client.settimeout(60)
        server = LaneServer(lane, Observed(REGISTRY, Context()), Quota(), None, activity)
        thread = threading.Thread(target=server.serve)
        thread.start()
        channel = Channel(client, FrameLimits())
        for name in ("noop", "unknown"):
            channel.send({"op": name})
            assert channel.receive() is not None
            assert not activity.calling
        client.close()
        thread.join(60)
    assert seen == [True, True]


def test_a_broken_lane_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda broken: seen.append(broken.exc_type))

    def broken() -> Any:
        raise MemoryError

    with ExitStack() as stack:
        lane = Lane(stack)
        lane.start(broken)
        assert lane.ended()
        assert lane.client.recv(1) == b""
        for thread in threading.enumerate():
            if thread.name == "lane":
                thread.join(60)
    assert seen == [MemoryError]

"""Calls of a lease's worker in a batch process: repeated, computed at home, taken out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import numpy as np
import pytest

from operations.inference.batching import Batcher, charged
from operations.numpy_arrays import Array
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.worker.joining import BatchLanes, Caller, Callers
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry

REGISTRY = load_registry(["noop"])
WAIT_S = 60.0
DATA = memoryview(b"abc")


class Processes:
    """Batch processes of this process, one for each answer of gpud."""

    def __init__(self, stack: ExitStack, *answers: str) -> None:
        """`answers`: "serve", "die" at the first call, or "none"."""
        self._stack = stack
        self.answers = list(answers)
        self.lanes = BatchLanes(self.request)

    def request(self) -> None:
        answer = self.answers.pop(0)
        if answer == "none":
            self.lanes.connected(None)
            return
        ours, theirs = (self._stack.enter_context(end) for end in socket.socketpair())
        serve = self._serve if answer == "serve" else self._die
        thread = threading.Thread(target=serve, args=(theirs,))
        self._stack.callback(thread.join, WAIT_S)
        self._stack.callback(ours.close)
        thread.start()
        self.lanes.connected(ours)

    def _serve(self, stream: socket.socket) -> None:
        LaneServer(stream, Runner(REGISTRY, Context()), Quota(), None).serve()

    def _die(self, stream: socket.socket) -> None:
        Channel(stream, FrameLimits()).receive()
        stream.shutdown(socket.SHUT_RDWR)


@contextmanager
def processes(*answers: str) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack, *answers)


@pytest.mark.parametrize(
    ("answers", "computed"),
    [
        (["serve"], True),
        (["die", "serve"], True),
        (["die", "die", "serve"], False),
        (["none"], False),
        (["die", "none"], False),
    ],
    ids=str,
)
def test_a_call_is_repeated_once_and_then_computed_at_home(
    answers: list[str], computed: bool
) -> None:
    with processes(*answers) as made:
        result = made.lanes.op("noop", {}, [DATA], None)
        assert (result is not None) == computed
        if result is not None:
            assert bytes(result.buffers[0]) == b"abc"


def test_a_connection_is_used_again_and_keeps_its_errors_apart() -> None:
    with processes("serve") as made:
        for _ in range(3):
            assert made.lanes.op("noop", {}, [DATA], None) is not None
            with pytest.raises(OpFailed, match="ENOENT"):
                made.lanes.op("unknown", {}, [DATA], None)


class Packets:
    """gpud's end of the control socket."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, object]] = []
        self.callers = Callers(self.sent.append)


def test_a_lease_has_left_when_its_last_lane_has_ended() -> None:
    packets = Packets()
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for _ in range(3) for end in socket.socketpair()]
        first, second, other = (
            packets.callers.enter(lease, 0, lane)
            for lease, lane in zip("aab", ends[::2], strict=True)
        )
        packets.callers.leave("a")
        assert [caller.gone() for caller in (first, second, other)] == [True, True, False]
        packets.callers.exit(first)
        assert packets.sent == []
        packets.callers.exit(second)
        assert packets.sent == [{"left": "a"}]
        packets.callers.leave("unknown")
        assert packets.sent[1:] == [{"left": "unknown"}]


def test_time_is_charged_to_each_lease_in_messages_of_half_a_slice() -> None:
    packets = Packets()
    with ExitStack() as stack:
        lane, _ = (stack.enter_context(end) for end in socket.socketpair())
        caller = packets.callers.enter("a", 3, lane)
        for _ in range(4):
            caller.charge(0.002)
        assert packets.sent == [{"used": [3, "a", pytest.approx(0.006)]}]


class Held:
    """A model whose first run waits until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.runs: list[int] = []

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.runs.append(len(feeds["x"]))
        if len(self.runs) == 1:
            self.began.set()
            assert self.go.wait(WAIT_S)
        return [2 * feeds["x"] for _ in outputs]


def test_a_lease_that_ends_takes_its_waiting_calls_out() -> None:
    """Leader and follower of the next batch end; the third call runs without them."""
    packets, model = Packets(), Held()
    batcher = Batcher(model)
    found: dict[int, object] = {}
    with ExitStack() as stack:
        lanes = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(4)]

        def queued(count: int) -> bool:
            return sum(map(len, batcher._groups.values())) == count

        def call(number: int) -> None:
            caller = packets.callers.enter(str(number), 0, lanes[number][0])
            x = np.full((number + 1, 1), number, np.float32)
            try:
                found[number] = batcher.run(
                    {"x": x}, ["y"], nullcontext, Quota().held, 0.001, caller
                )[1]
            except OpFailed as failed:
                found[number] = failed.code

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        threads[0].start()
        assert model.began.wait(WAIT_S)
        for number in (1, 2, 3):
            threads[number].start()
            with batcher._changed:
                assert batcher._changed.wait_for(partial(queued, number), WAIT_S)
        for number in (1, 2):
            lanes[number][1].close()
        threads[2].join()  # a follower ends at once, while the run continues
        model.go.set()
        for thread in threads:
            thread.join()
    assert found == {0: 1, 1: OpCode.EIO, 2: OpCode.EIO, 3: 1}
    assert model.runs == [1, 4]


def test_the_time_of_a_run_is_charged_by_items() -> None:
    used: dict[str, list[float]] = {"a": [], "b": []}
    with ExitStack() as stack:
        lanes = [stack.enter_context(end) for end in socket.socketpair()]
        first, second = (
            Caller(lease, lane, used[lease].append) for lease, lane in zip(used, lanes, strict=True)
        )
        x = np.ones((1, 1), np.float32)
        with charged([(first, 3), (second, 1), (None, 5), (first, 3)]):
            x += 1
    assert [len(parts) for parts in used.values()] == [1, 1]
    assert used["a"][0] == pytest.approx(6 * used["b"][0])

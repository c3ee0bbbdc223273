"""Batched calls of one model: equal results, and separate errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from operations.inference.batching import Batcher
from operations.numpy_arrays import Array
from remote_gpu.client import Graph
from remote_gpu.worker.arguments import Arguments, Signature
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome
from remote_gpu.worker.registry import Registry
from remote_gpu.worker.turns import Gate

WAIT_S = 60.0


class Doubling:
    """A model whose first run waits until it is let go, so that company can gather."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        x = feeds["x"]
        self.runs.append(len(x))
        if len(self.runs) == 1:
            self.began.set()
            assert self.go.wait(WAIT_S)
        if (x < 0).any():
            raise ValueError("no negative numbers")
        return [2 * x for _ in outputs]


def items(*numbers: float) -> Array:
    return np.array(numbers, np.float32).reshape(-1, 1)


class Callers:
    """Threads that call one batcher; the first of them holds its model."""

    def __init__(self, items_max: int = 64) -> None:
        self.model = Doubling()
        self.batcher = Batcher(self.model, items_max)
        self.answers: dict[int, tuple[list[Array], int]] = {}
        self.errors: dict[int, Exception] = {}
        self.threads: list[threading.Thread] = []

    def start(self, x: Array, quota: Quota | None = None) -> None:
        number = len(self.threads)
        held = (quota or Quota()).held

        def call() -> None:
            try:
                turn = contextlib.nullcontext
                self.answers[number] = self.batcher.run({"x": x}, ["y"], turn, held, 0.001)
            except Exception as error:
                self.errors[number] = error

        thread = threading.Thread(target=call)
        self.threads.append(thread)
        thread.start()

    def hold_first(self, x: Array) -> None:
        self.start(x)
        assert self.model.began.wait(WAIT_S)

    def queued(self) -> int:
        return sum(len(group) for group in self.batcher._groups.values())

    def has_queued(self, count: int) -> bool:
        return self.queued() == count

    def gather(self, *calls: Array, quota: Quota | None = None) -> None:
        """Start calls one by one, each in the queue before the next; then let all go on."""
        for number, x in enumerate(calls, 1):
            self.start(x, quota)
            with self.batcher._changed:
                assert self.batcher._changed.wait_for(partial(self.has_queued, number), WAIT_S)
        self.model.go.set()
        for thread in self.threads:
            thread.join()


def test_calls_during_a_run_share_the_next_one() -> None:
    callers = Callers()
    callers.hold_first(items(1))
    callers.gather(items(2), items(3, 4), items(5))
    assert callers.model.runs == [1, 4]
    for number, expected in enumerate(([2], [4], [6, 8], [10])):
        results, joined = callers.answers[number]
        assert results[0].ravel().tolist() == expected
        assert joined == (1 if number == 0 else 3)


def test_a_failing_call_fails_alone() -> None:
    callers = Callers()
    callers.hold_first(items(1))
    callers.gather(items(2), items(-1), items(3))
    assert callers.model.runs == [1, 3, 1, 1, 1]
    assert isinstance(callers.errors[2], ValueError)
    assert callers.answers[1][0][0].tolist() == [[4]]
    assert callers.answers[3][0][0].tolist() == [[6]]


def test_calls_over_the_limit_of_a_run_form_the_next_one() -> None:
    callers = Callers(items_max=2)
    callers.hold_first(items(1))
    callers.gather(items(2), items(3), items(4, 5, 6), items(7))
    assert callers.model.runs == [1, 2, 3, 1]
    assert [callers.answers[n][0][0].sum() for n in range(5)] == [2, 4, 6, 30, 14]


def test_without_memory_for_a_joint_run_calls_run_alone() -> None:
    callers = Callers()
    callers.hold_first(items(1))
    callers.gather(items(2), items(3), quota=Quota(7))
    assert callers.model.runs == [1, 1, 1]
    assert [callers.answers[n][1] for n in range(3)] == [1, 1, 1]


def test_different_shapes_are_different_batches() -> None:
    callers = Callers()
    callers.hold_first(items(1))
    callers.start(np.ones((1, 2), np.float32))
    callers.threads[-1].join()  # it waits for none of the first's
    assert callers.model.runs == [1, 1]
    callers.model.go.set()
    callers.threads[0].join()


def test_a_single_caller_does_not_wait() -> None:
    callers = Callers()
    callers.model.go.set()
    for number in range(3):
        result, joined = callers.batcher.run(
            {"x": items(number)}, ["y"], contextlib.nullcontext, Quota().held, 3600.0
        )
        assert (result[0].tolist(), joined) == ([[2 * number]], 1)


def test_a_refused_turn_fails_all_calls_of_a_batch() -> None:
    def refused() -> contextlib.AbstractContextManager[None]:
        raise OSError("gone")

    batcher = Batcher(lambda feeds, outputs: [])
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            batcher.run({"x": items(1)}, ["y"], refused, Quota().held, 0)


class OneTurn(Gate):
    """A gate whose turn cannot be had twice."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: None)
        self.held = False

    def enter(self) -> int:
        assert not self.held
        self.held = True
        return 1

    def leave(self, ticket: int) -> None:
        self.held = False


class TakesTurns(CpuOperation):
    name, implementation, own_turns = "takes_turns", "none", True
    limits, signature = Limits(), Signature()

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        with context.turn():
            return {}, [b"done"]


def test_a_step_of_a_graph_uses_the_turn_of_its_run() -> None:
    registry, gate = Registry(), OneTurn()
    registry.add(TakesTurns())
    runner = Runner(registry, Context(gate=gate))
    graph = Graph()
    graph.op("takes_turns", out=[graph.output("said", 4)])
    made, _, _ = runner.run("graph.put", {"graph": graph.spec.to_meta()}, [])
    _, said, _ = runner.run("graph.run", {"graph": made["graph"]}, [])
    assert bytes(said[0]) == b"done"
    _, done, ran = runner.run("takes_turns", {}, [])
    assert (list(map(bytes, done)), ran) == ([b"done"], "none")
    assert not gate.held

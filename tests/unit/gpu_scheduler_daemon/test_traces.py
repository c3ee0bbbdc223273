"""The spans of the scheduler, from the changes in its journal."""

from __future__ import annotations

from corekit.tracing.context import TraceContext
from corekit.tracing.job import BLOCK_KEY, attempt_context
from gpu_scheduler.daemon.traces import SchedulerTraces
from gpu_scheduler.model import Request, Sharing
from tests.scheduler_world import EPOCH_S, World, device
from tests.tracing import Recorder

ROOT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)
BLOCK = {BLOCK_KEY: {"traceparent": ROOT.header, "parent": "", "sent_s": 1.0, "received_s": 2.0}}


class Clock:
    """The wall clock of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wall_s(self) -> float:
        return EPOCH_S + self._world.now_s

    def monotonic_s(self) -> float:
        return self._world.now_s


class Traced:
    """A world whose journal is traced."""

    def __init__(self) -> None:
        self.world = World()
        self.recorder = Recorder()
        self.traces = SchedulerTraces(self.recorder, Clock(self.world))
        self._read = 0

    def catch_up(self) -> list[str]:
        """Trace the new entries; the names of the spans since then."""
        before = len(self.recorder.spans)
        self.traces.changed(self.world.journal[self._read :])
        self._read = len(self.world.journal)
        return [span.name for span in self.recorder.spans[before:]]


def test_a_wait_and_a_lease_are_spans_of_their_attempt() -> None:
    traced = Traced()
    world = traced.world
    world.alive["s1"] = None
    world.host("h", device("d"))
    whole = Request(sharing=Sharing.EXCLUSIVE)
    other = world.granted("other", whole)
    world.attempt(request=whole, block=BLOCK)
    assert traced.catch_up() == []
    world.advance(3.0)
    began_s = EPOCH_S + world.now_s
    world.release(other)
    assert traced.catch_up() == ["scheduler.queue"]
    (queue,) = traced.recorder.spans
    assert queue.parent == attempt_context(ROOT, 1)
    assert (queue.end_s - queue.start_s, queue.end_s) == (3.0, began_s)
    assert queue.attributes["orchgpu.device"] == "d"
    (lease,) = world.leases
    assert world.renew(lease) is not None
    world.advance(2.0)
    world.release(lease)
    assert traced.catch_up() == ["scheduler.lease"]
    span = traced.recorder.spans[-1]
    assert span.parent == queue.parent
    assert (span.start_s, span.end_s) == (began_s, began_s + 2.0)
    assert (span.attributes["orchgpu.reason"], span.error) == ("RELEASED", "")


def test_a_lost_host_is_an_error_of_the_lease() -> None:
    traced = Traced()
    world = traced.world
    world.alive["s1"] = None
    world.host("h", device("d"))
    world.attempt(request=Request(), block=BLOCK)
    del world.hosts["h"]
    world.advance(world.budget.host_lost_s + 5)
    assert traced.catch_up() == ["scheduler.queue", "scheduler.lease"]
    assert traced.recorder.spans[-1].error == "HOST_LOST"


def test_a_job_without_a_trace_and_a_reservation_have_no_spans() -> None:
    traced = Traced()
    world = traced.world
    world.host("h", device("d"))
    world.attempt("plain", request=Request(), block={"trace": {"traceparent": "nonsense"}})
    world.reserve("mine", Request())
    for lease in world.leases:
        world.release(lease)
    assert traced.catch_up() == []

"""The interface of deciding policies: choices, pauses, memory, the seeded stream, reasons."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import AttemptId, DeviceId, IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.queue.policy import (
    MEMORY_MAX,
    Choice,
    Declaration,
    HeldReason,
    Pause,
    Policy,
    values_of,
)
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.changes import PolicyRemembered, Waiting
from gpu_scheduler.verdicts import HeldBack
from simulator.invariants import check
from tests.scheduler_world import World, device, world_with

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


class Delayed(Policy):
    """An example: a request is granted once it has waited for `delay_s`; it counts the grants."""

    summary = "the oldest request, after a delay"
    parameters = (
        PolicyParameter(
            name="delay_s", meaning="shortest wait", default=10.0, at_least=0.0, at_most=1e6
        ),
        PolicyParameter(name="eager", meaning="no delay", default=False),
    )

    def declare(self, values: Values) -> Declaration:
        return Declaration(bool(values["eager"]), "", starves="gangs")

    def decide(self, view: View) -> Choice | Pause:
        for waiting in view.waiting():
            placed = view.place(waiting)
            if placed is None:
                continue
            left_s = self._left_s(view, waiting)
            if left_s > 1e-6:
                return Pause(until_s=view.at_s + left_s)
            count = int(view.memory.get("grants", 0)) + 1
            return Choice(waiting.attempt, placed, {"grants": count, "drawn": view.draw()})
        return Pause()

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        left_s = self._left_s(view, waiting)
        return HeldReason(f"{left_s:.0f} s left", view.at_s + left_s) if left_s > 0 else None

    def _left_s(self, view: View, waiting: Waiting) -> float:
        delay_s = 0.0 if view.values["eager"] else view.number("delay_s")
        return delay_s - view.waits_s(waiting)


POLICIES = {"delayed": Delayed()}


@pytest.fixture
def world() -> Any:
    """A core under the example, with one device."""
    made = world_with(device("d"), policy="delayed", policies=POLICIES)
    made.alive["s1"] = None
    return made


def drawn(world: Any) -> list[Any]:
    """The numbers that the example has drawn, in order."""
    parts = [part for entry in world.journal for part in entry.parts]
    return [p.changed["drawn"] for p in parts if isinstance(p, PolicyRemembered) and p.changed]


def serve(world: Any, attempt: str) -> None:
    """One request, its wait and its end."""
    world.reserve(attempt, WHOLE)
    world.advance(11.0)
    (lease,) = world.leases
    world.renew(lease)
    world.release(lease)


def test_a_newcomer_is_asked_about_and_waits_until_the_pause_is_over(world: World) -> None:
    assert world.reserve("a", WHOLE).outcome is answers.Outcome.WAITING
    assert world.leases == []
    world.advance(9.9)
    assert world.leases == []
    world.advance(0.2)
    assert [lease.attempt for lease in world.leases] == ["a"]


def test_a_request_that_does_not_want_to_wait_is_busy(world: World) -> None:
    assert world.reserve("a", WHOLE, wait=False).outcome is answers.Outcome.BUSY
    assert world.machine.state.queue.entries == {}


def test_explain_has_the_reason_in_the_words_of_the_policy(world: World) -> None:
    world.reserve("a", WHOLE)
    world.advance(4.0)
    explanation = world.ask(ops.Explain, attempt="a").explanation
    assert explanation.held_back is HeldBack.POLICY
    assert explanation.sentence.startswith(
        "number 1 in the queue: 1 × device, exclusive fits, but must wait; policy delayed: 6 s left"
    )
    assert explanation.expected_s == pytest.approx(6.0)


def test_a_dry_run_explains_a_request_as_if_it_waited(world: World) -> None:
    assert world.ask(ops.Explain, request=WHOLE).outcome is answers.Outcome.WAITING
    assert "policy delayed: 10 s left" in world.answer().explanation.sentence
    assert world.machine.state.queue.entries == {}


def test_a_busy_device_is_the_first_reason(world: World) -> None:
    world.reserve("a", WHOLE)
    world.advance(11.0)
    world.reserve("b", WHOLE)
    explanation = world.ask(ops.Explain, attempt="b").explanation
    assert explanation.held_back is None
    assert "0 of 1 fit now" in explanation.sentence
    assert "policy delayed: 10 s left" in explanation.sentence


def test_memory_survives_a_restart_and_a_snapshot(world: World) -> None:
    serve(world, "a")
    serve(world, "b")
    memory = world.machine.state.memory
    assert memory.values["grants"] == 2
    assert memory.draws == 2
    world.start()
    assert world.machine.state.memory == memory
    compacted = SchedulerMachine(world.budget, IdSource(1), world.configured, world.policies)
    for entry in world.machine.snapshot():
        compacted.apply(entry)
    assert compacted.state.memory == memory
    assert compacted.snapshot() == world.machine.snapshot()


def test_the_stream_neither_repeats_nor_changes_at_a_restart() -> None:
    streams = []
    for restarts in (False, True):
        world = World(policy="delayed", policies=POLICIES)
        for attempt in "abcd":
            if restarts:
                world.start()
            world.alive["s1"] = None
            world.host("h", device("d"))
            serve(world, attempt)
        streams.append(drawn(world))
    assert len(dict.fromkeys(streams[0])) == 4
    assert streams[0] == streams[1]


def test_the_memory_is_dropped_at_a_switch_and_leases_and_places_stay(world: World) -> None:
    serve(world, "a")
    world.reserve("b", WHOLE)
    world.advance(11.0)
    (lease,) = world.leases
    for attempt in "cd":
        world.reserve(attempt, WHOLE)
        world.advance(1.0)
    world.ask(ops.SetParameter, name="policy", value="fifo")
    assert world.machine.state.memories == {}
    assert world.wake_s is not None
    assert [one.id for one in world.leases] == [lease.id]
    assert list(world.machine.state.queue.entries) == ["c", "d"]
    world.ask(ops.SetParameter, name="policy", value="delayed")
    assert world.machine.state.memory.values == {}
    world.renew(lease)
    world.release(lease)
    world.advance(10.0)
    assert [one.attempt for one in world.leases] == ["c"]


def test_a_switch_to_an_ordering_policy_serves_what_waited(world: World) -> None:
    world.reserve("a", WHOLE)
    world.ask(ops.SetParameter, name="policy", value="fifo")
    assert world.grants() == ["a"]
    world.advance(20.0)  # the timer of the pause is cancelled
    assert check(world.machine.state) == []


def test_the_memory_of_a_policy_of_a_newer_version_is_kept(world: World) -> None:
    serve(world, "a")
    older = SchedulerMachine(world.budget, IdSource(1), world.configured, installed_policies())
    for entry in world.journal:
        older.apply(entry)
    assert older.state.memories["delayed"].values["grants"] == 1
    assert older.snapshot() == world.machine.snapshot()


def test_parameters_of_a_policy_are_validated_and_live(world: World) -> None:
    world.reserve("a", WHOLE)
    for name, value, text in (
        ("policy.delayed.delay_s", "-1", "not a number in 0…1e+06"),
        ("policy.delayed.eager", "perhaps", "not one of true"),
        ("policy.delayed.absent", "1", "has no parameter 'absent'; its parameters: delay_s, eager"),
        ("policy.fifo.delay_s", "1", "its parameters: none"),
        ("policy.absent.delay_s", "1", "'absent' is not an installed policy"),
    ):
        assert text in world.ask(ops.SetParameter, name=name, value=value).message
    world.ask(ops.SetParameter, name="policy.delayed.eager", value="yes")
    assert world.grants() == ["a"]
    parameters = world.machine.state.parameters
    assert parameters.policy_parameters == {"delayed.eager": True}
    world.start()
    assert world.machine.state.parameters == parameters
    world.ask(ops.SetParameter, name="policy.delayed.eager", value="default")
    assert world.machine.state.parameters.policy_parameters == {}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Choice(AttemptId("absent"), (DeviceId("d"),)), "which is not waiting"),
        (Choice(AttemptId("a"), ()), "must have all devices"),
        (Pause(remember={str(n): n for n in range(MEMORY_MAX + 1)}), "remembers too many values"),
        (Pause(remember={"name": "x" * 1000}), "a text of 1000 characters"),
    ],
)
def test_an_answer_that_breaks_the_interface_fails_the_event(
    answer: Pause | Choice, text: str
) -> None:
    class Wrong(Delayed):
        def decide(self, view: View) -> Choice | Pause:
            return answer if view.is_waiting("a") else Pause()

    world = world_with(device("d"), policy="wrong", policies={"wrong": Wrong()})
    with pytest.raises(AssertionError, match=text):
        world.reserve("a", WHOLE)


def test_every_policy_declares_its_bound_or_whom_it_starves() -> None:
    for name, policy in installed_policies().items():
        declared = policy.declare(values_of(policy, Parameters(policy=name)))
        assert declared.wait_bound or declared.starves, name
        assert declared.decision_cost, name

"""Leases granted ahead: sessions that leave while they wait, and what others are shown of them."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import HostId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.model import Step
from gpu_scheduler.protocol import answers, ops
from tests.advance_world import (
    EXECUTION_S,
    START_S,
    WHOLE,
    ahead_of,
    asked,
    finished,
    installs,
    learned,
    lease_of,
    started,
    step,
)
from tests.scheduler_world import device
from tests.unit.gpu_scheduler_core.queue.test_advance import FAST, granted_ahead, teach


def test_an_explanation_names_the_lease_before_it_and_its_expected_end() -> None:
    world = learned()
    running, ahead = ahead_of(world)
    younger = granted_ahead(world, "third")
    teach(world, FAST)
    told = world.ask(ops.Explain, holder="second")
    assert told.outcome is answers.Outcome.GRANTED
    assert told.explanation.after == (running.id,)
    assert told.explanation.expected_s == pytest.approx(START_S - 0.1)
    assert (
        f"is granted ahead: lease {ahead.id} on h/0, behind {running.id}, and expects its device "
        "in 1.9 s, or is withdrawn after 20 s" in told.explanation.sentence
    )
    behind = world.ask(ops.Explain, holder="third").explanation
    assert behind.expected_s == pytest.approx(START_S - 0.1 + EXECUTION_S)
    world.told("h", younger, "knocked")
    assert (
        world.ask(ops.Explain, holder="third").explanation.expected_s == told.explanation.expected_s
    )
    finished(world, running, "first", START_S)
    assert world.ask(ops.Explain, holder="third").explanation.after == ()


def test_a_forecast_counts_the_leases_ahead_by_their_lengths_too() -> None:
    """Of a waiting request it is an upper bound: lengths are enforced, learned times are not."""
    length_s = 60.0
    stated = replace(WHOLE, lease_s=length_s)
    world = learned()
    started(world, "first", stated)
    world.advance(EXECUTION_S - START_S)
    asked(world, "third", replace(stated, advance=None))
    alone_s = world.ask(ops.Explain, holder="third").explanation.expected_s
    assert alone_s == pytest.approx(length_s - EXECUTION_S + START_S)
    asked(world, "second", replace(stated, priority=1))
    world.advance(0.1)
    assert lease_of(world, "second").after
    told = world.ask(ops.Explain, holder="third").explanation
    assert told.expected_s is not None
    assert told.expected_s > alone_s + length_s


def test_a_session_that_left_gives_way_to_one_that_waits() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    for lease in (older, younger):
        world.told("h", lease, "knocked")
    finished(world, running, "first", START_S)
    assert lease_of(world, "third").after
    world.told("h", older, "left")
    assert installs(world) == [(older.id, True), (younger.id, False)]
    assert lease_of(world, "second").after == (younger.id,)
    pushed = [(push.lease, push.after) for push in world.pushes(answers.LeasePush)]
    assert pushed == [(older.id, (younger.id,)), (younger.id, ())]


def test_a_session_that_left_before_the_booking_counts_as_none() -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    world.told("h", older, "knocked")
    world.told("h", older, "left")
    world.told("h", younger, "knocked")
    finished(world, running, "first", START_S)
    assert [bool(lease_of(world, job).after) for job in ("second", "third")] == [True, False]


@pytest.mark.parametrize("program", ["scheduler", "host"])
def test_a_hello_states_which_sessions_wait(program: str) -> None:
    world = learned()
    running, older = ahead_of(world)
    younger = granted_ahead(world, "third")
    finished(world, running, "first", START_S)
    world.told("h", older, "knocked")
    if program == "scheduler":  # meanwhile another session comes, and the first one leaves
        world.start()
        fields: dict[str, Any] = {"incarnation": "one", "waiting": (younger.id,)}
    else:
        world.handle(on.HostLeft, host=HostId("h"))
        fields = {"incarnation": "two"}
    leases = (older.id, younger.id)
    world.host("h", device("d"), advance=True, installed=leases, **fields)
    booked = {"scheduler": "third", "host": "second"}[program]
    assert [job for job in ("second", "third") if not lease_of(world, job).after] == [booked]
    knocked = [world.machine.state.leases[one].knocked for one in leases]
    assert knocked == [False, program == "scheduler"]


def test_a_session_that_opens_before_its_envelope_is_noted_is_not_before_it() -> None:
    world = learned()
    lease = asked(world, "job").granted.lease
    world.advance(1.0)
    world.told("h", lease, "opened", waited_s=0.0)
    world.advance(0.5)
    world.staged(lease)
    times = world.record("job").times
    assert times[Step.RESERVED] <= times[Step.STAGED] == times[Step.RUNNING]
    assert step(world, "job") is Step.RUNNING


def test_what_became_of_leases_ahead_is_counted() -> None:
    world = learned()
    running, ahead = ahead_of(world)
    world.release(ahead)
    asked(world, "third")
    world.advance(0.1)
    lease_of(world, "third")
    finished(world, running, "first", START_S)
    counts = world.machine.state.ahead_counts
    assert counts == {"granted": 2, "booked": 1, "cancelled": 1}
    assert counts["granted"] == counts["booked"] + counts["cancelled"] + counts["withdrawn"]


def test_a_wait_that_the_scheduler_shortens_says_so() -> None:
    world = learned(advance_s_max=5.0)
    _, ahead = ahead_of(world)
    told = world.ask(ops.Explain, holder="second").explanation.sentence
    assert "is withdrawn after 5 s (advance_s_max, of 20 s)" in told
    world.advance(5.1)
    (ended,) = (push for push in world.pushes(answers.LeasePush) if push.lease == ahead.id)
    assert ended.detail == "its shares did not become free in 5 s (advance_s_max, of 20 s)"

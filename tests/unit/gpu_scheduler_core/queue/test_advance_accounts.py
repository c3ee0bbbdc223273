"""Leases ahead of the functions of an account: its limit, and the pause after it was throttled."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import SessionId
from corekit.values import replace
from gpu_scheduler.core.policies.fifo import Fifo
from gpu_scheduler.core.queue.policy import Choice, Pause
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.protocol import ops
from tests.advance_world import (
    EXECUTION_S,
    START_S,
    TERMS,
    WHOLE,
    asked,
    finished,
    learned,
    lease_of,
    started,
)
from tests.scheduler_world import World, device

Beats = list[tuple[str, dict[str, Any]]]
BOTH = {"third", "fourth"}


def two_that_end(**made: Any) -> World:
    """Two leases run, and a job of each of two orchestrators waits."""
    world = learned(device("a"), device("b", index=1), **made)
    world.alive["s2"] = None
    started(world, "first")
    started(world, "second")
    asked(world, "third")
    asked(world, "fourth", session="s2")
    return world


def ahead(world: World) -> set[str]:
    jobs = ("third", "fourth")
    return {job for job in jobs if (one := live(world, job)) is not None and one.ahead}


def live(world: World, job: str) -> Any:
    return world.machine.state.live_lease(world.record(job))


def beats(world: World, given: Beats) -> None:
    for session, fields in given:
        world.ask(ops.Beat, session, **fields)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], BOTH),
        ([("s1", {"account": "A"})], BOTH),
        ([("s1", {"account": "A", "ahead_max": 2})], BOTH),
        ([("s2", {"account": "A", "ahead_max": 0})], {"third"}),
        ([("s1", {"account": "A", "ahead_max": 0})], set()),  # the policy's next request alone
        # both orchestrators have one account, and its last limit counts
        (
            [("s1", {"account": "A", "ahead_max": 5}), ("s2", {"account": "A", "ahead_max": 1})],
            {"third"},
        ),
        (
            [("s1", {"account": "A", "ahead_max": 1}), ("s2", {"account": "B", "ahead_max": 1})],
            BOTH,
        ),
        # a session that changed its account leaves no limit behind
        (
            [("s1", {"account": "A", "ahead_max": 0}), ("s1", {"account": "B"})],
            BOTH,
        ),
        ([("s2", {"throttled_s": 60.0})], {"third"}),
        (
            [("s1", {"account": "A"}), ("s2", {"account": "A"}), ("s2", {"throttled_s": 60.0})],
            set(),
        ),
        ([("s1", {"account": "A"}), ("s2", {"account": "B", "throttled_s": 60.0})], {"third"}),
        # a pause that was reported before the account is that of the account
        ([("s2", {"throttled_s": 60.0}), ("s2", {"account": "B"})], {"third"}),
        # that of another account stays there
        ([("s2", {"account": "A", "throttled_s": 60.0}), ("s2", {"account": "B"})], BOTH),
    ],
)
def test_what_is_granted_ahead(given: Beats, found: set[str]) -> None:
    world = two_that_end()
    beats(world, given)
    world.advance(EXECUTION_S - START_S + 0.1)
    assert ahead(world) == found


def test_the_next_one_waits_ahead_once_one_of_the_account_has_its_device() -> None:
    world = two_that_end()
    beats(world, [(one, {"account": "A", "ahead_max": 1}) for one in ("s1", "s2")])
    world.advance(EXECUTION_S - START_S + 0.1)
    assert ahead(world) == {"third"}
    before = lease_of(world, "third").after
    [job] = [one for one in ("first", "second") if lease_of(world, one).id in before]
    finished(world, lease_of(world, job), job, 0.1)
    assert ahead(world) == {"fourth"}


def test_the_pause_ends_and_does_not_shrink() -> None:
    world = two_that_end()
    same = [(one, {"account": "A"}) for one in ("s1", "s2")]
    beats(world, [*same, ("s1", {"throttled_s": 12.0}), ("s2", {"throttled_s": 1.0})])
    world.advance(11.9)
    assert ahead(world) == set()
    world.advance(0.2)
    assert ahead(world) == BOTH
    assert TERMS.wait_s > 0.2


class CountedFifo(Fifo):
    """Counts how often it is asked."""

    asked = 0

    def decide(self, view: View) -> Choice | Pause:
        self.asked += 1
        return super().decide(view)


def test_a_policy_is_not_asked_for_leases_that_end_while_all_accounts_are_full() -> None:
    policy = CountedFifo()
    world = two_that_end(policies={"counted": policy}, policy="counted")
    beats(world, [(one, {"account": "A", "ahead_max": 0}) for one in ("s1", "s2")])
    world.advance(EXECUTION_S - START_S + 0.1)
    policy.asked = 0
    asked(world, "fifth")
    assert policy.asked == 1, "for devices that are free"


def test_a_full_account_holds_back_no_other() -> None:
    world = learned(device("a"), device("b", index=1, model="N"))
    on_m, on_n = (replace(WHOLE, models=(model,)) for model in "MN")
    for number in range(3):
        finished(world, started(world, f"n{number}", on_n), f"n{number}")
    world.alive["s2"] = None
    started(world, "first", on_m, start_s=0.0)
    started(world, "second", on_n)
    asked(world, "third", on_m)
    asked(world, "fourth", on_n, session="s2")
    beats(world, [("s1", {"account": "A", "ahead_max": 0})])
    world.advance(EXECUTION_S - START_S + 0.1)
    assert ahead(world) == {"fourth"}


def test_a_pause_lasts_ten_minutes_at_most() -> None:
    world = two_that_end()
    beats(world, [("s1", {"throttled_s": 1e6})])
    [account] = world.machine.state.function_accounts.values()
    assert account.paused_until_s == world.now_s + 600.0


def test_an_account_is_forgotten_with_its_last_session() -> None:
    world = two_that_end()
    beats(world, [(one, {"account": "A", "ahead_max": 1}) for one in ("s1", "s2")])
    state = world.machine.state
    assert list(state.function_accounts) == ["A"]
    for session, left in (("s2", ["A"]), ("s1", [])):
        del world.alive[session]
        world.advance(world.budget.client_gone_s + 1)
        assert list(state.function_accounts) == left
        assert SessionId(session) not in state.account_of

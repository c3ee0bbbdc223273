"""The order in which the addresses of several schedulers are tried."""

from __future__ import annotations

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.addresses import LEFT_OUT_ROUNDS, SchedulerAddresses, leader_of, lives_of

A, B, C, X = ("a", 1), ("b", 2), ("c", 3), ("x", 9)


def test_one_address_is_tried_again_after_each_pause() -> None:
    addresses = SchedulerAddresses("a:1")
    assert not addresses.several
    assert [addresses.failed() for _ in range(3)] == [True] * 3
    addresses.lost()
    assert addresses.current == A


def test_all_addresses_are_tried_in_turn_before_a_pause() -> None:
    addresses = SchedulerAddresses("a:1,b:2,c:3")
    found = [(addresses.current, addresses.failed()) for _ in range(6)]
    assert found == [(A, False), (B, False), (C, True), (A, False), (B, False), (C, True)]


def test_the_leader_that_a_standby_names_is_next() -> None:
    addresses = SchedulerAddresses("a:1,b:2,c:3")
    assert not addresses.failed(C)
    assert addresses.current == C
    assert not addresses.failed()
    assert addresses.current == B


def test_a_leader_that_was_tried_already_is_not_tried_again_before_a_pause() -> None:
    addresses = SchedulerAddresses("a:1,b:2")
    assert not addresses.failed()  # the old leader is gone
    assert addresses.failed(A, standby=True)  # its standby has not taken over yet
    assert addresses.current == B, "and is asked again after the pause"
    assert not addresses.failed(A, standby=True)
    assert addresses.current == A


def test_a_leader_beside_the_list_is_tried_and_the_list_goes_on() -> None:
    addresses = SchedulerAddresses("a:1,b:2")
    assert not addresses.failed(X)
    assert addresses.current == X
    assert not addresses.failed()
    assert addresses.current == B
    assert addresses.failed(X)


def test_a_connection_that_broke_is_followed_by_the_next_address() -> None:
    addresses = SchedulerAddresses("a:1,b:2")
    addresses.lost()
    assert addresses.current == B
    for _ in range(LEFT_OUT_ROUNDS):
        assert addresses.failed(A, standby=True), "the standby still names the one that is lost"
        assert addresses.current == B
    assert not addresses.failed(A, standby=True)
    assert addresses.current == A, "it may lead still"
    addresses.failed(X)
    addresses.lost()  # of x: the list begins
    assert addresses.current == A


def test_a_lost_leader_that_still_writes_to_the_log_is_tried_at_once() -> None:
    addresses = SchedulerAddresses("a:1,b:2")
    addresses.lost()
    assert not addresses.failed(A, standby=True, lives=True)
    assert addresses.current == A
    assert addresses.failed(silent=True), "it is out of reach from here"
    assert addresses.current == B
    assert addresses.failed(A, standby=True), "and has stopped meanwhile"
    assert addresses.current == B


def test_a_lost_leader_is_tried_at_once_where_no_standby_answers() -> None:
    addresses = SchedulerAddresses("a:1,b:2")
    addresses.lost()
    assert (addresses.current, addresses.failed()) == (B, False)
    assert (addresses.current, addresses.failed()) == (A, True)
    assert addresses.current == B


def test_an_address_that_does_not_answer_costs_its_second_once() -> None:
    addresses = SchedulerAddresses("a:1,b:2,c:3")
    addresses.lost()
    assert not addresses.failed(A, standby=True)
    assert (addresses.current, addresses.failed(silent=True)) == (C, True)
    tried = []
    for _ in range(LEFT_OUT_ROUNDS - 1):
        tried.append(addresses.current)
        assert addresses.failed(A, standby=True)
    assert set(tried) == {B}
    assert not addresses.failed(A, standby=True)


def test_an_address_that_is_left_out_is_not_the_first_of_a_round() -> None:
    addresses = SchedulerAddresses("a:1,b:2,c:3")
    assert not addresses.failed()
    assert not addresses.failed(silent=True)
    addresses.lost()  # of c
    assert addresses.current == A
    addresses.lost()
    assert addresses.current == B, "all are left out: in turn"


def test_no_second_is_spent_on_a_lost_leader_while_its_standby_takes_over() -> None:
    """The pauses of the rounds in which it is left out, by their shortest."""
    budget = Budget()
    pauses = [budget.reconnect_base_s * 2**n for n in range(LEFT_OUT_ROUNDS)]
    shortest_s = sum(min(one, budget.failover_pause_s_max) / 2 for one in pauses)
    assert shortest_s >= budget.takeover_s + budget.failover_pause_s_max


@pytest.mark.parametrize(
    ("silent_s", "lives"), [(None, False), ("0", False), (0, True), (0.9, True), (1.0, False)]
)
def test_a_leader_lives_by_its_last_item_in_the_log(silent_s: object, lives: bool) -> None:
    refusal = AppError(ErrorCode.UNAVAILABLE, "no", silent_s=silent_s)
    assert lives_of(refusal, 1.0) is lives


@pytest.mark.parametrize("named", [None, 7, "", "a", "a:b", {"a": 1}])
def test_a_refusal_without_a_valid_leader_names_none(named: object) -> None:
    assert leader_of(AppError(ErrorCode.UNAVAILABLE, "no", leader=named)) is None


def test_a_refusal_names_the_leader() -> None:
    assert leader_of(AppError(ErrorCode.UNAVAILABLE, "no", leader="a:1")) == A

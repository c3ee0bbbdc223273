"""The order in which the addresses of several schedulers are tried."""

from __future__ import annotations

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.addresses import LOST_ROUNDS, SchedulerAddresses, leader_of

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
    for _ in range(LOST_ROUNDS):
        assert addresses.failed(A, standby=True), "the standby still names the one that is lost"
        assert addresses.current == B
    assert not addresses.failed(A, standby=True)
    assert addresses.current == A, "it may lead still"
    addresses.failed(X)
    addresses.lost()  # of x: the list begins
    assert addresses.current == A


@pytest.mark.parametrize("named", [None, 7, "", "a", "a:b", {"a": 1}])
def test_a_refusal_without_a_valid_leader_names_none(named: object) -> None:
    assert leader_of(AppError(ErrorCode.UNAVAILABLE, "no", leader=named)) is None


def test_a_refusal_names_the_leader() -> None:
    assert leader_of(AppError(ErrorCode.UNAVAILABLE, "no", leader="a:1")) == A

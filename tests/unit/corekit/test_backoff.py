"""Pauses between tries grow up to their limit, begin again after a success, and differ."""

from __future__ import annotations

import random

from corekit.aio.backoff import Backoff


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(1.0, 5.0)
    for ceiling_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert ceiling_s / 2 <= backoff.next_s() <= ceiling_s


def test_a_first_pause_above_the_limit_is_the_limit() -> None:
    assert Backoff(10.0, 5.0).next_s() <= 5.0


def test_a_success_begins_with_the_shortest_pause_again() -> None:
    backoff = Backoff(1.0, 60.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 1.0


def test_peers_do_not_pause_alike() -> None:
    pauses = {Backoff(1.0, 5.0, random.Random(seed)).next_s() for seed in range(5)}
    assert len(pauses) == 5

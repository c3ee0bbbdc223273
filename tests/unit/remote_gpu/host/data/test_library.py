"""The library of data sets: which of them make room, and the rates of fetches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.host.data.library import (
    LEAST_BYTES_PER_S,
    PACE_S,
    KeptSet,
    Library,
    Pace,
    Rates,
)


def library(space_bytes: int, **sizes: int) -> Library:
    """Whole sets, used once in this order."""
    made = Library(space_bytes)
    for number, (key, size_bytes) in enumerate(sizes.items()):
        made.begin(KeptSet(key=key, origin="s3://b", bytes=size_bytes))
        made.arrived(key, size_bytes, whole=True)
        made.use(key, float(number))
    return made


@pytest.mark.parametrize(
    ("again", "in_use", "size_bytes", "evicted", "missing_bytes"),
    [
        ("", "", 20, "", 0),  # there is room
        ("", "", 30, "a", 0),  # the one used longest ago
        ("a", "", 30, "b", 0),  # the one used least
        ("", "a", 30, "b", 0),
        ("", "", 60, "a b", 0),
        ("", "a b c", 30, "", 10),  # all are used: nothing is evicted
        ("", "", 101, "", 1),
    ],
)
def test_room_is_made_by_what_is_worth_least(
    again: str, in_use: str, size_bytes: int, evicted: str, missing_bytes: int
) -> None:
    kept = library(100, a=30, b=30, c=20)
    for key in again.split():
        kept.use(key, 9.0)
    room = kept.room("new", size_bytes, in_use.split())
    assert (" ".join(room.evict), room.missing_bytes) == (evicted, missing_bytes)


def test_old_uses_age() -> None:
    kept = library(2, often=1, once=1)
    for _ in range(3):
        kept.use("often", 5.0)
    for number in range(5):
        key = f"new-{number}"
        for name in kept.room(key, 1, ()).evict:
            kept.gone(name, evicted=True)
        kept.begin(KeptSet(key=key, origin="s3://b", bytes=1))
        kept.arrived(key, 1, whole=True)
        kept.use(key, 10.0 + number)
    assert "often" not in kept.sets


def test_a_set_of_a_slow_source_stays_longer() -> None:
    kept = Library(2)
    for origin, seconds in (("s3://fast", 1.0), ("https://slow", 10.0)):
        kept.rates.learn(origin, 1 << 20, seconds)
    for number, (key, origin) in enumerate([("slow", "https://slow"), ("fast", "s3://fast")]):
        kept.begin(KeptSet(key=key, origin=origin, bytes=1))
        kept.use(key, float(number))
    assert kept.room("new", 1, ()).evict == ("fast",)


def test_a_set_counts_for_itself_once() -> None:
    kept = library(100, a=60)
    assert kept.room("a", 100, ()) == ((), 0)


def test_rates_are_of_the_newest_fetches() -> None:
    rates = Rates()
    assert rates.of("s3://b") is None
    rates.learn("s3://b", 100 << 20, 1.0)
    rates.learn("s3://b", 1000, 100.0)  # too small to count
    assert rates.of("https://h") == rates.of("s3://b") == 100 << 20
    for _ in range(20):
        rates.learn("s3://b", 1 << 20, 1.0)
    assert (rates.of("s3://b") or 0) < 2 << 20


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    used=st.sets(st.integers(0, 7)),
    size_bytes=st.integers(0, 120),
)
def test_room_is_enough_and_spares_what_is_used(
    sizes: list[int], used: set[int], size_bytes: int
) -> None:
    kept = library(1000, **{f"s{n}": size for n, size in enumerate(sizes)})
    kept.space_bytes = 100
    in_use = {f"s{n}" for n in used}
    room = kept.room("new", size_bytes, in_use)
    assert in_use.isdisjoint(room.evict)
    left = sum(one.bytes for key, one in kept.sets.items() if key not in room.evict)
    if room.missing_bytes:
        assert not room.evict
        assert sum(one.bytes for key, one in kept.sets.items() if key in in_use) + size_bytes > 100
    else:
        assert left + size_bytes <= 100 or not room.evict


def test_a_fetch_is_slow_by_its_last_period() -> None:
    enough = int(PACE_S * LEAST_BYTES_PER_S)
    pace = Pace(100.0)
    found = [
        pace.is_slow(100.0 + PACE_S / 2, 0),  # no period is over
        pace.is_slow(100.0 + PACE_S, enough),
        pace.is_slow(100.0 + 2 * PACE_S, 2 * enough - 1),
        pace.is_slow(100.0 + 2 * PACE_S, 2 * enough - 1),  # a new period has begun
        pace.is_slow(100.0 + 3 * PACE_S, 9 * enough),
    ]
    assert found == [False, False, True, False, False]

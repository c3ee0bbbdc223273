"""Unauthenticated connections evict each other; authenticated ones have a limit of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.aio.admission import LOOPBACK, OWN_DESCRIPTORS, Admission, AdmissionLimits, source_of

LIMITS = AdmissionLimits(
    authenticated_max=4,
    reserved_max=1,
    unauthenticated_max=4,
    unauthenticated_per_source_max=2,
    unauthenticated_bytes_max=100,
    unauthenticated_bytes_per_source_max=60,
    authenticated_bytes_max=200,
)


def test_a_source_evicts_its_own_oldest_connection() -> None:
    admission: Admission[str] = Admission(LIMITS)
    assert admission.connected("a1", "a") is None
    assert admission.connected("b1", "b") is None
    assert admission.connected("a2", "a") is None
    assert admission.connected("a3", "a") == "a1"
    assert admission.unauthenticated == 3


def test_at_the_limit_the_source_with_the_most_loses_one() -> None:
    admission: Admission[str] = Admission(replace(LIMITS, unauthenticated_per_source_max=3))
    for name in ("b1", "a1", "a2", "a3"):
        assert admission.connected(name, name[0]) is None
    assert admission.connected("c1", "c") == "a1", "not the oldest of all: that is somebody else's"
    assert admission.authenticate("b1")


def test_loopback_has_the_total_limit_only() -> None:
    admission: Admission[int] = Admission(LIMITS)
    assert [admission.connected(n, LOOPBACK) for n in range(6)] == [None, None, None, None, 0, 1]


def test_authenticated_connections_have_their_own_limit_and_a_reserve() -> None:
    admission: Admission[int] = Admission(LIMITS)
    for n in range(3):
        admission.connected(n, "a")
        assert admission.authenticate(n)
        assert admission.authenticate(n), "said twice"
    assert (admission.authenticated, admission.unauthenticated) == (3, 0)
    admission.connected(3, "a")
    assert not admission.authenticate(3)
    assert admission.authenticate(3, reserved=True), "the last place is reserved"
    admission.connected(4, "a")
    assert not admission.authenticate(4, reserved=True)
    admission.disconnected(0)
    assert admission.authenticate(4)
    assert admission.authenticate(404), "one that is unknown"


def test_above_the_limit_of_bytes_the_largest_is_evicted() -> None:
    admission: Admission[str] = Admission(LIMITS)
    for name in ("a1", "a2", "b1", "b2"):
        admission.connected(name, name[0])
    assert admission.buffers("a1", 40) is None
    assert admission.buffers("a2", 30) == "a1", "70 bytes of source a"
    admission.disconnected("a1")
    assert admission.buffers("b1", 35) is None
    assert admission.buffers("b2", 24) is None
    assert admission.buffers("a2", 45) == "b1", "104 bytes in all, and b has the most of them"
    assert admission.buffers("a2", 0) is None, "who lets go of bytes stays"
    assert admission.unauthenticated_bytes == 59


def test_bytes_of_authenticated_connections_have_one_limit() -> None:
    admission: Admission[str] = Admission(LIMITS)
    admission.connected("a", "x")
    admission.buffers("a", 50)
    admission.authenticate("a")
    assert (admission.unauthenticated_bytes, admission.authenticated_bytes) == (0, 50)
    admission.connected("b", "x")
    admission.authenticate("b")
    assert admission.buffers("b", 150) is None
    assert admission.buffers("a", 51) == "b"
    admission.disconnected("b")
    assert admission.authenticated_bytes == 51


moves = st.lists(
    st.tuples(st.sampled_from("acklh"), st.integers(0, 9), st.sampled_from(["x", "y", LOOPBACK])),
    max_size=60,
)


@given(moves)
def test_no_limit_is_ever_passed_and_every_count_is_right(
    steps: list[tuple[str, int, str]],
) -> None:
    admission: Admission[int] = Admission(LIMITS)
    here: dict[int, str] = {}
    known: set[int] = set()
    for move, token, source in steps:
        if move == "a" and token not in here:
            evicted = admission.connected(token, source)
            assert evicted not in known
            here.pop(-1 if evicted is None else evicted, None)
            here[token] = source
        elif move in "ck" and token in here and admission.authenticate(token, reserved=move == "k"):
            known.add(token)
        elif move == "l":
            admission.disconnected(token)
            here.pop(token, None)
            known.discard(token)
        elif move == "h" and token in here:
            while (evicted := admission.buffers(token, 7 * token)) is not None:
                admission.disconnected(evicted)
                here.pop(evicted, None)
                known.discard(evicted)
                if evicted == token:
                    break
        assert (admission.authenticated, admission.unauthenticated) == (
            len(known),
            len(here) - len(known),
        )
        assert admission.authenticated <= LIMITS.authenticated_max
        assert admission.unauthenticated <= LIMITS.unauthenticated_max
    for token in list(here):
        admission.disconnected(token)
    assert admission.unauthenticated_bytes == admission.authenticated_bytes == 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("127.0.0.1", LOOPBACK),
        ("127.8.8.8", LOOPBACK),
        ("::1", LOOPBACK),
        ("", LOOPBACK),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)
def test_what_counts_as_one_source(address: str, source: str) -> None:
    assert source_of(address) == source


@pytest.mark.parametrize("descriptors", [0, 100, 256, 1024, 65_536, 10**9])
def test_limits_fit_the_descriptors(descriptors: int) -> None:
    limits = AdmissionLimits.of(descriptors, 20_000)
    assert limits.authenticated_max + limits.unauthenticated_max <= max(
        8, descriptors - OWN_DESCRIPTORS
    )
    assert limits.authenticated_max + limits.unauthenticated_max <= 20_000
    assert 0 < limits.reserved_max < limits.authenticated_max
    assert 0 < limits.unauthenticated_per_source_max <= limits.unauthenticated_max

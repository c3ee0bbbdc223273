"""Who may stay connected: strangers push out their like, members have room of their own."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.aio.admission import LOOPBACK, OWN_DESCRIPTORS, Admission, Room, source_of
from corekit.aio.process import raise_descriptor_limit

ROOM = Room(
    members_max=4, kept_max=1, strangers_max=4, strangers_per_source_max=2,
    stranger_bytes_max=100, stranger_bytes_per_source_max=60, member_bytes_max=200,
)  # fmt: skip


def test_a_source_pushes_out_its_own_oldest_stranger() -> None:
    admission: Admission[str] = Admission(ROOM)
    assert admission.arrived("a1", "a") is None
    assert admission.arrived("b1", "b") is None
    assert admission.arrived("a2", "a") is None
    assert admission.arrived("a3", "a") == "a1"
    assert admission.strangers == 3


def test_a_full_room_takes_from_the_source_that_has_the_most() -> None:
    admission: Admission[str] = Admission(replace(ROOM, strangers_per_source_max=3))
    for name in ("b1", "a1", "a2", "a3"):
        assert admission.arrived(name, name[0]) is None
    assert admission.arrived("c1", "c") == "a1", "not the oldest of all: that is somebody else's"
    assert admission.known("b1")


def test_this_machine_is_bounded_by_the_room_of_all_strangers_only() -> None:
    admission: Admission[int] = Admission(ROOM)
    assert [admission.arrived(n, LOOPBACK) for n in range(6)] == [None, None, None, None, 0, 1]


def test_members_are_no_strangers_and_some_room_is_kept() -> None:
    admission: Admission[int] = Admission(ROOM)
    for n in range(3):
        admission.arrived(n, "a")
        assert admission.known(n)
        assert admission.known(n), "said twice"
    assert (admission.members, admission.strangers) == (3, 0)
    admission.arrived(3, "a")
    assert not admission.known(3)
    assert admission.known(3, kept=True), "the last place is kept for such as this"
    admission.arrived(4, "a")
    assert not admission.known(4, kept=True)
    admission.left(0)
    assert admission.known(4)
    assert admission.known("never heard of it")  # type: ignore[arg-type]


def test_whoever_holds_the_most_goes_when_too_much_is_held() -> None:
    admission: Admission[str] = Admission(ROOM)
    for name in ("a1", "a2", "b1", "b2"):
        admission.arrived(name, name[0])
    assert admission.holds("a1", 40) is None
    assert admission.holds("a2", 30) == "a1", "70 bytes of source a"
    admission.left("a1")
    assert admission.holds("b1", 35) is None
    assert admission.holds("b2", 24) is None
    assert admission.holds("a2", 45) == "b1", "104 bytes in all, and b has the most of them"
    assert admission.holds("a2", 0) is None, "who lets go of bytes stays"
    assert admission.stranger_bytes == 59


def test_members_bytes_are_bounded_together() -> None:
    admission: Admission[str] = Admission(ROOM)
    admission.arrived("a", "x")
    admission.holds("a", 50)
    admission.known("a")
    assert (admission.stranger_bytes, admission.member_bytes) == (0, 50)
    admission.arrived("b", "x")
    admission.known("b")
    assert admission.holds("b", 150) is None
    assert admission.holds("a", 51) == "b"
    admission.left("b")
    assert admission.member_bytes == 51


moves = st.lists(
    st.tuples(st.sampled_from("acklh"), st.integers(0, 9), st.sampled_from(["x", "y", LOOPBACK])),
    max_size=60,
)


@given(moves)
def test_no_limit_is_ever_passed_and_every_count_is_right(
    steps: list[tuple[str, int, str]],
) -> None:
    admission: Admission[int] = Admission(ROOM)
    here: dict[int, str] = {}
    members: set[int] = set()
    for move, token, source in steps:
        if move == "a" and token not in here:
            goes = admission.arrived(token, source)
            assert goes not in members
            here.pop(-1 if goes is None else goes, None)
            here[token] = source
        elif move in "ck" and token in here and admission.known(token, kept=move == "k"):
            members.add(token)
        elif move == "l":
            admission.left(token)
            here.pop(token, None)
            members.discard(token)
        elif move == "h" and token in here:
            while (goes := admission.holds(token, 7 * token)) is not None:
                admission.left(goes)
                here.pop(goes, None)
                members.discard(goes)
                if goes == token:
                    break
        assert (admission.members, admission.strangers) == (len(members), len(here) - len(members))
        assert admission.members <= ROOM.members_max
        assert admission.strangers <= ROOM.strangers_max
    for token in list(here):
        admission.left(token)
    assert admission.stranger_bytes == admission.member_bytes == 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.7", "10.0.0.7"), ("127.0.0.1", LOOPBACK), ("127.8.8.8", LOOPBACK),
        ("::1", LOOPBACK), ("", LOOPBACK), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"), ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)  # fmt: skip
def test_what_counts_as_one_source(address: str, source: str) -> None:
    assert source_of(address) == source


@pytest.mark.parametrize("descriptors", [0, 100, 256, 1024, 65_536, 10**9])
def test_a_room_fits_its_descriptors(descriptors: int) -> None:
    room = Room.of(descriptors, 20_000)
    assert room.members_max + room.strangers_max <= max(8, descriptors - OWN_DESCRIPTORS)
    assert room.members_max + room.strangers_max <= 20_000
    assert 0 < room.kept_max < room.members_max
    assert 0 < room.strangers_per_source_max <= room.strangers_max


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
        raised = raise_descriptor_limit(most=1024)
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == min(1024, before[1]) or before[1] == resource.RLIM_INFINITY
        assert raise_descriptor_limit(most=300) == raised, "never lowered"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

"""Leases granted ahead in a host's table: they wait, are booked, and may lose the booking again."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.leases.table import InstalledLease, LeasePhase, LeaseTable
from remote_gpu.host.warm.table import WarmWorker
from remote_gpu.wire.errors import Refusal, Refused
from tests.installs import install_of, share_of

D0 = DeviceId("d0")
MEMORY = {D0: 1000}
SILENCE_S = 30.0


def install(number: int, memory_mib: int = 1000, **fields: Any) -> Install:
    return install_of(number, share_of("d0", memory_mib=memory_mib), **fields)


def table() -> LeaseTable:
    return LeaseTable(MEMORY, SILENCE_S)


def occupied() -> LeaseTable:
    """The device is that of l1, whose session is open; l2 and l3 are ahead."""
    leases = table()
    leases.install(install(1), 0)
    leases.open("l1", "n1", 60, 0)
    for number in (2, 3):
        assert leases.install(install(number, ahead=True), 0) == []
    return leases


def events(steps: list[LeaseStep]) -> list[tuple[str, str]]:
    return [(step.kind.value, step.lease) for step in steps]


def found(leases: LeaseTable, lease: str) -> InstalledLease:
    entry = leases.find(lease)
    assert entry is not None
    return entry


def test_a_lease_ahead_is_never_placed_before_its_booking() -> None:
    leases = table()
    assert leases.install(install(1, ahead=True), 0) == []
    assert leases.install(install(1, ahead=True), 1) == []
    assert found(leases, "l1").phase is LeasePhase.QUEUED
    with pytest.raises(Refused) as refused:
        leases.open("l1", "n", 60, 2)
    assert refused.value.code == Refusal.NOT_READY
    assert events(leases.install(install(1), 3)) == [("placed", "l1")]
    [opened] = leases.open("l1", "n", 60, 4, 2.5, new_sandbox=True)
    assert (opened.waited_s, opened.new_sandbox) == (2.5, True)


def test_leases_ahead_block_nobody_and_are_no_conflict() -> None:
    leases = table()
    leases.install(install(1, ahead=True), 0)
    assert events(leases.install(install(2), 0)) == [("placed", "l2")]
    assert events(leases.install(install(3), 0)) == [("conflict", "l3")]
    leases.end(LeaseId("l2"), EndReason.REVOKED)
    assert events(leases.gone(LeaseId("l2"))) == [("cut", "l2"), ("placed", "l3")]


def test_a_booking_takes_its_turn_by_fence() -> None:
    leases = occupied()
    assert events(leases.give_back(LeaseId("l1"))) == [("returned", "l1"), ("kill", "l1")]
    assert leases.install(install(4), 1) == []
    assert leases.install(install(3), 1) == [], "it waits for the processes of l1"
    assert events(leases.gone(LeaseId("l1"))) == [("cut", "l1"), ("placed", "l3")]


def test_a_booking_replaces_the_facts_of_the_install() -> None:
    leases = occupied()
    booked = install(2, residents=("w1",), evict=("w2",), connect_by_s=7.0)
    leases.install(booked, 5)
    entry = found(leases, "l2")
    assert entry.install == booked
    assert entry.connect_by_s == 12
    assert leases.install(install(2, evict=("w3",)), 6) == []
    assert entry.install == booked, "it is booked already"


@pytest.mark.parametrize("staged_before", [True, False])
def test_a_lease_ahead_has_no_deadline_here(staged_before: bool) -> None:
    leases = table()
    first = install(1, ahead=True, connect_by_s=3.0 if staged_before else None)
    leases.install(first, 0)
    leases.staged(LeaseId("l1"), 3.0, 0)
    assert leases.next_deadline_s() is None
    leases.install(install(1, connect_by_s=3.0), 100)
    assert leases.next_deadline_s() == 103
    leases.install(first, 101)
    assert leases.next_deadline_s() is None, "the booking is taken back"
    leases.install(install(1), 102)
    leases.staged(LeaseId("l1"), 5.0, 102)
    assert leases.next_deadline_s() == 107


def test_a_swap_gives_the_shares_to_the_one_that_waits() -> None:
    leases = table()
    leases.install(install(1, ahead=True), 0)
    leases.install(install(2, ahead=True), 0)
    assert events(leases.install(install(1), 1)) == [("placed", "l1")]
    assert events(leases.install(install(1, ahead=True), 2)) == [("unplaced", "l1")]
    assert not found(leases, "l1").occupying
    assert events(leases.install(install(2), 2)) == [("placed", "l2")]
    assert events(leases.end(LeaseId("l1"), EndReason.WITHDRAWN)) == [
        ("closed", "l1"),
        ("cut", "l1"),
    ]


def test_a_swap_in_the_other_order() -> None:
    leases = table()
    for number in (1, 2):
        leases.install(install(number, ahead=True), 0)
    leases.install(install(1), 1)
    assert leases.install(install(2), 2) == [], "no conflict: the other push follows"
    assert events(leases.install(install(1, ahead=True), 2)) == [
        ("unplaced", "l1"),
        ("placed", "l2"),
    ]


@pytest.mark.parametrize("phase", ["open", "returned", "closing"])
def test_a_lease_with_a_session_keeps_its_shares(phase: str) -> None:
    leases = table()
    leases.install(install(1, connect_by_s=9.0), 0)
    leases.open("l1", "n", 60, 0)
    if phase == "returned":
        leases.give_back(LeaseId("l1"))
    elif phase == "closing":
        leases.session_over(LeaseId("l1"), EndReason.DONE, "")
    steps = leases.install(install(1, ahead=True), 1)
    assert events(steps) == ([("closed", "l1")] if phase == "closing" else [])
    assert all(entry.occupying and not entry.install.ahead for entry in leases)


def test_a_booking_of_a_lease_that_waits_may_be_taken_back() -> None:
    leases = occupied()
    leases.install(install(2), 1)
    leases.install(install(4, 600), 1)  # waits behind it
    assert leases.install(install(2, ahead=True), 2) == []
    leases.give_back(LeaseId("l1"))
    assert events(leases.gone(LeaseId("l1"))) == [("cut", "l1"), ("placed", "l4")]


def test_only_a_booked_lease_ends_because_of_a_stuck_process() -> None:
    leases = occupied()
    leases.install(install(2), 1)
    leases.end(LeaseId("l1"), EndReason.REVOKED)
    steps = leases.stuck(LeaseId("l1"), "process 7 cannot be killed")
    assert events(steps) == [("closed", "l2"), ("cut", "l2")]
    assert leases.install(install(4, ahead=True), 2) == []
    [closed, _] = leases.install(install(3), 3)
    assert (closed.lease, closed.reason) == ("l3", EndReason.DEVICE_BAD)


def test_the_refusal_of_an_ended_lease_begins_with_its_reason() -> None:
    leases = occupied()
    leases.end(LeaseId("l2"), EndReason.WITHDRAWN)
    for refuses in (
        lambda: leases.open("l2", "n", 60, 1),
        lambda: leases.install_of("l2", 2),
    ):
        with pytest.raises(Refused) as refused:
            refuses()
        assert refused.value.code == Refusal.ENDED
        assert refused.value.message.startswith("WITHDRAWN: ")


def test_a_full_state_books_and_takes_back() -> None:
    leases = table()
    for number in (1, 2):
        leases.install(install(number, ahead=True), 0)
    leases.install(install(1), 0)
    steps = leases.full_state((install(1, ahead=True), install(2)), 1)
    assert events(steps) == [("unplaced", "l1"), ("placed", "l2")]
    assert leases.full_state((install(1, ahead=True), install(2)), 2) == []


def test_a_warm_worker_is_back_when_its_lease_is_unplaced() -> None:
    leases = table()
    worker = WarmWorker(
        id="w1",
        tenant="t",
        workload="w",
        memory_mib={D0: 400},
        loading_s=1.0,
        idle_since_s=0.0,
    )
    leases.warm.keep(worker)
    leases.install(install(1, workload="w", ahead=True), 0)
    leases.install(install(2, 700, ahead=True), 0)
    [placed] = leases.install(install(1, workload="w"), 1)
    assert (placed.kind, placed.warm, leases.warm.ids()) == ("placed", ("w1",), ())
    [unplaced] = leases.install(install(1, workload="w", ahead=True), 2)
    assert (unplaced.kind, unplaced.warm, leases.warm.ids()) == ("unplaced", ("w1",), ("w1",))
    [evict] = leases.install(install(2, 700), 3)
    assert (evict.kind, evict.warm) == ("evict", ("w1",)), "it needs the worker's memory"
    assert events(leases.warm_gone("w1")) == [("placed", "l2")]

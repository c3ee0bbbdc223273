"""The host's table of leases: what occupies a share, when it ends, and what waits for it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corekit.ids import DeviceId, LeaseId
from corekit.units import percent_of
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.leases.table import LeasePhase, LeaseTable
from remote_gpu.wire.errors import Refusal, Refused
from tests.installs import install_of, share_of
from tests.lease_overlaps import read_overlaps

MEMORY = {DeviceId("d0"): 1000, DeviceId("d1"): 500}
SILENCE_S = 30.0


def share(device: str = "d0", memory_mib: int = 400, **fields: Any) -> Share:
    guarantee = fields.pop("guarantee", 0)
    return share_of(device, memory_mib=memory_mib, compute_guarantee_pct=guarantee, **fields)


def install(number: int, *shares: Share, **fields: Any) -> Install:
    return install_of(number, *(shares or (share(),)), **fields)


def table() -> LeaseTable:
    return LeaseTable(MEMORY, SILENCE_S)


def kinds(steps: list[LeaseStep]) -> list[str]:
    return [step.kind.value for step in steps]


def test_the_life_of_a_lease() -> None:
    leases = table()
    assert kinds(leases.install(install(1), 0)) == ["placed"]
    assert leases.install(install(1), 1) == []
    assert kinds(leases.open("l1", "n1", 60, 2)) == ["opened"]
    assert kinds(leases.give_back(LeaseId("l1"))) == ["returned", "kill"]
    assert leases.give_back(LeaseId("l1")) == []
    assert kinds(leases.gone(LeaseId("l1"))) == ["cut"]
    assert kinds(leases.end(LeaseId("l1"), EndReason.DONE)) == ["closed", "cut"]
    assert leases.end(LeaseId("l1"), EndReason.DONE) == []
    assert list(leases) == []


@pytest.mark.parametrize("succeeded", [None, False, True])
def test_the_end_of_a_session_reports_whether_its_code_succeeded(succeeded: bool | None) -> None:
    leases = table()
    for number in (1, 2):
        leases.install(install(number, share(memory_mib=100)), 0)
        leases.open(f"l{number}", "n", 60, 2)
    returned, kill = leases.give_back(LeaseId("l1"), succeeded)
    assert (returned.succeeded, kill.succeeded) == (succeeded, None)
    closed, *_ = leases.session_over(LeaseId("l2"), EndReason.DONE, "", succeeded)
    assert closed.succeeded is succeeded
    (repeated,) = leases.install(install(2), 3)
    assert repeated.succeeded is succeeded, "the first report was lost"


def test_a_lease_that_ends_while_its_worker_dies_holds_its_shares_until_then() -> None:
    leases = table()
    leases.install(install(1, share(memory_mib=1000)), 0)
    leases.open("l1", "n1", 60, 0)
    assert kinds(leases.give_back(LeaseId("l1"))) == ["returned", "kill"]
    assert leases.install(install(2), 1) == []
    assert kinds(leases.session_over(LeaseId("l1"), EndReason.DONE, "")) == ["closed"]
    assert [(s.kind.value, s.lease) for s in leases.gone(LeaseId("l1"))] == [
        ("cut", "l1"),
        ("placed", "l2"),
    ]


def test_an_ended_lease_is_not_reopened_and_its_end_is_reported_again() -> None:
    leases = table()
    leases.install(install(1), 0)
    leases.end(LeaseId("l1"), EndReason.CAP, reported=False)
    leases.gone(LeaseId("l1"))
    [again] = leases.install(install(1), 1)
    assert (again.kind, again.reason, again.reported) == (LeaseStepKind.CLOSED, EndReason.CAP, True)
    with pytest.raises(Refused, match="ENDED"):
        leases.open("l1", "n", 60, 2)


def test_shares_of_one_device_add_up() -> None:
    leases = table()
    for number in (1, 2):
        assert kinds(leases.install(install(number), 0)) == ["placed"]
    assert kinds(leases.install(install(3), 0)) == ["conflict"]
    leases.end(LeaseId("l1"), EndReason.REVOKED)
    assert [s.lease for s in leases.gone(LeaseId("l1"))] == ["l1", "l3"]


def test_a_guarantee_and_an_exclusive_share_wait_as_well() -> None:
    leases = table()
    leases.install(install(1, share(memory_mib=1, guarantee=60)), 0)
    assert kinds(leases.install(install(2, share(memory_mib=1, guarantee=60)), 0)) == ["conflict"]
    leases = table()
    leases.install(install(1, share(memory_mib=1)), 0)
    assert kinds(leases.install(install(2, share(memory_mib=1, exclusive=True)), 0)) == ["conflict"]
    # what came later does not overtake it on the same device, but does on another
    assert kinds(leases.install(install(3, share(memory_mib=1)), 0)) == ["conflict"]
    assert kinds(leases.install(install(4, share("d1", 1)), 0)) == ["placed"]


def test_a_device_has_room_for_eight_guarantees_of_an_eighth() -> None:
    leases = table()
    for number in range(8):
        eighth = install(number, share(memory_mib=1, guarantee=12.5))
        assert kinds(leases.install(eighth, 0)) == ["placed"]
    ninth = install(8, share(memory_mib=1, guarantee=0.1))
    assert kinds(leases.install(ninth, 0)) == ["conflict"]


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        ("nothing", ["conflict"]),
        ("a session", ["conflict"]),
        ("given back", []),  # its process still ends: the scheduler may have granted it again
        ("over", []),
        ("revoked", []),
        ("gone", ["placed"]),
    ],
)
def test_a_share_that_is_granted_twice_is_a_conflict(happened: str, expected: list[str]) -> None:
    leases, first = table(), LeaseId("l1")
    leases.install(install(1, share(memory_mib=1000)), 0)
    if happened in ("a session", "given back", "over"):
        leases.open(first, "n", 60, 0)
    match happened:
        case "given back":
            leases.give_back(first)
        case "over":
            leases.session_over(first, EndReason.DONE, "")
        case "revoked" | "gone":
            leases.end(first, EndReason.REVOKED)
    if happened == "gone":
        leases.gone(first)
    steps = leases.install(install(2, share(memory_mib=1000)), 1)
    assert kinds(steps) == expected
    assert leases.install(install(2, share(memory_mib=1000)), 2) == [], "once"
    if "conflict" in expected:
        assert (steps[0].lease, steps[0].detail) == ("l2", "beside l1")


def test_a_full_state_of_another_epoch_is_no_conflict() -> None:
    leases = table()
    leases.install(install(1, share(memory_mib=1000)), 0)
    steps = leases.full_state((install(2, share(memory_mib=1000)),), 1)
    assert kinds(steps) == ["closed", "kill"]


def test_a_share_larger_than_its_device_ends_at_once() -> None:
    leases = table()
    [closed, cut] = leases.install(install(1, share(memory_mib=1001)), 0)
    assert (closed.reason, cut.kind) == (EndReason.DEVICE_BAD, LeaseStepKind.CUT)
    assert kinds(leases.install(install(2, share("unknown")), 0)) == ["closed", "cut"]
    assert kinds(leases.install(install(3), 0)) == ["placed"]


def test_the_first_session_binds() -> None:
    leases = table()
    leases.install(install(1), 0)
    leases.open("l1", "first", 60, 0)
    for nonce in ("second", "first"):
        with pytest.raises(Refused) as refused:
            leases.open("l1", nonce, 60, 0)
        assert refused.value.code == Refusal.CLAIMED
    assert leases.admit_lane("l1", "first").lease == "l1"
    with pytest.raises(Refused, match="CLAIMED"):
        leases.admit_lane("l1", "second")
    leases.give_back(LeaseId("l1"))
    with pytest.raises(Refused, match="ENDED"):
        leases.admit_lane("l1", "first")


@pytest.mark.parametrize(
    ("happened", "at_s", "reason"),
    [
        ("staged", 10, EndReason.NOT_STARTED),
        ("silent", 2 + SILENCE_S, EndReason.SESSION_LOST),
        ("capped", 2 + 7, EndReason.CAP),
        ("deadline", 5, EndReason.EXPIRED),
    ],
)
def test_own_deadlines(happened: str, at_s: float, reason: EndReason) -> None:
    leases = table()
    deadline = happened == "deadline"
    leases.install(
        install(
            1,
            hold=LeaseLifetime.DEADLINE if deadline else LeaseLifetime.SESSION,
            cap_s=5 if deadline else None,
        ),
        0,
    )
    leases.staged(LeaseId("l1"), 10, 0)
    leases.staged(LeaseId("l1"), 99, 0)  # nothing renews it
    if happened in ("silent", "capped"):
        leases.open("l1", "n", 7 if happened == "capped" else 500, 2)
    assert leases.next_deadline_s() == at_s
    assert leases.expire(at_s - 0.001) == []
    [closed, kill] = leases.expire(at_s)
    assert (closed.reason, kill.kind) == (reason, LeaseStepKind.KILL)
    assert leases.next_deadline_s() is None
    assert leases.expire(at_s + 100) == []


def test_a_deadline_lease_has_several_sessions() -> None:
    leases = table()
    leases.install(install(1, hold=LeaseLifetime.DEADLINE, cap_s=100), 0)
    leases.open("l1", "first", 10, 0)
    assert leases.give_back(LeaseId("l1")) == []
    [unbound] = leases.expire(10)
    assert (unbound.kind, unbound.reason) == (LeaseStepKind.UNBOUND, EndReason.CAP)
    leases.open("l1", "second", 500, 11)
    assert kinds(leases.session_over(LeaseId("l1"), EndReason.DONE, "")) == ["unbound"]
    leases.open("l1", "third", 500, 12)
    assert kinds(leases.expire(12 + SILENCE_S)) == ["unbound"]
    leases.open("l1", "fourth", 500, 99)
    assert kinds(leases.expire(1000)) == ["closed", "kill"]


def test_a_new_duration_counts_from_its_receipt() -> None:
    leases = table()
    leases.install(install(1, hold=LeaseLifetime.DEADLINE, cap_s=100), 0)
    assert leases.install(install(1, hold=LeaseLifetime.DEADLINE, cap_s=100), 50) == []
    assert leases.next_deadline_s() == 150
    leases.install(install(1, hold=LeaseLifetime.DEADLINE, cap_s=5), 60)
    assert leases.expire(64) == []
    assert kinds(leases.expire(65)) == ["closed", "kill"]


def test_a_session_that_is_over_ends_its_lease() -> None:
    leases = table()
    leases.install(install(1), 0)
    assert leases.session_over(LeaseId("l1"), EndReason.DONE, "") == []  # there is none yet
    leases.open("l1", "n", 10, 0)
    assert kinds(leases.session_over(LeaseId("l1"), EndReason.DONE, "")) == ["closed", "kill"]
    assert leases.session_over(LeaseId("l1"), EndReason.DONE, "") == []


def test_a_full_state_replaces_the_installed_leases() -> None:
    leases = table()
    leases.install(install(1), 0)
    leases.install(install(2), 0)
    steps = leases.full_state((install(2), install(3)), 1)
    assert [(s.kind.value, s.lease) for s in steps] == [("closed", "l1"), ("kill", "l1")]
    assert not steps[0].reported
    assert [s.lease for s in leases.gone(LeaseId("l1"))] == ["l1", "l3"]


def test_an_install_of_a_lease_that_was_given_back_occupies_nothing() -> None:
    leases = table()
    assert leases.install(install(1, state=LeaseState.ENDING), 0) == []
    entry = leases.find("l1")
    assert entry is not None
    assert entry.phase is LeasePhase.RETURNED


class Table(RuleBasedStateMachine):
    """Whatever the scheduler, the clients and time do: no share is ever held twice."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = table()
        self.now_s = 0.0
        self.next = 1
        self.dying: list[LeaseId] = []
        self.lines: list[str] = []

    def take(self, steps: list[LeaseStep]) -> None:
        for step in steps:
            if step.kind is LeaseStepKind.KILL:
                assert step.lease not in self.dying, "killed once, so gone is called once"
                self.dying.append(step.lease)
            line = {
                "event": step.kind.value,
                "at_s": self.now_s,
                "lease": step.lease,
                "shares": [
                    {
                        "device": s.device,
                        "memory_mib": s.memory_mib,
                        "compute_guarantee_pct": s.compute_guarantee_pct,
                        "exclusive": s.exclusive,
                    }
                    for s in step.shares
                ],
            }
            self.lines.append(json.dumps(line))

    def some(self, number: int) -> LeaseId:
        return LeaseId(f"l{1 + number % max(1, self.next - 1)}")

    @rule(
        memory_mib=st.integers(0, 1100),
        guarantee=st.integers(0, 1000).map(percent_of),
        exclusive=st.booleans(),
        device=st.sampled_from(["d0", "d1"]),
        both=st.booleans(),
        deadline=st.booleans(),
        ahead=st.booleans(),
    )
    def grant(
        self,
        memory_mib: int,
        guarantee: float,
        exclusive: bool,
        device: str,
        both: bool,
        deadline: bool,
        ahead: bool,
    ) -> None:
        fields: dict[str, Any] = {
            "memory_mib": memory_mib,
            "guarantee": guarantee,
            "exclusive": exclusive,
        }
        shares = [share(d, **fields) for d in (("d0", "d1") if both else (device,))]
        held: dict[str, Any] = {"hold": LeaseLifetime.DEADLINE, "cap_s": 100.0} if deadline else {}
        granted = install(self.next, *shares, ahead=ahead, **held)
        self.take(self.leases.install(granted, self.now_s))
        self.next += 1

    @rule(number=st.integers(0, 1000), ahead=st.booleans())
    def book_or_take_back(self, number: int, ahead: bool) -> None:
        """Either, in any phase: the scheduler may not know that a session has opened."""
        if (entry := self.leases.find(self.some(number))) is not None:
            changed = replace(entry.install, ahead=ahead)
            self.take(self.leases.install(changed, self.now_s))

    @rule(number=st.integers(0, 1000), nonce=st.sampled_from("ab"), cap_s=st.floats(1, 100))
    def open(self, number: int, nonce: str, cap_s: float) -> None:
        with contextlib.suppress(Refused):
            self.take(self.leases.open(self.some(number), nonce, cap_s, self.now_s))

    @rule(number=st.integers(0, 1000))
    def give_back(self, number: int) -> None:
        self.take(self.leases.give_back(self.some(number)))

    @rule(number=st.integers(0, 1000))
    def close(self, number: int) -> None:
        self.take(self.leases.session_over(self.some(number), EndReason.DONE, ""))

    @rule(number=st.integers(0, 1000))
    def end(self, number: int) -> None:
        self.take(self.leases.end(self.some(number), EndReason.REVOKED))

    @rule()
    def a_worker_is_gone(self) -> None:
        if self.dying:
            self.take(self.leases.gone(self.dying.pop(0)))

    @rule()
    def a_worker_is_stuck(self) -> None:
        if self.dying:
            self.take(self.leases.stuck(self.dying[0], "it cannot be killed"))

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.leases.expire(self.now_s))
        deadline_s = self.leases.next_deadline_s()
        assert deadline_s is None or deadline_s > self.now_s

    @rule(keep=st.sets(st.integers(0, 20)))
    def reconnect(self, keep: set[int]) -> None:
        installs = [e.install for e in self.leases if e.phase is not LeasePhase.CLOSING]
        kept = tuple(one for i, one in enumerate(installs) if i in keep)
        self.take(self.leases.full_state(kept, self.now_s))

    @invariant()
    def no_share_is_held_twice(self) -> None:
        assert read_overlaps(self.lines, {str(k): v for k, v in MEMORY.items()}) == []

    @invariant()
    def whoever_is_open_occupies(self) -> None:
        assert all(
            e.occupying for e in self.leases if e.phase in (LeasePhase.PLACED, LeasePhase.OPEN)
        )

    @invariant()
    def a_lease_ahead_occupies_nothing(self) -> None:
        assert not any(e.occupying for e in self.leases if e.install.ahead)

    @invariant()
    def the_oldest_that_waits_waits_for_a_lease_with_shares(self) -> None:
        occupied = {one.device for e in self.leases if e.occupying for one in e.install.shares}
        waiting = [e.install for e in self.leases if e.waits]
        if waiting:
            oldest = min(waiting, key=lambda one: one.fence)
            assert occupied & {one.device for one in oldest.shares}

    def teardown(self) -> None:
        """When all are ended and gone, nothing is left and everything fits again."""
        for entry in list(self.leases):
            self.take(self.leases.end(entry.lease, EndReason.REVOKED))
        while self.dying:
            self.take(self.leases.gone(self.dying.pop()))
        assert list(self.leases) == []


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40)


def test_the_number_of_tombstones_is_bounded() -> None:
    leases = LeaseTable(MEMORY, SILENCE_S, tombstones_max=3)
    for number in range(1, 6):
        leases.install(install(number), 0)
        leases.end(LeaseId(f"l{number}"), EndReason.DONE)
        leases.gone(LeaseId(f"l{number}"))
    assert [leases.knows(f"l{n}") for n in range(1, 6)] == [False] * 2 + [True] * 3


def test_leases_that_wait_for_a_stuck_share_end_and_others_go_on() -> None:
    leases = table()
    leases.install(install(1, share(memory_mib=700)), 0)
    leases.install(install(2, share(memory_mib=400)), 0)  # waits for 1
    leases.install(install(3, share(memory_mib=300)), 0)  # waits behind 2
    leases.end(LeaseId("l1"), EndReason.REVOKED)
    steps = leases.stuck(LeaseId("l1"), "process 7 cannot be killed")
    assert [(s.kind.value, s.lease, s.reason) for s in steps] == [
        ("closed", "l2", EndReason.DEVICE_BAD),
        ("cut", "l2", None),
        ("placed", "l3", None),
    ]
    assert [one.device for one in leases.shares_of(LeaseId("l1"))] == ["d0"]
    [refused, _] = leases.install(install(4, share(memory_mib=500)), 1)
    assert (refused.kind, refused.reason) == (LeaseStepKind.CLOSED, EndReason.DEVICE_BAD)
    assert kinds(leases.install(install(5, share("d1", 500)), 1)) == ["placed"]
    assert kinds(leases.gone(LeaseId("l1"))) == ["cut"]
    assert kinds(leases.install(install(6, share(memory_mib=500)), 1)) == ["placed"]

"""Owners that are away: what wakes them, and what becomes of a wake-up that nobody follows."""

from __future__ import annotations

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.core import actions as do
from gpu_scheduler.model import Lease, Request, Step
from gpu_scheduler.names import away_of, away_queue, is_away
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with

WHOLE = Request(memory_mib=1000)
OWNER = "away:done"


class AwayWorld(World):
    """A scheduler with a waker, and one device."""

    def start(self) -> None:
        super().start()
        self.machine.state.wakes = True

    def leave(self, holder: str = "job", session: str = "s1") -> None:
        record = self.record(holder)
        fields = {"holder": JobId(holder), "revision": record.revision, "away": "done"}
        answer = self.ask(ops.HandBack, session, **fields)
        assert isinstance(answer, answers.RecordAnswer), answer

    def adopt(self, holder: str = "job", session: str = "s2") -> answers.AdoptAnswer:
        fields = {"holder": JobId(holder), "revision": self.record(holder).revision}
        answer = self.ask(ops.Adopt, session, **fields)
        assert isinstance(answer, answers.AdoptAnswer), answer
        return answer

    def woken(self) -> list[str]:
        woken = self.did(do.Wake)
        assert all(action.queue == "done" for action in woken)
        return [action.holder for action in woken]

    def orphans(self) -> list[str]:
        return [record.holder for record in self.ask(ops.Orphans, "s9").records]


def world() -> AwayWorld:
    made = AwayWorld()
    made.host("h", device("d"))
    return made


def granted(made: AwayWorld, holder: str = "job") -> Lease:
    answer = made.attempt(holder, request=WHOLE)
    assert answer.granted is not None, answer
    lease: Lease = answer.granted.lease
    return lease


def waiting() -> tuple[AwayWorld, Lease]:
    """Job `first` has the device; `job` waits for it, and its owner has left."""
    made = world()
    first = granted(made, "first")
    made.attempt(request=WHOLE)
    made.leave()
    return made, first


def running() -> AwayWorld:
    made = world()
    lease = granted(made)
    made.staged(lease)
    made.told("h", lease, "opened")
    made.leave()
    return made


def test_names() -> None:
    assert (away_of("s1", "q"), away_of("k/s1", "q")) == ("away:q", "k/away:q")
    assert [away_queue(owner) for owner in ("away:q", "k/away:q", "s1", None)] == ["q", "q", "", ""]
    assert not is_away("s1")
    with pytest.raises(AppError, match="not the name of a queue"):
        away_of("s1", "../q")
    for session in ("away:q", "k/away:q"):
        with pytest.raises(AppError, match="use another name"):
            ops.Hello(session=session, version=1)


def test_without_a_waker_a_job_is_not_left() -> None:
    made = world_with(device("d"))
    record = made.attempt(request=WHOLE).record
    fields = {"holder": record.holder, "revision": record.revision, "away": "done"}
    refusal = made.ask(ops.HandBack, **fields)
    assert (refusal.code, made.record().owner) == (ErrorCode.INVALID, "s1")


def test_a_request_that_was_left_is_granted_in_its_place() -> None:
    made, first = waiting()
    assert (made.record().step, made.record().owner) == (Step.WAITING, OWNER)
    assert made.orphans() == []
    made.attempt("later", request=WHOLE)
    made.release(first)
    assert made.woken() == ["job"]
    assert made.record().step is Step.RESERVED
    adopted = made.adopt()
    assert adopted.granted is not None
    assert (adopted.record.owner, adopted.record.strikes) == ("s2", 0)
    made.alive["s2"] = None
    made.advance(made.budget.accept_away_s)
    assert made.record().lease == adopted.granted.lease.id


def test_a_grant_waits_for_the_start_of_an_orchestrator() -> None:
    made, first = waiting()
    made.release(first)
    made.advance(made.budget.accept_away_s - 0.1)
    assert made.record().step is Step.RESERVED


def test_a_grant_whose_wake_up_is_not_followed_passes_on() -> None:
    made, first = waiting()
    made.alive["s1"] = None
    made.attempt("later", request=WHOLE)
    made.release(first)
    made.advance(made.budget.accept_away_s + 0.1)
    assert made.record("later").step is Step.RESERVED
    record = made.record()
    assert (record.step, record.owner, record.strikes) == (Step.WAITING, None, 0)
    assert made.orphans() == ["job"]
    made.adopt()
    assert made.record().owner == "s2"


def test_patience_goes_on_while_the_owner_is_away() -> None:
    made = world()
    made.attempt("first", request=WHOLE)
    made.attempt(request=Request(memory_mib=1000, max_wait_s=10.0))
    for _ in range(3):
        made.leave(session=made.record().owner or "")
        made.advance(3.0)
        made.adopt()
    made.leave(session="s2")
    made.advance(1.1)
    assert made.woken() == ["job"]
    assert (made.record().step, made.record().owner) == (Step.RECEIVED, None)


@pytest.mark.parametrize("succeeded", [True, False, None])
def test_the_end_of_a_session_wakes_unless_there_is_a_result(succeeded: bool | None) -> None:
    """The event of a result starts an orchestrator; the scan finds the job if that is lost."""
    made = running()
    made.told("h", made.leases[0], "closed", succeeded=succeeded)
    assert made.woken() == ([] if succeeded else ["job"])
    assert made.orphans() == ["job"]


def test_a_lost_host_wakes_the_owner() -> None:
    made = running()
    del made.hosts["h"]
    made.advance(made.budget.host_lost_s + 1.0)
    assert made.woken() == ["job"]
    assert made.orphans() == ["job"]


def test_a_lease_that_ended_while_its_owner_left_wakes_it() -> None:
    made = world()
    lease = granted(made)
    made.staged(lease)
    made.release(lease)
    made.leave()
    assert (made.woken(), made.record().owner) == (["job"], None)


def test_a_grant_that_was_pushed_while_its_owner_left_wakes_it() -> None:
    made = world()
    first = granted(made, "first")
    made.attempt(request=WHOLE)
    made.release(first)
    assert made.record().step is Step.RESERVED
    made.leave()
    assert made.woken() == ["job"]
    made.advance(made.budget.accept_s + 1.0)
    assert made.record().step is Step.RESERVED


def test_a_repeated_leave_changes_nothing() -> None:
    made, _ = waiting()
    record = made.record()
    again = made.ask(ops.HandBack, holder=record.holder, revision=record.revision - 1, away="done")
    assert again == answers.RecordAnswer(record=record)


def test_an_owner_that_is_away_is_never_silent() -> None:
    made, first = waiting()
    made.advance(2 * made.budget.client_gone_s)
    made.start()
    made.host("h", device("d"))
    made.advance(2 * made.budget.client_gone_s)
    assert (made.record().owner, made.record().step) == (OWNER, Step.WAITING)
    made.release(first)
    assert made.woken() == ["job"]


def test_a_grant_that_was_not_accepted_before_a_restart_wakes_again() -> None:
    made, first = waiting()
    made.release(first)
    made.start()
    assert made.woken() == ["job"]
    made.host("h", device("d"))
    made.advance(made.budget.accept_away_s - 1.0)
    assert made.record().step is Step.RESERVED


def test_a_job_without_a_device_is_left() -> None:
    made = world()
    made.attempt(request=Request(count=0))
    made.leave()
    assert (made.woken(), made.record().owner) == ([], OWNER)
    assert made.adopt().record.owner == "s2"


def test_another_session_may_open_the_attempt_that_was_left() -> None:
    made, _ = waiting()
    revision = made.record().revision
    answer = made.attempt(request=WHOLE, revision=revision, session="s2")
    assert (answer.outcome, made.record().owner) == (answers.Outcome.WAITING, "s2")

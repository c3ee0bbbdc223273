"""Job records: compare-and-set, idempotent repetition, adoption, strikes, endings."""

from typing import Any

import pytest

from corekit.decode import decode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.core import actions as do
from gpu_scheduler.model import EndReason, LeaseState, Request, Step
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.protocol.changes import encode_entry
from tests.scheduler_world import World
from tests.unit.gpu_scheduler_core.handlers.record_ops import adopt, die, fail, finish, hand_back

# ---------------------------------------------------------------------- attempt


def test_a_first_attempt_is_record_and_request_in_one_entry(one: World) -> None:
    before = len(one.journal)
    answer = one.attempt(block={"input": "x"})
    assert len(one.journal) == before + 1
    record = answer.record
    assert (record.revision, record.owner, record.attempt, record.step) == (
        1,
        "s1",
        1,
        Step.RESERVED,
    )
    assert record.block == {"input": "x"}
    assert record.lease == answer.granted.lease.id
    assert answer.granted.lease.attempt == "job:1"


def test_the_journal_has_a_payload_and_a_handle_once(one: World) -> None:
    lease = one.attempt(block={"input": "P" * 500}, handle="H" * 400).granted.lease
    one.staged(lease)
    one.told("h1", lease, "opened")
    one.told("h1", lease, "closed")
    finish(one)
    lines = b"".join(encode_entry(entry) for entry in one.journal)
    assert (lines.count(b"P" * 500), lines.count(b"H" * 400)) == (1, 1)
    assert (one.record().block, one.record().handle) == ({"input": "P" * 500}, "H" * 400)
    assert one.replayed().state.records == one.machine.state.records
    one.ask(ops.Reopen, "s9", holder="job", revision=one.record().revision, handle="")
    assert one.replayed().state.records == one.machine.state.records


def test_the_end_of_a_job_may_bring_its_last_block(one: World) -> None:
    one.attempt(block={"input": "x"})
    finish(one, block={"input": "x", "cost_usd": 0.5})
    assert one.record().block == {"input": "x", "cost_usd": 0.5}
    finish(one, block={"input": "y"})  # repeated: it has ended
    assert one.record().block == {"input": "x", "cost_usd": 0.5}
    assert one.replayed().state.records == one.machine.state.records


def test_a_record_without_a_device_is_replayed_as_one(one: World) -> None:
    """Its field `with_device` is false, and true by default."""
    one.attempt(request=Request(count=0))
    one.ask(ops.StagedOp, holder="job", lease=None, connect_by_s=9.0)
    assert one.record().with_device is False
    assert one.replayed().state.records == one.machine.state.records


def test_repeating_an_attempt_returns_its_state(one: World, whole: Request) -> None:
    granted = one.attempt(request=whole)
    assert one.attempt(request=whole) == granted
    waiting = one.attempt("other", request=whole)
    assert one.attempt("other", request=whole).outcome is waiting.outcome is answers.Outcome.WAITING
    assert len(one.machine.state.queue.entries) == 1


@pytest.mark.parametrize("how", ["attempt", "adopt"])
def test_a_reply_with_a_grant_accepts_it(one: World, whole: Request, how: str) -> None:
    one.alive |= {"s1": None, "s9": None}
    filler = one.reserve("filler", whole, session="s9").granted.lease
    one.attempt(request=whole)
    one.release(filler, "s9")  # the push is lost
    answer = one.attempt(request=whole) if how == "attempt" else adopt(one, "s1")
    assert answer.granted.lease.attempt == "job:1"
    one.advance(one.budget.reserved_ttl_s - 1)
    assert one.record().step is Step.RESERVED
    one.advance(1)
    assert one.record().reason == "EXPIRED"


def test_attempts_of_others_and_old_revisions_conflict(one: World) -> None:
    one.attempt()
    for said in (
        {"session": "s2"},
        {"session": "s2", "revision": 1},
        {"n": 2, "revision": 1},
        {"n": 3, "revision": 1},
        {"n": 2, "revision": 7},
    ):
        answer = one.attempt(**said)
        assert answer.code is ErrorCode.CONFLICT, said
        assert answer.details["record"] == one.record()
    assert one.attempt("new", revision=3).details == {"record": None}


@pytest.mark.parametrize(
    ("request_", "wait", "outcome"),
    [
        (Request(memory_mib=1001), True, answers.Outcome.IMPOSSIBLE),
        (Request(memory_mib=600), False, answers.Outcome.BUSY),
    ],
)
def test_refused_attempts_leave_an_owned_record(
    one: World, request_: Request, wait: bool, outcome: Outcome
) -> None:
    one.reserve("filler", Request(memory_mib=600))
    answer = one.attempt(request=request_, wait=wait)
    assert (answer.outcome, answer.granted) == (outcome, None)
    assert (answer.record.step, answer.record.owner) == (Step.RECEIVED, "s1")
    assert one.attempt(request=request_, wait=wait).outcome is outcome
    assert finish(one, outcome="REJECTED").outcome == "REJECTED"


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        (ops.Attempt, {"n": 1, "revision": 0, "request": {}}),
        (ops.Finish, {"outcome": "INPUT_GONE", "reason": "INPUT_DELETED"}),
    ],
)
def test_the_size_of_a_block_is_limited(op: type[Any], fields: dict[str, Any]) -> None:
    with pytest.raises(AppError, match="block has 5008 bytes; at most 4096"):
        decode(op, {"holder": "job", **fields, "block": {"x": "y" * 5000}})
    decode(op, {"holder": "job", **fields, "block": {"x": "y" * 4000}})


def test_attempts_are_numbered_from_one() -> None:
    with pytest.raises(AppError, match="n 0 must lie in 1"):
        decode(ops.Attempt, {"holder": "job", "n": 0, "revision": 0, "request": {}})


# ---------------------------------------------------------------------- failing and retrying


def test_an_attempt_ends_its_lease_and_the_next_opens(one: World) -> None:
    first = one.attempt()
    one.staged(first.granted.lease)
    failed = fail(one, first.record.revision).record
    assert (failed.step, failed.reason, failed.owner) == (Step.RECEIVED, "EXIT_NONZERO", "s1")
    assert failed.times["RETRY_AT"] == 5.0
    assert one.leases == []
    assert one.pushes(answers.LeasePush)[0].reason is EndReason.RELEASED
    assert fail(one, first.record.revision).record == failed  # its answer was lost
    second = one.attempt(n=2, revision=failed.revision)
    assert second.granted.lease.attempt == "job:2"
    assert second.record.reason is None
    assert second.record.waiting_since_s == first.record.waiting_since_s


def test_a_failed_attempt_cannot_be_opened_again(one: World) -> None:
    failed = fail(one, one.attempt().record.revision).record
    assert one.attempt(n=1, revision=failed.revision).code is ErrorCode.CONFLICT


def test_the_lease_ended_but_the_record_waits_for_its_owner(one: World) -> None:
    answer = one.attempt()
    one.staged(answer.granted.lease)
    one.told("h1", answer.granted.lease, "opened")
    one.told("h1", answer.granted.lease, "closed", reason=EndReason.SESSION_LOST)
    assert one.attempt().code is ErrorCode.CONFLICT  # attempt 1 is over, as its owner can see
    # its revision did not move with the scheduler's own news
    assert fail(one, answer.record.revision).record.step is Step.RECEIVED


def test_an_expired_reservation_may_be_asked_for_again(one: World) -> None:
    one.alive["s1"] = None
    first = one.attempt().granted.lease
    one.advance(one.budget.reserved_ttl_s)
    assert (one.record().step, one.record().reason) == (Step.RESERVED, "EXPIRED")
    again = one.attempt()
    assert again.granted.lease.fence > first.fence
    assert again.record.reason is None


def test_fail_attempt_by_another_session_conflicts(one: World) -> None:
    one.attempt()
    assert fail(one, 1, session="s2").code is ErrorCode.CONFLICT
    assert fail(one, 9).code is ErrorCode.CONFLICT


# ---------------------------------------------------------------------- owners that die


def test_a_gone_owner_leaves_orphans(one: World) -> None:
    one.attempt()
    one.attempt("other")
    finish(one, holder="other")
    die(one)
    assert [p.holder for p in one.pushes(answers.DisownedPush, "s1")] == ["job"]
    [orphan] = one.ask(ops.Orphans, "s2", limit=10).records
    assert (orphan.holder, orphan.owner) == ("job", None)


def test_a_beating_owner_keeps_its_records(one: World) -> None:
    one.alive["s1"] = None
    one.attempt()
    one.advance(300.0)
    assert one.record().owner == "s1"


def test_adoption_is_compare_and_set(one: World) -> None:
    one.attempt()
    assert adopt(one).code is ErrorCode.CONFLICT  # its owner lives
    die(one)
    assert adopt(one, revision=1).code is ErrorCode.CONFLICT  # an old picture
    got = adopt(one, handle="h2")
    assert (got.record.owner, got.record.handle) == ("s2", "h2")
    assert got.granted.lease == one.leases[0]
    assert adopt(one, revision=0) == got  # repeated: what stands
    assert adopt(one, "s3").code is ErrorCode.CONFLICT
    assert adopt(one, holder="unknown", revision=1).code is ErrorCode.NOT_FOUND


def test_an_attempt_on_an_ownerless_record_is_an_adoption_too(one: World) -> None:
    one.alive["s9"] = None
    one.attempt()
    one.advance(one.budget.reserved_ttl_s)  # its owner died, then its lease expired
    record = one.record()
    assert (record.owner, record.reason, record.strikes) == (None, "EXPIRED", 1)
    again = one.attempt(session="s9", revision=record.revision)
    assert (again.outcome, again.record.strikes) == (answers.Outcome.GRANTED, 1)


def test_adopting_what_is_staged_renews_nothing(one: World) -> None:
    one.staged(one.attempt().granted.lease)
    die(one)
    one.alive["s2"] = None
    assert adopt(one).record.strikes == 0
    one.advance(one.budget.connect_by_s - one.budget.client_gone_s - 1)
    assert len(one.leases) == 1
    one.advance(1)
    assert one.record().reason == "NOT_STARTED"


def test_the_adopter_may_pack_for_a_full_ttl(one: World) -> None:
    one.attempt()
    die(one)
    one.now_s += 40
    one.alive["s2"] = None
    adopt(one)
    one.advance(one.budget.reserved_ttl_s - 1)
    assert len(one.leases) == 1


def test_an_ownerless_waiting_job_keeps_its_place(one: World, whole: Request) -> None:
    one.alive["s2"] = None
    filler = one.reserve("filler", whole, session="s2").granted.lease
    one.attempt("old", request=whole)
    one.now_s += 1
    one.attempt("young", request=whole, session="s2")
    die(one)
    one.ask(ops.Queue, "s2")
    assert [(q.attempt, q.position) for q in one.answer().queue] == [
        ("young:1", 1),
        ("old:1", None),
    ]
    assert adopt(one, holder="old").record.step is Step.WAITING
    one.release(filler)
    assert [p.attempt for p in one.pushes(answers.GrantedPush, "s2")] == ["old:1"]


def test_an_ownerless_request_is_overtaken(one: World, whole: Request) -> None:
    one.alive["s2"] = None
    filler = one.reserve("filler", whole, session="s2").granted.lease
    one.attempt("old", request=whole)
    one.attempt("young", request=whole, session="s2")
    die(one)
    one.release(filler)
    assert [p.attempt for p in one.pushes(answers.GrantedPush)] == ["young:1"]


def test_a_grant_to_a_dead_owner_returns_to_the_queue(one: World, whole: Request) -> None:
    filler = one.reserve("filler", whole, session="s9").granted.lease
    one.attempt(request=whole)
    one.release(filler, "s9")
    assert one.record().step is Step.RESERVED
    die(one)
    assert (one.record().step, one.record().owner, one.record().lease) == (Step.WAITING, None, None)
    assert one.leases == []
    got = adopt(one)
    assert (got.record.strikes, got.record.step) == (0, Step.WAITING)  # nobody packed
    assert [p.attempt for p in one.pushes(answers.GrantedPush, "s2")] == ["job:1"]


def test_a_grant_is_pushed_again_after_a_reconnect(one: World, whole: Request) -> None:
    filler = one.reserve("filler", whole, session="s9").granted.lease
    one.attempt(request=whole)
    one.release(filler, "s9")
    missed = one.pushes(answers.GrantedPush, "s1")
    one.ask(ops.Hello, "s1")
    assert one.pushes(answers.GrantedPush, "s1") == missed
    assert one.did(do.Reply)[0].answer.epoch == 1


# ---------------------------------------------------------------------- handing back


def test_handing_back_while_waiting_counts_no_attempt(one: World, whole: Request) -> None:
    filler = one.reserve("filler", whole).granted.lease
    waiting = one.attempt(request=whole).record
    back = hand_back(one, waiting.revision).record
    assert (back.owner, back.step, back.attempt) == (None, Step.RECEIVED, 0)
    assert back.waiting_since_s == waiting.waiting_since_s
    assert hand_back(one, waiting.revision).record == back
    one.now_s += 5
    one.attempt("younger", request=whole)
    adopt(one)
    again = one.attempt(session="s2", revision=one.record().revision, request=whole)
    assert (again.record.attempt, again.explanation.position) == (1, 1)
    one.release(filler)
    assert [p.attempt for p in one.pushes(answers.GrantedPush)] == ["job:1"]


def test_handing_back_a_reservation_frees_the_device(one: World) -> None:
    record = one.attempt().record
    back = hand_back(one, record.revision).record
    assert (back.step, back.attempt, back.strikes, back.reason) == (Step.RECEIVED, 0, 0, None)
    assert one.leases == []


def test_handing_back_a_running_job_only_changes_the_owner(one: World) -> None:
    answer = one.attempt()
    one.staged(answer.granted.lease)
    back = hand_back(one, answer.record.revision).record
    assert (back.step, back.owner) == (Step.STAGED, None)
    assert len(one.leases) == 1
    assert adopt(one).granted.lease.id == answer.granted.lease.id


def test_handing_back_a_job_of_another_session_conflicts(one: World) -> None:
    one.attempt()
    assert hand_back(one, 1, session="s2").code is ErrorCode.CONFLICT
    assert one.ask(ops.HandBack, holder="nobody", revision=1).code is ErrorCode.NOT_FOUND
    assert hand_back(one, 4).code is ErrorCode.CONFLICT


# ---------------------------------------------------------------------- finishing


def test_finish_ends_everything_in_one_entry(one: World) -> None:
    answer = one.attempt()
    one.staged(answer.granted.lease)
    before = len(one.journal)
    ended = finish(one)
    assert len(one.journal) == before + 1
    assert (ended.step, ended.outcome, ended.owner) == (Step.ENDED, "SUCCEEDED", None)
    assert ended.revision == answer.record.revision + 1
    assert one.leases == []
    assert one.pushes(answers.LeasePush, "s1")[0].state is LeaseState.ENDED
    assert finish(one) == ended


def test_finish_withdraws_a_waiting_request(one: World, whole: Request) -> None:
    one.reserve("filler", whole)
    one.attempt(request=whole)
    finish(one, outcome="CANCELLED")
    assert one.machine.state.queue.entries == {}


def test_finishing_an_unknown_job_succeeds(one: World) -> None:
    assert finish(one, holder="nobody") is None


def test_another_replica_may_finish(one: World) -> None:
    one.attempt()
    finish(one, "s2")
    assert [p.holder for p in one.pushes(answers.DisownedPush, "s1")] == ["job"]


def test_ended_records_are_kept_for_a_while(one: World) -> None:
    one.attempt()
    ended = finish(one)
    assert one.attempt(n=2, revision=ended.revision).code is ErrorCode.CONFLICT
    die(one)
    assert adopt(one).code is ErrorCode.CONFLICT
    assert fail(one, ended.revision).code is ErrorCode.CONFLICT
    one.advance(one.budget.record_forget_s)
    assert one.machine.state.records == {}
    assert fail(one, ended.revision).code is ErrorCode.NOT_FOUND


def test_reopening_a_failed_job(one: World) -> None:
    one.attempt()
    ended = finish(one, outcome="FAILED")
    reopened = one.ask(ops.Reopen, "s2", holder="job", revision=ended.revision, handle="h9").record
    assert (reopened.step, reopened.owner, reopened.outcome) == (Step.RECEIVED, "s2", None)
    assert reopened.revision == ended.revision + 1
    one.ask(ops.Reopen, "s2", holder="job", revision=ended.revision - 1, handle="h9")
    assert one.answer().code is ErrorCode.CONFLICT
    one.ask(ops.Reopen, "s3", holder="job", revision=ended.revision, handle="h9")
    assert one.answer().code is ErrorCode.CONFLICT
    one.ask(ops.Reopen, "s2", holder="job", revision=ended.revision, handle="h9")
    assert one.answer().record == reopened
    again = one.attempt(n=2, revision=reopened.revision, session="s2")
    assert again.outcome is answers.Outcome.GRANTED
    one.alive["s2"] = None
    one.advance(one.budget.record_forget_s + 1)
    assert one.record().owner == "s2"  # its forgetting was called off
    finish(one, "s2", "SUCCEEDED")
    one.ask(ops.Reopen, "s3", holder="job", revision=one.record().revision, handle="h")
    assert one.record().owner == "s3", "a step of a run that is repeated from there"
    one.ask(ops.Reopen, "s3", holder="nobody", revision=1, handle="h")
    assert one.answer().code is ErrorCode.NOT_FOUND


def test_a_job_that_ended_before_its_first_attempt_has_a_terminal_record(one: World) -> None:
    gone = {
        "holder": "gone",
        "outcome": "INPUT_GONE",
        "reason": "INPUT_DELETED",
        "detail": "",
        "block": {"function": "f"},
        "received_ago_s": 2.0,
        "committed_ago_s": 0.5,
    }
    record = one.ask(ops.Finish, "s1", **gone).record
    assert (record.step, record.outcome, record.owner) == (Step.ENDED, "INPUT_GONE", None)
    assert (record.revision, record.attempt, record.block) == (1, 0, {"function": "f"})
    assert record.times["ENDED"] - record.times["RECEIVED"] == 2.0
    assert one.ask(ops.Finish, "s2", **gone).record == record
    one.advance(one.budget.record_forget_s)
    assert "gone" not in one.machine.state.records


# ---------------------------------------------------------------------- handles, reading


def test_the_newest_handle_is_kept_and_pushed(one: World) -> None:
    record = one.attempt().record
    one.ask(ops.Handle, "s2", holder="job", handle="newer")
    assert [p.handle for p in one.pushes(answers.HandlePush, "s1")] == ["newer"]
    assert (one.record().handle, one.record().revision) == ("newer", record.revision)
    one.ask(ops.Handle, "s2", holder="job", handle="newer")
    assert one.pushes(answers.HandlePush) == []
    assert one.ask(ops.Handle, "s2", holder="nobody", handle="x") == answers.Done()


def test_pages_are_newest_first(one: World) -> None:
    for i in range(5):
        one.attempt(f"j{i}", session="s1")
    one.ask(ops.Records, limit=2, after=None)
    assert [r.holder for r in one.answer().records] == ["j4", "j3"]
    one.ask(ops.Records, limit=9, after="j3")
    assert [r.holder for r in one.answer().records] == ["j2", "j1", "j0"]
    assert one.ask(ops.RecordOf, holder="j2").record.holder == "j2"


def test_a_record_has_the_time_of_each_step(one: World) -> None:
    lease = one.attempt().granted.lease
    for seconds, step in ((1, "staged"), (2, "opened"), (4, "freed"), (8, "closed")):
        one.now_s += seconds
        one.staged(lease) if step == "staged" else one.told("h1", lease, step)
    times = finish(one).times
    assert list(times) == ["RECEIVED", "RESERVED", "STAGED", "RUNNING", "LEASE_ENDED", "ENDED"]
    assert list(times.values()) == sorted(times.values())


# ---------------------------------------------------------------------- times


def test_a_record_is_received_when_its_message_was(one: World) -> None:
    times = one.attempt(received_ago_s=0.5).record.times
    assert times["RESERVED"] - times["RECEIVED"] == 0.5


def test_the_times_are_of_the_newest_attempt_and_of_the_one_receipt(one: World) -> None:
    record = one.attempt().record
    received_s = record.times["RECEIVED"]
    one.ask(ops.StagedOp, holder="job", lease=record.lease, connect_by_s=150.0)
    one.advance(1.0)
    failed = fail(one, one.record().revision).record
    assert failed.times["RECEIVED"] == received_s
    assert {"STAGED", "LEASE_ENDED", "RETRY_AT"} <= set(failed.times)
    again = one.attempt(n=2, revision=failed.revision, received_ago_s=9.0).record
    assert set(again.times) == {"RECEIVED", "RESERVED"}
    assert again.times["RECEIVED"] == received_s


def test_the_end_has_the_time_of_the_result(one: World) -> None:
    one.attempt()
    one.advance(1.0)
    times = finish(one, committed_ago_s=0.25).times
    assert times["ENDED"] - times["COMMITTED"] == 0.25


def test_a_redriven_job_is_received_again(one: World) -> None:
    first = one.attempt().record.times["RECEIVED"]
    revision = finish(one, outcome="FAILED").revision
    one.advance(5.0)
    one.ask(ops.Reopen, "s1", holder="job", revision=revision, handle="h2")
    assert one.answer().record.times == {"RECEIVED": first + 5.0}

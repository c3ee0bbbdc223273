"""Leases and earlier attempts that a job record keeps."""

from typing import Any

from gpu_scheduler.core.replay.snapshot import snapshot
from gpu_scheduler.model import EndReason, JobLease, Lease, Record, Request, Sharing, Step
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.changes import decode_entry, encode_entry
from tests.scheduler_world import EPOCH_S, World, device


def fail(world: World, reason: str = "EXIT_NONZERO") -> Record:
    record = world.record()
    said: dict[str, Any] = {
        "revision": record.revision,
        "reason": reason,
        "detail": "",
        "retry_at_s": None,
    }
    failed: Record = world.ask(ops.FailAttempt, holder="job", **said).record
    return failed


def run_and_fail(world: World, n: int) -> Lease:
    revision = 0 if n == 1 else world.record().revision
    lease: Lease = world.attempt(n=n, revision=revision).granted.lease
    world.advance(1.0)
    world.told("h", lease, "opened")
    world.advance(2.0)
    world.told("h", lease, "freed", loading_s=0.5)
    world.advance(1.0)
    world.told("h", lease, "closed", reason=EndReason.DONE)
    fail(world)
    return lease


def world_with(**parameters: Any) -> World:
    world = World(**parameters)
    world.alive["s1"] = None
    world.host("h", device("d", index=3, model="L4"))
    return world


def test_a_record_keeps_the_device_and_the_times_of_its_lease() -> None:
    world = world_with()
    lease = world.attempt().granted.lease
    assert world.record().device_text == "h/3 cuda L4"
    assert world.record().leases[0].ended_s is None
    run = world.now_s
    world.advance(1.0)
    world.told("h", lease, "opened")
    world.advance(2.0)
    world.told("h", lease, "freed", loading_s=0.5)
    world.advance(1.0)
    world.told("h", lease, "closed", reason=EndReason.DONE, detail="bye")
    begun_s = EPOCH_S + run
    assert world.record().leases == (
        JobLease(
            lease=lease.id,
            attempt=1,
            shares=lease.shares,
            share_count=1,
            granted_s=begun_s,
            active_s=begun_s + 1,
            freed_s=begun_s + 3,
            ended_s=begun_s + 4,
            reason=EndReason.DONE,
            detail="bye",
            loading_s=0.5,
        ),
    )


def test_earlier_attempts_stay_with_the_record_and_survive_a_restart() -> None:
    world = world_with()
    first, second = run_and_fail(world, 1), run_and_fail(world, 2)
    world.attempt(n=3, revision=world.record().revision)
    record = world.record()
    assert [(one.n, one.reason, one.lease) for one in record.attempts] == [
        (1, "EXIT_NONZERO", first.id),
        (2, "EXIT_NONZERO", second.id),
    ]
    assert record.attempts[0].times[Step.RUNNING] < record.attempts[0].ended_s
    assert [one.attempt for one in record.leases] == [1, 2, 3]
    assert world.replayed().state.records[record.holder] == record
    world.start()
    assert world.record().attempts == record.attempts
    entry = snapshot(world.machine.state)[0]
    assert decode_entry(encode_entry(entry)) == entry


def test_the_past_of_a_record_is_bounded_by_number() -> None:
    world = world_with(record_leases_max=2, record_attempts_max=1)
    for n in range(1, 6):
        run_and_fail(world, n)
    assert [one.attempt for one in world.record().leases] == [4, 5]
    assert [one.n for one in world.record().attempts] == [4]
    world.attempt(n=6, revision=world.record().revision)
    assert [one.attempt for one in world.record().leases] == [4, 5, 6]


def test_the_past_of_a_record_is_bounded_by_age() -> None:
    world = world_with(record_past_s=60.0)
    run_and_fail(world, 1)
    world.advance(61.0)
    run_and_fail(world, 2)
    world.attempt(n=3, revision=world.record().revision)
    assert [one.attempt for one in world.record().leases] == [2, 3]
    assert [one.n for one in world.record().attempts] == [2]


def test_no_past_is_kept_where_the_parameters_are_zero() -> None:
    world = world_with(record_leases_max=0, record_attempts_max=0)
    run_and_fail(world, 1)
    run_and_fail(world, 2)
    assert (world.record().leases, world.record().attempts) == ((), ())


def test_an_attempt_that_was_handed_back_is_none_of_the_earlier_ones() -> None:
    world = world_with()
    run_and_fail(world, 1)
    world.attempt(n=2, revision=world.record().revision)
    world.ask(ops.HandBack, holder="job", revision=world.record().revision)
    world.attempt(n=2, revision=world.record().revision)
    assert [one.n for one in world.record().attempts] == [1]
    assert [one.reason for one in world.record().leases] == [
        EndReason.DONE,
        EndReason.RELEASED,
        None,
    ]


def test_a_reopened_job_keeps_the_outcome_of_its_earlier_run() -> None:
    world = world_with()
    run_and_fail(world, 1)
    world.ask(ops.Finish, holder="job", outcome="FAILED", reason="EXIT_NONZERO", detail="")
    world.ask(ops.Reopen, holder="job", revision=world.record().revision, handle="h")
    (ended,) = world.record().attempts
    assert (ended.n, ended.outcome, ended.reason) == (1, "FAILED", "EXIT_NONZERO")


def test_a_session_that_watches_records_gets_each_change() -> None:
    world = world_with()
    world.ask(ops.Watch, "w", all=True, records=True)
    world.alive["w"] = None
    world.attempt(request=Request(), holder="job")
    (push,) = world.pushes(answers.RecordPush, "w")
    assert push == answers.RecordPush(holder=push.holder, record=world.record())
    world.ask(ops.Finish, holder="job", outcome="FAILED", reason="EXIT_NONZERO", detail="")
    assert world.pushes(answers.RecordPush, "w")[-1].record.outcome == "FAILED"
    world.advance(world.budget.record_forget_s + 1)
    assert world.pushes(answers.RecordPush, "w")[-1].record is None
    world.ask(ops.Watch, "w", all=True)
    world.attempt(holder="job2")
    assert world.pushes(answers.RecordPush, "w") == []


def test_an_expired_reservation_that_waits_again_was_not_reserved() -> None:
    world = world_with()
    whole = Request(sharing=Sharing.EXCLUSIVE)
    world.attempt(request=whole)
    world.advance(world.budget.reserved_ttl_s)
    world.attempt("other", request=whole)
    again = world.attempt(revision=world.record().revision, request=whole).record
    assert again.step is Step.WAITING
    assert set(again.times) == {"RECEIVED", "WAITING"}


def test_a_failure_that_is_reported_again_keeps_its_first_pause() -> None:
    world = world_with()
    world.attempt()
    for retry_at_s in (EPOCH_S + 5.0, EPOCH_S + 6.0):
        said: dict[str, Any] = {"reason": "EXIT_NONZERO", "detail": "", "retry_at_s": retry_at_s}
        world.ask(ops.FailAttempt, holder="job", revision=world.record().revision, **said)
    assert world.record().times["RETRY_AT"] == EPOCH_S + 5.0

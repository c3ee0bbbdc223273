"""After an orchestrator died while it packed: its jobs are packed one by one, alone."""

from __future__ import annotations

import pytest

from contract.keys import job_id
from corekit.budget import Budget
from corekit.ids import JobId
from gpu_scheduler.model import LeaseState, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Phase
from tests.unit.orchgpu.jobs import (
    EXPLANATION,
    JOB,
    NOW,
    Bench,
    body,
    granted,
    input_read,
    message,
    record,
    s3_record,
)

A, B, C = (job_id("in", key, "v1", "search") for key in ("a", "b", "c"))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def orphan(bench: Bench, job: str, key: str, step: Step = Step.RESERVED) -> list[str]:
    other = Bench()
    other.tell(message(body(s3_record(key))))
    block = other.machine.jobs[job].payload()
    left = record(step, owner=None, block=block, holder=JobId(job), ended_owners=("s0",))
    bench.tell(on.Orphaned(**NOW, job=job, function="search", record=left))
    return adopted_now(bench)


def adopted_now(bench: Bench) -> list[str]:
    return [action.job for action in bench.actions if isinstance(action, do.AdoptRecord)]


def adopt(bench: Bench, job: str, strikes: int = 1) -> None:
    mine = record(holder=JobId(job), ended_owners=tuple(f"s{n}" for n in range(strikes)))
    bench.tell(on.Adopted(**NOW, job=job, record=mine, granted=granted()))


def packed(bench: Bench, job: str) -> None:
    bench.tell(on.EnvelopeStaged(**NOW, job=job, attempt=1))
    bench.tell(on.StagedRecorded(**NOW, job=job, attempt=1))


def test_suspects_are_adopted_one_after_the_other(bench: Bench) -> None:
    assert orphan(bench, A, "a") == [A]
    assert orphan(bench, B, "b") == []
    assert orphan(bench, C, "c") == []
    adopt(bench, A)
    assert bench.one(do.StageEnvelope).job == A
    bench.tell(on.EnvelopeStaged(**NOW, job=A, attempt=1))
    assert adopted_now(bench) == []  # until the scheduler knows, its record tells of packing
    bench.tell(on.StagedRecorded(**NOW, job=A, attempt=1))
    assert adopted_now(bench) == [B]
    adopt(bench, B)
    packed(bench, B)
    assert adopted_now(bench) == [C]


def test_a_look_that_finds_them_again_adopts_none_twice(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    assert orphan(bench, A, "a") == orphan(bench, B, "b") == []
    adopt(bench, A)
    packed(bench, A)
    assert adopted_now(bench) == [B]
    adopt(bench, B)
    packed(bench, B)
    assert adopted_now(bench) == []


def test_nothing_is_begun_beside_a_suspect(bench: Bench) -> None:
    orphan(bench, A, "a")
    bench.tell(message())
    bench.tell(input_read())
    bench.on(on.ResultRead, result=None)
    assert bench.kinds() == []  # its request would be one more reserved job when we die
    adopt(bench, A)
    assert bench.kinds() == ["StageEnvelope"]
    packed(bench, A)
    assert bench.one(do.OpenAttempt).job == JOB


def test_a_suspect_waits_for_what_is_being_packed(bench: Bench) -> None:
    bench.reserved()
    assert orphan(bench, A, "a") == []
    bench.tell(message(body(s3_record("b")), message_id="m2", receipt_handle="h2"))
    assert orphan(bench, C, "c") == []
    packed(bench, JOB)
    assert adopted_now(bench) == [A]


def test_a_grant_that_is_pushed_beside_a_suspect_is_not_taken_yet(bench: Bench) -> None:
    bench.read()
    waiting = record(Step.WAITING, revision=2)
    bench.on(on.AttemptWaiting, record=waiting, explanation=EXPLANATION)
    assert orphan(bench, A, "a") == [A]  # a job that waits for a grant is not being packed
    push = on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=granted(), record=None, pushed=True)
    bench.tell(push)
    assert bench.kinds() == []
    adopt(bench, A)
    packed(bench, A)
    assert bench.one(do.RenewLease).job == JOB


@pytest.mark.parametrize("step", [Step.WAITING, Step.RECEIVED, Step.STAGED, Step.RUNNING])
def test_a_job_that_was_not_being_packed_is_not_a_suspect(bench: Bench, step: Step) -> None:
    orphan(bench, A, "a")
    assert orphan(bench, B, "b", step) == [B]


def test_a_suspect_whose_call_fails_has_not_killed_us(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    adopt(bench, A)
    action = bench.one(do.StageEnvelope)
    bench.tell(on.CallFailed(**NOW, job=A, action=action, retryable=True, message="S3 is away"))
    assert adopted_now(bench) == []  # A still packs, as far as its record tells
    assert bench.machine.jobs[A].phase is Phase.STAGING
    packed(bench, A)
    assert adopted_now(bench) == [B]


def test_a_suspect_that_another_replica_took_frees_the_next(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    theirs = record(holder=JobId(A), owner="session-other")
    bench.tell(on.RecordConflict(**NOW, job=A, record=theirs))
    assert A not in bench.machine.jobs
    assert adopted_now(bench) == [B]


def test_a_poisonous_suspect_ends_and_frees_the_next(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    adopt(bench, A, strikes=4)
    written = bench.one(do.WriteResult).result
    assert written.reason == "POISON"
    assert adopted_now(bench) == [B]


def test_a_lease_that_ended_meanwhile_frees_the_next(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    adopt(bench, A)
    gone = on.LeaseChanged(
        **NOW, job=A, attempt=1, state=LeaseState.ENDED, reason=None, detail="expired"
    )
    bench.tell(gone)
    assert adopted_now(bench) == [B]


def test_a_message_of_an_orphaned_job_makes_it_a_suspect_too(bench: Bench) -> None:
    orphan(bench, A, "a")
    bench.tell(message())
    bench.tell(input_read())
    bench.on(on.ResultRead, result=None)
    adopt(bench, A)
    packed(bench, A)
    bench.one(do.OpenAttempt)
    orphan(bench, B, "b")
    left = record(owner=None)
    bench.on(on.RecordConflict, record=left)
    assert adopted_now(bench) == [B]  # first come, first packed
    adopt(bench, B)
    packed(bench, B)
    assert adopted_now(bench) == [JOB]


def test_a_drain_forgets_what_was_held_back(bench: Bench) -> None:
    orphan(bench, A, "a")
    orphan(bench, B, "b")
    bench.tell(message())
    bench.tell(input_read())
    bench.on(on.ResultRead, result=None)
    for last in (False, True):
        bench.tell(on.DrainRequested(**NOW, last=last))
        assert "OpenAttempt" not in bench.kinds()
        assert adopted_now(bench) == []
    assert not bench.machine.jobs


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.WAITING])
def test_a_job_in_hand_that_has_no_owner_any_more_is_adopted_again(
    bench: Bench, phase: Phase
) -> None:
    """The push that it was disowned was lost, and those of its lease go to its owner."""
    bench.running()
    bench.machine.jobs[JOB].phase = phase
    left = record(Step.STAGED, owner=None, ended_owners=())
    bench.on(on.Orphaned, function="search", record=left)
    assert bench.kinds() == ["ReadRecord"]
    bench.on(on.RecordConflict, record=left)
    assert adopted_now(bench) == [JOB]


def test_a_suspect_whose_reservation_expired_opens_its_next_attempt_alone(bench: Bench) -> None:
    bench.read()
    conflict = record(Step.RECEIVED, owner=None, ended_owners=("s1",), reason="RESERVATION_EXPIRED")
    bench.on(on.RecordConflict, record=conflict)
    bench.on(on.Adopted, record=conflict, granted=None)
    bench.on(on.ResultRead, result=None)
    assert bench.kinds() == ["OpenAttempt"]
    assert orphan(bench, A, "a") == []  # until it is packed
    opened = record(Step.WAITING, ended_owners=("s1",), attempt=2)
    bench.on(on.AttemptWaiting, record=opened, explanation=EXPLANATION)
    assert adopted_now(bench) == [A]  # a job that waits for a grant is not being packed
    push = on.AttemptGranted(
        **NOW, job=JOB, attempt=2, granted=granted(2), record=None, pushed=True
    )
    bench.tell(push)
    assert bench.kinds() == []
    adopt(bench, A)
    packed(bench, A)
    assert bench.one(do.RenewLease).job == JOB
    assert orphan(bench, B, "b") == []


def test_before_it_is_poison_a_job_is_packed_once_more_after_a_pause(bench: Bench) -> None:
    three = ("s1", "s2", "s3")
    block = Bench().read().one(do.OpenAttempt).payload
    left = record(owner=None, block=block, ended_owners=three, updated_s=NOW["wall_s"] - 20.0)
    bench.on(on.Orphaned, function="search", record=left)
    later = bench.one(do.RepeatLater)
    assert later.in_s == pytest.approx(Budget().last_packing_pause_s - 20.0)
    assert adopted_now(bench) == []
    bench.on(on.RepeatDue, action=later.action)
    assert adopted_now(bench) == [JOB]
    bench.on(on.Adopted, record=record(ended_owners=three), granted=granted())
    assert bench.one(do.StageEnvelope).job == JOB

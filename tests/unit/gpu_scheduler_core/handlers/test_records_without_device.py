"""Job records of attempts that need no device: no lease, no wait, the same ownership."""

from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId
from gpu_scheduler.core import actions as do
from gpu_scheduler.model import Record, Request, Step
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World

NO_DEVICE = Request(count=0, tenant="lab")


@pytest.fixture
def world() -> World:
    return World()


def opened(world: World, n: int = 1, revision: int = 0, **fields: Any) -> Record:
    answer = world.attempt(n=n, revision=revision, request=NO_DEVICE, **fields)
    assert answer.outcome is answers.Outcome.OPENED, answer
    record: Record = answer.record
    return record


def staged(world: World, session: str = "s1") -> Any:
    return world.ask(ops.StagedOp, session, holder="job", lease=None, connect_by_s=150.0)


def started(world: World, n: int = 1, session: str = "s9") -> Record:
    assert world.ask(ops.StartedOp, session, holder="job", n=n) == answers.Done()
    return world.record()


def adopted(world: World, session: str = "s2") -> Record:
    world.ask(ops.Adopt, session, holder="job", revision=world.record().revision)
    record: Record = world.answer().record
    return record


def test_it_is_opened_at_once_without_any_host(world: World) -> None:
    record = opened(world)
    assert (record.step, record.lease, record.tenant) == (Step.RECEIVED, None, "lab")
    assert (record.packing, record.with_device) == (True, False)
    assert (world.leases, len(world.machine.state.queue.entries)) == ([], 0)
    assert opened(world) == record  # repeated


def test_it_goes_from_received_to_staged_to_running(world: World) -> None:
    opened(world)
    assert staged(world).record.step is Step.STAGED
    record = started(world)
    assert record.step is Step.RUNNING
    assert list(record.times) == ["RECEIVED", "STAGED", "RUNNING"]
    assert started(world) == record  # at least once


def test_a_start_that_is_reported_first_keeps_both_times(world: World) -> None:
    opened(world)
    assert started(world).step is Step.RUNNING
    record = staged(world).record
    assert record.step is Step.RUNNING
    assert {"STAGED", "RUNNING"} <= record.times.keys()


def test_a_start_of_another_attempt_changes_nothing(world: World) -> None:
    before = opened(world)
    assert started(world, n=2) == before


def test_a_repeated_attempt_does_not_go_back(world: World) -> None:
    opened(world)
    staged(world)
    assert opened(world).step is Step.STAGED


def test_the_death_of_its_owner_while_packing_is_a_strike(world: World) -> None:
    opened(world)
    world.advance(world.budget.client_gone_s)
    assert world.record().owner is None
    assert adopted(world).strikes == 1
    assert staged(world, "s2").record.strikes == 0


def test_the_death_of_its_owner_after_staging_is_no_strike(world: World) -> None:
    opened(world)
    staged(world)
    world.advance(world.budget.client_gone_s)
    assert adopted(world).strikes == 0


def test_handed_back_while_packing_it_does_not_count(world: World) -> None:
    record = opened(world)
    record = world.ask(ops.HandBack, holder="job", revision=record.revision).record
    assert (record.attempt, record.owner, record.packing) == (0, None, False)


def test_a_failed_attempt_is_followed_by_the_next(world: World) -> None:
    record = opened(world)
    staged(world)
    world.ask(ops.FailAttempt, holder="job", revision=record.revision, reason="EXIT_NONZERO")
    record = world.answer().record
    assert (record.step, record.reason, record.packing) == (Step.RECEIVED, "EXIT_NONZERO", False)
    assert started(world).step is Step.RECEIVED  # a late notice
    assert opened(world, n=2, revision=record.revision).attempt == 2


def test_finished_and_reopened(world: World) -> None:
    opened(world)
    ended = world.ask(ops.Finish, holder="job", outcome="FAILED", reason="EXIT_NONZERO").record
    assert ended.step is Step.ENDED
    assert staged(world).code is ErrorCode.NOT_FOUND
    record = world.ask(ops.Reopen, holder="job", revision=ended.revision, handle="h").record
    assert (record.step, record.packing) == (Step.RECEIVED, False)


def test_a_job_may_get_a_device_with_its_next_attempt(world: World) -> None:
    record = opened(world)
    world.ask(ops.FailAttempt, holder="job", revision=record.revision, reason="EXIT_NONZERO")
    record = world.answer().record
    world.attempt(n=2, revision=record.revision, request=Request())
    assert world.record().with_device


def test_staged_without_lease_is_refused_for_an_attempt_with_a_device(world: World) -> None:
    world.attempt(request=Request())
    assert isinstance(staged(world), do.ReplyError)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.Reserve(attempt=AttemptId("a"), request=NO_DEVICE),
        lambda: ops.Explain(request=NO_DEVICE),
    ],
)
def test_only_a_job_asks_for_no_device(make: Any) -> None:
    with pytest.raises(AppError, match="count 0 must lie in 1…64"):
        make()


def test_only_the_owner_has_stored_the_envelope(world: World) -> None:
    """A message of an owner that was silent is about an earlier attempt: it stages no newer one."""
    opened(world)
    world.advance(world.budget.client_gone_s)
    adopted(world)
    assert staged(world).code is ErrorCode.CONFLICT
    assert world.record().packing
    assert staged(world, "s2").record.step is Step.STAGED

"""Limits of waiting requests, records and rates: of a key, of a tenant, in total."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import JobId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.admission.rates import BUCKETS_MAX, BURST_S, Rates
from gpu_scheduler.model import Request, Sharing, Step
from gpu_scheduler.parameters import NAMES
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.keys import key_of
from gpu_scheduler.verdicts import Limit
from tests.scheduler_world import World, device, world_with

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


def of(tenant: str) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, tenant=tenant)


def is_refused(answer: Any, limit: Limit) -> Any:
    """True for a refusal for now that reports the limit and its parameter."""
    assert isinstance(answer, do.ReplyError), answer
    assert answer.code is ErrorCode.EXHAUSTED
    assert f"parameter {limit.value.lower()}" in answer.message
    return answer.details["limit"] == limit.value


def full_world(**parameters: Any) -> Any:
    """One device, allocated to another session."""
    world = world_with(device("d"), **parameters)
    world.granted("taken", WHOLE, session="else/s")
    return world


def finish(world: Any, holder: str, session: str = "s1", **fields: Any) -> Any:
    said = {"outcome": "SUCCEEDED", "reason": "NONE", "detail": "", **fields}
    return world.ask(ops.Finish, session, holder=JobId(holder), **said)


def set_(world: Any, name: str, value: Any) -> None:
    world.ask(ops.SetParameter, "op/s", name=name, value=value)
    assert isinstance(world.answer(), answers.ParametersAnswer), world.answer()


# ---------------------------------------------------------------------- what waits


@pytest.mark.parametrize("op", ["attempt", "reserve"])
@pytest.mark.parametrize(
    ("name", "limit", "still"),
    [
        ("key_waiting_max", Limit.KEY_WAITING_MAX, ("b/s", "t1")),
        ("tenant_waiting_max", Limit.TENANT_WAITING_MAX, ("a/s", "t2")),
        ("waiting_max", Limit.WAITING_MAX, None),
    ],
)
def test_waiting_requests_are_limited(
    op: str, name: str, limit: Limit, still: tuple[str, str] | None
) -> None:
    world = full_world(**{name: 2})
    ask = getattr(world, op)
    for n in range(2):
        assert ask(f"j{n}", request=of("t1"), session="a/s").outcome is answers.Outcome.WAITING
    assert is_refused(ask("j2", request=of("t1"), session="a/s"), limit)
    assert JobId("j2") not in world.machine.state.records, "whoever asked, asks again"
    assert "j2" not in {w.attempt.partition(":")[0] for w in world.machine.state.queue.in_order()}
    if still is None:
        assert is_refused(ask("j3", request=of("t9"), session="z/s"), limit)
    else:
        session, tenant = still
        assert ask("j3", request=of(tenant), session=session).outcome is answers.Outcome.WAITING
    assert ask("j0", request=of("t1"), session="a/s").outcome is answers.Outcome.WAITING, (
        "it stands"
    )


def test_a_request_that_fits_is_granted_at_the_limit() -> None:
    world = full_world(key_waiting_max=0, waiting_max=0)
    world.host("h2", device("d2", memory_mib=5000))
    assert world.reserve("b", WHOLE, session="a/s").outcome is answers.Outcome.GRANTED


def test_a_request_without_wait_is_busy_at_the_limit() -> None:
    world = full_world(waiting_max=0)
    assert world.reserve("b", WHOLE, wait=False).outcome is answers.Outcome.BUSY


def test_a_served_request_makes_room_in_the_queue() -> None:
    world = full_world(key_waiting_max=1)
    world.attempt("j0", request=WHOLE, session="a/s")
    assert is_refused(world.attempt("j1", request=WHOLE, session="a/s"), Limit.KEY_WAITING_MAX)
    world.release(world.leases[0], "else/s")
    assert world.grants() == ["j0:1"]
    assert world.attempt("j1", request=WHOLE, session="a/s").outcome is answers.Outcome.WAITING


def test_an_ownerless_record_counts_for_its_key() -> None:
    world = full_world(key_waiting_max=2)
    for n in range(2):
        world.attempt(f"j{n}", request=WHOLE, session="a/one")
    world.advance(world.budget.client_gone_s + 1)
    assert world.record("j0").owner is None
    assert is_refused(world.attempt("j2", request=WHOLE, session="a/two"), Limit.KEY_WAITING_MAX)
    record = world.record("j0")
    world.ask(ops.Adopt, "b/s", holder=record.holder, revision=record.revision, handle=None)
    assert is_refused(world.attempt("j2", request=WHOLE, session="a/two"), Limit.KEY_WAITING_MAX)


def test_sessions_without_a_key_have_the_limits_of_all() -> None:
    world = full_world(key_waiting_max=0, key_records_max=0, key_rate_per_s=0.01)
    for n in range(3):
        assert world.attempt(f"j{n}", request=WHOLE).outcome is answers.Outcome.WAITING


def test_a_dry_run_reports_the_limit_of_waiting_requests() -> None:
    world = full_world(waiting_max=0)
    assert world.ask(ops.Explain, request=WHOLE).outcome is answers.Outcome.BUSY
    assert "parameter waiting_max" in world.answer().explanation.sentence


# ---------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("key_records_max", Limit.KEY_RECORDS_MAX),
        ("tenant_records_max", Limit.TENANT_RECORDS_MAX),
        ("records_max", Limit.RECORDS_MAX),
    ],
)
def test_records_of_live_jobs_are_limited(name: str, limit: Limit) -> None:
    world = full_world(**{name: 2})
    for n in range(2):
        world.attempt(f"j{n}", request=of("t1"), session="a/s")
    assert is_refused(world.attempt("j2", request=of("t1"), session="a/s"), limit)
    world.ask(
        ops.FailAttempt,
        "a/s",
        holder=JobId("j0"),
        revision=1,
        reason="R",
        detail="",
        retry_at_s=None,
    )
    again = world.attempt("j0", n=2, revision=2, request=of("t1"), session="a/s")
    assert again.outcome is answers.Outcome.WAITING, "what has a record goes on"


@pytest.mark.parametrize("name", ["key_records_max", "records_max"])
def test_history_makes_room_for_new_jobs_the_oldest_first(name: str) -> None:
    world = full_world(**{name: 2})
    for n in range(3):
        world.attempt(f"j{n}", request=WHOLE, session="a/s")
        finish(world, f"j{n}", "a/s")
    assert list(world.machine.state.records) == ["j1", "j2"]
    finish(world, "unheard of", "a/s", block={"function": "f"})
    assert list(world.machine.state.records) == ["j2", "unheard of"]


def test_the_record_that_ended_first_is_evicted_first_also_after_a_restart(world: World) -> None:
    world.host("h", device("d"))
    for holder in ("j0", "j1"):
        world.attempt(holder, request=WHOLE, session="a/s")
    for holder in ("j1", "j0"):
        finish(world, holder, "a/s")
    world.journal = list(world.machine.snapshot())
    world.start()
    set_(world, "records_max", 1)
    assert list(world.machine.state.records) == ["j0"]


def test_an_end_is_never_refused_but_may_leave_no_history() -> None:
    world = full_world(key_records_max=1)
    world.attempt("j0", request=WHOLE, session="a/s")
    answer = finish(world, "j1", "a/s", block={"function": "f"})
    assert answer == answers.RecordAnswer(record=None)
    assert finish(world, "j0", "a/s").record.step is Step.ENDED


def test_a_lower_limit_evicts_history_and_keeps_live_jobs() -> None:
    world = full_world()
    for n in range(3):
        world.attempt(f"j{n}", request=WHOLE, session="a/s")
    for n in range(2):
        finish(world, f"j{n}", "a/s", outcome="FAILED")
    set_(world, "key_records_max", 2)
    assert set(world.machine.state.records) == {"j1", "j2"}
    ended = world.record("j1")
    world.ask(ops.Reopen, "a/s", holder=ended.holder, revision=ended.revision, handle="h")
    assert world.answer().record.step is Step.RECEIVED, "a redrive is no new record"
    set_(world, "records_max", 0)
    assert set(world.machine.state.records) == {"j1", "j2"}


# ---------------------------------------------------------------------- rate


def test_a_key_above_its_rate_is_refused_and_others_are_served() -> None:
    world = full_world(key_rate_per_s=2.0)
    for _ in range(int(2.0 * BURST_S)):
        world.ask(ops.RecordOf, "a/s", holder=JobId("j"))
        assert world.answer() == answers.RecordAnswer(record=None)
    refused = world.ask(ops.RecordOf, "a/other", holder=JobId("j"))
    assert is_refused(refused, Limit.KEY_RATE_PER_S)
    assert refused.details["retry_in_s"] == pytest.approx(0.5)
    assert world.attempt("j0", request=WHOLE, session="b/s").outcome is answers.Outcome.WAITING
    world.advance(0.5)
    assert world.ask(ops.RecordOf, "a/s", holder=JobId("j")) == answers.RecordAnswer(record=None)


def test_a_tenant_and_all_together_have_a_rate_too() -> None:
    world = full_world(tenant_rate_per_s=0.2)
    for n in range(2):
        assert world.attempt(f"j{n}", request=of("t"), session=f"k{n}/s").outcome
    answer = world.attempt("j2", request=of("t"), session="k2/s")
    assert is_refused(answer, Limit.TENANT_RATE_PER_S)
    set_(world, "rate_per_s", 0.1)
    assert world.attempt("j3", request=of("u"), session="k2/s").outcome is answers.Outcome.WAITING
    assert is_refused(world.attempt("j4", request=of("v"), session="k3/s"), Limit.RATE_PER_S)


def test_beats_and_ends_have_no_rate_limit() -> None:
    world = full_world(key_rate_per_s=0.1)
    answer = world.attempt("j0", request=WHOLE, session="a/s")
    assert answer.outcome is answers.Outcome.WAITING, "the one token of its bucket"
    for _ in range(3):
        assert world.ask(ops.Beat, "a/s") == answers.Done()
        assert world.ask(ops.Handle, "a/s", holder=JobId("j0"), handle="h") == answers.Done()
    assert finish(world, "j0", "a/s").record.step is Step.ENDED


def test_declarations_of_floors_have_a_rate() -> None:
    world = full_world(key_rate_per_s=0.1)
    assert world.ask(ops.KeepWarm, "a/s", floors=()) == answers.KeepWarmAnswer()
    assert is_refused(world.ask(ops.KeepWarm, "a/s", floors=()), Limit.KEY_RATE_PER_S)


def test_buckets_of_invented_tenants_are_bounded() -> None:
    rates = Rates()
    for n in range(3 * BUCKETS_MAX):
        assert rates.take([(f"tenant/{n}", 1.0)], n / 1e5) is None
    assert len(rates.buckets) <= BUCKETS_MAX
    assert rates.take([("tenant/x", 1.0)], 1000.0) is None
    assert len(rates.buckets) <= BUCKETS_MAX


def test_the_bucket_that_was_unused_longest_is_evicted_for_a_new_one() -> None:
    rates = Rates()
    for n in range(BUCKETS_MAX):
        assert rates.take([(f"tenant/{n}", 1.0)], 0.0) is None
    assert rates.take([("tenant/0", 1.0)], 1.0) is None
    assert rates.take([("tenant/new", 1.0)], 1.0) is None
    assert len(rates.buckets) == BUCKETS_MAX
    assert {"tenant/0", "tenant/new"} <= set(rates.buckets)
    assert "tenant/1" not in rates.buckets


def test_an_empty_bucket_takes_no_token_of_the_others() -> None:
    rates = Rates()
    for _ in range(int(BURST_S)):
        assert rates.take([("key/a", 1.0), ("all", 100.0)], 0.0) is None
    left = rates.buckets["all"]
    empty = rates.take([("all", 100.0), ("key/a", 1.0)], 0.0)
    assert empty is not None
    assert (empty.scope, empty.in_s) == ("key/a", 1.0)
    assert rates.buckets["all"] == left


# ---------------------------------------------------------------------- the whole


def test_every_limit_is_a_parameter_that_changes_while_it_runs() -> None:
    assert {limit.value.lower() for limit in Limit} <= set(NAMES)
    world = full_world()
    set_(world, "key_waiting_max", 1)
    world.attempt("j0", request=WHOLE, session="a/s")
    assert is_refused(world.attempt("j1", request=WHOLE, session="a/s"), Limit.KEY_WAITING_MAX)
    set_(world, "key_waiting_max", "none")
    assert world.attempt("j1", request=WHOLE, session="a/s").outcome is answers.Outcome.WAITING


def test_counts_survive_a_restart() -> None:
    world = full_world(key_waiting_max=2)
    world.attempt("j0", request=WHOLE, session="a/s")
    world.reserve("r", WHOLE, session="a/s")
    world.start()
    assert world.machine.state.usage_counts.of_key("a").waiting == 2
    assert is_refused(world.attempt("j1", request=WHOLE, session="a/s"), Limit.KEY_WAITING_MAX)


@pytest.mark.parametrize(("session", "key"), [("a/s", "a"), ("s", ""), (None, ""), ("a/b/c", "a")])
def test_the_key_of_a_session(session: str | None, key: str) -> None:
    assert key_of(session) == key

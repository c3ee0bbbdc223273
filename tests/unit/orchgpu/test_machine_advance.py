"""Leases granted ahead: their request, their price, and their withdrawal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract.states import JobState, Reason
from corekit.ids import AttemptId, JobId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import (
    Advance,
    DeviceKind,
    EndReason,
    GrantedLease,
    JobLease,
    LeaseState,
    Record,
    Request,
    Step,
)
from gpu_scheduler.protocol import answers
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.function import Function
from orchgpu.core.job import Phase
from orchgpu.core.prices import Prices
from orchgpu.replica.acting import event_of_push
from tests.unit.orchgpu.jobs import (
    EXPLANATION,
    FUNCTION,
    JOB,
    NOW,
    Bench,
    Now,
    granted,
    record,
    report,
)

WALL_S, MEMORY_MIB, CAP_S = NOW["wall_s"], 1024, 60.0
OF_FUNCTION = Prices().function_usd_per_s(MEMORY_MIB)
RATE = OF_FUNCTION + Prices().device_usd_per_s  #: USD per second with the device
WAITS = replace(FUNCTION, memory_mib=MEMORY_MIB, advance_s=30.0)
CAPPED = replace(WAITS, max_cost_usd=CAP_S * RATE)


def bench_of(function: Function = WAITS) -> Bench:
    bench = Bench()
    bench.machine.set_functions({"search": function})
    return bench


def at(seconds: float) -> Now:
    return {"at_s": NOW["at_s"] + seconds, "wall_s": WALL_S + seconds}


def ahead(n: int = 1) -> GrantedLease:
    """A lease that was granted before its device is free."""
    found = granted(n)
    return replace(found, lease=replace(found.lease, after=(LeaseId("lease-of-another"),)))


def grant(bench: Bench, n: int = 1, after_s: float = 0.0, *, pushed: bool = False) -> None:
    held = None if pushed else record(attempt=n)
    bench.tell(
        on.AttemptGranted(
            **at(after_s), job=JOB, attempt=n, granted=ahead(n), record=held, pushed=pushed
        )
    )


def changed(
    bench: Bench,
    state: LeaseState,
    after_s: float = 0.0,
    reason: EndReason | None = None,
    after: tuple[LeaseId, ...] = (),
) -> None:
    push = answers.LeasePush(
        holder=JobId(JOB),
        attempt=AttemptId(f"{JOB}:1"),
        lease=granted().lease.id,
        state=state,
        reason=reason,
        detail="too long",
        device="",
        after=after,
    )
    event = event_of_push(push, at(after_s))
    assert event is not None
    bench.tell(event)


def armed(bench: Bench) -> list[float]:
    timers = [a for a in bench.actions if isinstance(a, do.ArmTimer)]
    return [timer.in_s for timer in timers if timer.timer is do.Timer.COST]


# ---------------------------------------------------------------------- the request


def test_a_request_states_the_longest_wait_and_the_part_that_may_come_late() -> None:
    ratio = OF_FUNCTION / Prices().device_usd_per_s
    asked = bench_of().read().one(do.OpenAttempt).request
    assert asked.advance == Advance(wait_s=30.0, late_pct=100 * ratio / (1 + ratio))
    assert replace(asked, advance=None) == WAITS.request


@pytest.mark.parametrize(
    "changes",
    [
        {"advance_s": 0.0},  # also a record of an older version
        {"object_bucket": "out", "object_key": "{job}"},
        {"request": Request(count=2)},
        {"request": Request(count=0)},
        {"memory_mib": 16 * 1024},  # a second of its wait costs more than one of the device
    ],
)
def test_other_requests_take_free_devices_only(changes: dict[str, Any]) -> None:
    function = replace(WAITS, **changes)
    assert function.advance is None
    assert bench_of(function).read().one(do.OpenAttempt).request == function.request


@pytest.mark.parametrize(
    ("memory_mib", "devices", "late_pct"),
    [(0, 1, 1.0), (128, 1, 1.0), (1024, 1, 6.25), (10240, 1, 40.0), (10240, 2, 25.0)],
)
def test_the_part_that_may_come_late_is_that_of_the_function_in_the_price(
    memory_mib: int, devices: int, late_pct: float
) -> None:
    assert Prices().late_pct(memory_mib, devices) == pytest.approx(late_pct, rel=1e-3)


@pytest.mark.parametrize("device_usd_per_hour", [0.0, 0.01])
def test_no_function_waits_for_a_device_that_costs_less(device_usd_per_hour: float) -> None:
    prices = Prices(device_usd_per_hour=device_usd_per_hour)
    assert prices.late_pct(1024, 1) is None


def test_a_fall_back_to_a_cpu_takes_a_free_one() -> None:
    bench = bench_of().read()
    job = bench.machine.jobs[JOB]
    job.fell_back = True
    assert job.attempt_request.kinds == (DeviceKind.CPU,)
    assert job.attempt_request.advance is None


# ---------------------------------------------------------------------- withdrawn


def accepting(bench: Bench) -> None:
    bench.read()
    bench.on(on.AttemptWaiting, record=record(Step.WAITING), explanation=EXPLANATION)
    grant(bench, pushed=True)


def staging(bench: Bench) -> None:
    bench.read()
    grant(bench)


def recording(bench: Bench) -> None:
    staging(bench)
    bench.on(on.EnvelopeStaged, attempt=1)


def running(bench: Bench) -> None:
    recording(bench)
    bench.on(on.StagedRecorded, attempt=1)


_PHASES = [
    (accepting, Phase.ACCEPTING),
    (staging, Phase.STAGING),
    (recording, Phase.RECORDING),
    (running, Phase.RUNNING),
]


@pytest.mark.parametrize("reported", [None, "WITHDRAWN", "FUNCTION_TIMEOUT"])
@pytest.mark.parametrize(("begin", "phase"), _PHASES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_withdrawn_attempt_is_tried_again_at_once_and_does_not_count(
    begin: Callable[[Bench], None], phase: Phase, reported: str | None
) -> None:
    bench = bench_of()
    begin(bench)
    assert bench.machine.jobs[JOB].phase is phase
    changed(bench, LeaseState.ENDED, reason=EndReason.WITHDRAWN)
    bench.unresolved(None if reported is None else report(reported))
    failed = bench.one(do.RecordAttemptFailure)
    assert (failed.reason, failed.pause_s, failed.detail) == (Reason.WITHDRAWN, 0.0, "too long")
    bench.on(on.AttemptFailureRecorded, record=record(Step.RECEIVED, lease=None), pause_s=0.0)
    assert "SendDeadLetter" not in bench.kinds()
    bench.retried()
    opened = bench.one(do.OpenAttempt)
    assert (opened.attempt, opened.payload["first_attempt"]) == (2, 2)
    assert opened.payload["not_started"] == 0


def test_the_attempt_after_a_withdrawn_one_waits_in_the_queue_and_the_next_may_wait_ahead() -> None:
    bench = bench_of()
    running(bench)
    changed(bench, LeaseState.ENDED, reason=EndReason.WITHDRAWN)
    bench.unresolved(None)
    bench.on(on.AttemptFailureRecorded, record=record(Step.RECEIVED, lease=None), pause_s=0.0)
    bench.retried()
    assert bench.one(do.OpenAttempt).request.advance is None
    bench.on(on.AttemptGranted, attempt=2, granted=granted(2), record=record(attempt=2))
    bench.staged(2)
    bench.on(
        on.LeaseChanged,
        attempt=2,
        state=LeaseState.ENDED,
        reason=EndReason.HOST_LOST,
        detail="silent",
    )
    bench.unresolved(report(attempt=2), attempt=2)
    bench.on(
        on.AttemptFailureRecorded,
        record=record(Step.RECEIVED, attempt=2, lease=None),
        pause_s=0.0,
    )
    bench.retried()
    assert bench.one(do.OpenAttempt).request.advance is not None


@pytest.mark.parametrize(("reason", "pauses_s"), [("THROTTLED", [60.0]), ("NOT_STARTED", [])])
def test_the_scheduler_learns_that_lambda_was_throttled(reason: str, pauses_s: list[float]) -> None:
    bench = bench_of()
    running(bench)
    bench.ended(EndReason.NOT_STARTED)
    bench.unresolved(report(reason))
    throttled = [one for one in bench.actions if isinstance(one, do.ReportThrottled)]
    assert [one.pause_s for one in throttled] == pauses_s


def test_withdrawn_attempts_end_no_job() -> None:
    bench = bench_of()
    running(bench)
    for n in range(1, 8):  # more than a function has attempts
        bench.on(
            on.LeaseChanged,
            attempt=n,
            state=LeaseState.ENDED,
            reason=EndReason.WITHDRAWN,
            detail="",
        )
        bench.unresolved(None, attempt=n)
        assert bench.one(do.RecordAttemptFailure).reason is Reason.WITHDRAWN
        between = record(Step.RECEIVED, attempt=n, lease=None)
        bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
        bench.retried()
        grant(bench, n + 1)
        bench.staged(n + 1)


def test_a_runner_that_gave_up_its_wait_does_not_count_however_its_lease_ended() -> None:
    bench = bench_of()
    running(bench)
    bench.ended(EndReason.SESSION_LOST)
    bench.unresolved(report("WITHDRAWN"))
    assert bench.one(do.RecordAttemptFailure).reason is Reason.WITHDRAWN


def test_an_envelope_that_is_stored_after_the_withdrawal_is_removed() -> None:
    bench = bench_of()
    staging(bench)
    changed(bench, LeaseState.ENDED, reason=EndReason.WITHDRAWN)
    assert bench.on(on.EnvelopeStaged, attempt=1) == ()
    bench.unresolved(None)
    bench.on(on.AttemptFailureRecorded, record=record(Step.RECEIVED, lease=None), pause_s=0.0)
    assert bench.one(do.RemoveEnvelope).fence == granted().lease.fence


def test_an_adopter_continues_after_a_withdrawn_attempt_without_counting_it() -> None:
    block = bench_of().read().one(do.OpenAttempt).payload
    bench = bench_of()
    between = record(Step.RECEIVED, owner=None, block=block, reason="WITHDRAWN", lease=None)
    bench.adopted(between)
    bench.on(on.ResultRead, result=None)
    opened = bench.one(do.OpenAttempt)
    assert opened.payload["first_attempt"] == 2
    assert opened.request.advance is None


def test_an_adopter_finds_a_lease_that_was_withdrawn_meanwhile() -> None:
    block = bench_of().read().one(do.OpenAttempt).payload
    bench = bench_of()
    over = record(Step.STAGED, owner=None, block=block, reason="WITHDRAWN", lease=None)
    bench.adopted(over)
    bench.unresolved(None)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.WITHDRAWN


# ---------------------------------------------------------------------- its price


def test_the_device_is_paid_from_its_booking() -> None:
    bench = bench_of(CAPPED)
    bench.read()
    grant(bench)
    assert armed(bench) == [pytest.approx(CAP_S * RATE / OF_FUNCTION)]
    bench.staged()
    changed(bench, LeaseState.RESERVED, 20.0)
    left_s = CAP_S - 20.0 * OF_FUNCTION / RATE
    assert armed(bench) == [pytest.approx(left_s)]
    changed(bench, LeaseState.ACTIVE, 21.0)
    assert armed(bench) == []
    bench.tell(on.TimerFired(**at(20.0 + left_s + 1e-3), job=JOB, timer=do.Timer.COST))
    written = bench.one(do.WriteResult).result
    assert written.cost_usd == pytest.approx(CAP_S * RATE, rel=1e-4)


def test_a_device_that_is_given_to_another_lease_is_not_paid_from_then_on() -> None:
    bench = bench_of(CAPPED)
    bench.read()
    grant(bench)
    bench.staged()
    changed(bench, LeaseState.RESERVED, 10.0)
    changed(bench, LeaseState.RESERVED, 15.0, after=(LeaseId("lease-of-another"),))
    assert bench.machine.jobs[JOB].ahead
    left_usd = CAP_S * RATE - 15.0 * OF_FUNCTION - 5.0 * Prices().device_usd_per_s
    assert armed(bench) == [pytest.approx(left_usd / OF_FUNCTION)]
    changed(bench, LeaseState.RESERVED, 20.0)
    assert armed(bench) == [pytest.approx((left_usd - 5.0 * OF_FUNCTION) / RATE)]


def test_a_withdrawn_wait_costs_the_functions_seconds() -> None:
    bench = bench_of(CAPPED)
    bench.read()
    grant(bench)
    bench.staged()
    changed(bench, LeaseState.ENDED, 30.0, EndReason.WITHDRAWN)
    job = bench.machine.jobs[JOB]
    assert job.paid_usd == pytest.approx(30.0 * OF_FUNCTION)
    assert not job.ahead


def test_a_session_whose_booking_was_not_seen_is_paid_from_the_start() -> None:
    bench = bench_of(CAPPED)
    bench.read()
    grant(bench)
    bench.staged()
    changed(bench, LeaseState.ACTIVE, 20.0)
    assert armed(bench) == [pytest.approx(CAP_S - 20.0)]
    assert bench.machine.jobs[JOB].state is JobState.RUNNING


def test_the_runner_is_given_the_full_price_and_that_of_its_wait() -> None:
    bench = bench_of(CAPPED)
    bench.read()
    grant(bench)
    cost = bench.one(do.StageEnvelope).cost
    assert cost is not None
    assert {**cost, "cap_usd": None} == {
        "paid_usd": 0.0,
        "usd_per_s": pytest.approx(RATE),
        "waiting_usd_per_s": pytest.approx(OF_FUNCTION),
        "since_s": WALL_S,
        "cap_usd": None,
    }


def left_by(step: Step, **times: float) -> Record:
    block = bench_of(CAPPED).read().one(do.OpenAttempt).payload
    at_s: dict[str, Any] = {name: WALL_S + s for name, s in times.items()}
    lease = JobLease(
        lease=LeaseId("lease-1"),
        attempt=1,
        shares=granted().lease.shares,
        share_count=1,
        granted_s=WALL_S,
        ahead=True,
        **at_s,
    )
    return record(
        step, owner=None, ended_owners=(), block=block, lease=lease.lease, leases=(lease,)
    )


@pytest.mark.parametrize(
    ("step", "times", "paid_usd"),
    [
        (Step.STAGED, {}, 40.0 * OF_FUNCTION),
        (Step.STAGED, {"booked_s": 30.0}, 30.0 * OF_FUNCTION + 10.0 * RATE),
        (Step.RUNNING, {"booked_s": 30.0, "active_s": 31.0}, 30.0 * OF_FUNCTION + 10.0 * RATE),
        (Step.RUNNING, {"active_s": 31.0}, 40.0 * RATE),  # of an older record: never too little
        (Step.RECEIVED, {"ended_s": 25.0}, 25.0 * OF_FUNCTION),
        (Step.RECEIVED, {"booked_s": 5.0, "ended_s": 25.0}, 5.0 * OF_FUNCTION + 20.0 * RATE),
    ],
)
def test_another_replica_continues_the_sum(
    step: Step, times: dict[str, float], paid_usd: float
) -> None:
    bench = bench_of(CAPPED)
    left = left_by(step, **times)
    bench.tell(on.Orphaned(**at(40.0), job=JOB, function="search", record=left))
    live = ahead() if step is not Step.RECEIVED else None
    bench.tell(on.Adopted(**at(40.0), job=JOB, record=left, granted=live))
    job = bench.machine.jobs[JOB]
    running_s = 0.0 if job.paid_since_s is None else WALL_S + 40.0 - job.paid_since_s
    rate = OF_FUNCTION if job.ahead else RATE
    assert job.paid_usd + running_s * rate == pytest.approx(paid_usd)

"""Jobs with objectives: promised before the first attempt, or rejected at once."""

from __future__ import annotations

import pytest

from corekit.values import replace
from gpu_scheduler.promises import Slo
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Phase
from orchgpu.core.runs.records import Admission
from tests.unit.orchgpu.jobs import FUNCTION, JOB, Bench, granted, record, result

PROMISED = replace(FUNCTION, slo=Slo(latency_s=60.0))


def bench() -> Bench:
    made = Bench()
    made.machine.set_functions({"search": PROMISED})
    return made.read()


def answer(made: Bench, outcome: Outcome) -> None:
    admission = Admission(outcome=outcome, why="devices are booked", at_s=1.0)
    made.on(on.PromiseAnswered, admission=admission)


def test_a_job_asks_for_its_promise_before_its_first_attempt() -> None:
    made = bench()
    asked = made.one(do.RequestPromise)
    assert (asked.job, asked.promise, asked.function) == (JOB, JOB, PROMISED)
    assert made.machine.jobs[JOB].phase is Phase.ADMITTING
    answer(made, Outcome.GRANTED)
    assert made.one(do.OpenAttempt).attempt == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Outcome.BUSY, "SLO_BUSY"), (Outcome.IMPOSSIBLE, "SLO_IMPOSSIBLE")],
)
def test_a_refused_job_is_rejected_with_a_dead_letter(outcome: Outcome, reason: str) -> None:
    made = bench()
    answer(made, outcome)
    written = made.one(do.WriteResult).result
    assert (written.state, written.reason, written.attempt) == ("REJECTED", reason, 0)
    assert written.detail == "devices are booked"
    made.on(on.ResultWritten, result=written)
    assert f'"reason": "{reason}"' in made.one(do.SendDeadLetter).body
    made.on(on.DeadLetterSent)
    assert made.one(do.FinishJob).promise == JOB


def test_a_job_that_has_begun_elsewhere_asks_for_nothing_again() -> None:
    made = bench()
    made.on(on.PromiseAnswered, admission=None)
    assert made.one(do.OpenAttempt).revision == 0


def test_the_promise_ends_with_the_job() -> None:
    made = bench()
    answer(made, Outcome.GRANTED)
    made.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    made.on(on.ResultRead, result=result())
    assert made.one(do.FinishJob).promise == JOB


def test_a_drain_hands_back_a_job_that_asks() -> None:
    made = bench()
    made.tell(on.DrainRequested(at_s=1.0, wall_s=1.0))
    assert made.one(do.HandBack).revision == 0


def test_a_call_that_fails_is_repeated() -> None:
    made = bench()
    asked = made.one(do.RequestPromise)
    made.on(on.CallFailed, action=asked, retryable=True, message="gone")
    made.on(on.RepeatDue, action=made.one(do.RepeatLater).action)
    assert made.one(do.RequestPromise) == asked


def test_a_function_without_objectives_asks_for_nothing() -> None:
    made = Bench().read()
    assert made.one(do.OpenAttempt).attempt == 1

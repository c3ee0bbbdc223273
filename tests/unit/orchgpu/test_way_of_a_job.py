"""The way of a job: its time outside of its lease and its waiting, as its orchestrator saw it."""

from __future__ import annotations

import pytest

from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseState
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job
from orchgpu.core.routing import InputEvent
from tests.unit.orchgpu.jobs import EXPLANATION, JOB, NOW, Bench, granted, record, result


def at(seconds: float) -> dict[str, float]:
    """So long after the usual moment, by both clocks."""
    return {"at_s": NOW["at_s"] + seconds, "wall_s": NOW["wall_s"] + seconds}


def leased(bench: Bench, begun_s: float = 2.0) -> None:
    """The job is read, and gets its device at once."""
    fields = {"attempt": 1, "granted": granted(), "record": record()}
    bench.read()
    bench.on(on.AttemptGranted, **fields, **at(begun_s))


def over(bench: Bench, ended_s: float, seen_s: float, state: str = "SUCCEEDED") -> do.FinishJob:
    lease = {"state": LeaseState.ENDED, "reason": EndReason.DONE, "detail": ""}
    bench.on(on.LeaseChanged, attempt=1, **lease, **at(ended_s))
    bench.on(on.ResultRead, result=result(state), **at(seen_s))
    if state != "SUCCEEDED":
        bench.on(on.DeadLetterSent, **at(seen_s))
    return bench.one(do.FinishJob)


def test_it_is_the_time_before_the_reservation_and_after_the_lease() -> None:
    bench = Bench()
    leased(bench, 2.0)
    finish = over(bench, 50.0, 50.5)
    assert finish.way_s == pytest.approx(2.5)


def test_waiting_for_a_device_is_not_part_of_it() -> None:
    bench = Bench()
    bench.read()
    bench.on(on.AttemptWaiting, record=record(), explanation=EXPLANATION, **at(1.0))
    pushed = {"attempt": 1, "granted": granted(), "record": None, "pushed": True}
    bench.on(on.AttemptGranted, **pushed, **at(30.0))
    assert over(bench, 50.0, 50.5).way_s == pytest.approx(1.5)


def test_a_step_begins_when_those_before_it_end() -> None:
    bench = Bench()
    bench.read()
    job: Job = bench.machine.jobs[JOB]
    source: InputEvent = job.input
    job.input = replace(source, ready_at_s=NOW["wall_s"] - 3.0)
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record(), **at(1.0))
    assert over(bench, 50.0, 50.0).way_s == pytest.approx(4.0)


def test_without_a_device_all_of_it_is_way() -> None:
    bench = Bench()
    bench.read()
    bench.on(on.AttemptOpened, attempt=1, record=record(), **at(1.0))
    bench.on(on.ResultRead, result=result(), **at(9.0))
    assert bench.one(do.FinishJob).way_s == pytest.approx(9.0)


def test_only_a_success_at_the_first_attempt_has_one() -> None:
    bench = Bench()
    leased(bench)
    assert over(bench, 50.0, 50.5, state="FAILED").way_s is None
    bench = Bench()
    leased(bench)
    bench.on(on.ResultRead, result=result(attempt=2), **at(9.0))
    assert bench.one(do.FinishJob).way_s is None


def test_a_job_that_was_opened_elsewhere_has_none() -> None:
    bench = Bench()
    bench.read()
    bench.on(on.ResultRead, result=result(), **at(9.0))
    assert bench.one(do.FinishJob).way_s is None

"""Intervals of a job over its lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.result import Report, Result
from corekit.decode import encode
from corekit.values import replace
from gpu_scheduler.model import EndedAttempt, Record, Step
from orchgpu.core.routing import InputEvent
from orchgpu.jobs.intervals import LANES, NAMES, AttemptTimes, JobTimes, intervals, job_times
from tests.history_records import job_lease, job_record, job_result

STEPS = {
    "WAITING": 2.0,
    "RESERVED": 5.0,
    "STAGED": 6.0,
    "RUNNING": 8.0,
    "LEASE_ENDED": 13.0,
    "COMMITTED": 14.0,
}
CODE = {"EStart": 9.0, "EEnd": 12.0, "committed": 12.5}
UPLOADED = "1970-01-01T00:00:01.000Z"


def bars(times: JobTimes) -> list[tuple[str, str, float, float | None, int]]:
    return [(one.lane, one.name, one.start_s, one.end_s, one.attempt) for one in intervals(times)]


def test_a_job_that_succeeded() -> None:
    times = JobTimes(
        uploaded_s=0.0,
        received_s=1.0,
        ended_s=15.0,
        attempts=(AttemptTimes(number=1, steps=STEPS, code=CODE),),
    )
    assert bars(times) == [
        ("queue", "queued", 0.0, 1.0, 0),
        ("scheduler", "waits", 2.0, 5.0, 1),
        ("scheduler", "staging", 5.0, 6.0, 1),
        ("scheduler", "finishing", 14.0, 15.0, 1),
        ("function", "cold start", 6.0, 9.0, 1),
        ("function", "running", 9.0, 12.0, 1),
        ("function", "result", 12.0, 12.5, 1),
        ("device", "reserved", 5.0, 8.0, 1),
        ("device", "session", 8.0, 13.0, 1),
    ]


def test_a_device_is_reserved_from_its_booking_by_a_lease_that_was_granted_ahead() -> None:
    lease = job_lease("j1", 5.0, 13.0, attempt=2, ahead=True, booked_s=7.5)
    found = bars(job_times(record(leases=(lease,)), result(), {}, {}))
    assert ("device", "reserved", 7.5, 8.0, 2) in found
    assert ("scheduler", "staging", 5.0, 6.0, 2) in found
    withdrawn = replace(lease, booked_s=None, active_s=None)
    steps = {name: at_s for name, at_s in STEPS.items() if name != "RUNNING"}
    over = record(step=Step.RECEIVED, times=steps, leases=(withdrawn,))
    assert [bar for bar in bars(job_times(over, None, {}, {})) if bar[0] == "device"] == []


@pytest.mark.parametrize(
    ("steps", "lasting"),
    [
        ({}, []),
        ({"WAITING": 2.0}, ["waits"]),
        ({"RESERVED": 5.0}, ["staging", "reserved"]),
        ({"RESERVED": 5.0, "STAGED": 6.0}, ["cold start", "reserved"]),
        ({"RESERVED": 5.0, "STAGED": 6.0, "RUNNING": 8.0}, ["running", "session"]),
    ],
)
def test_what_a_job_does_now_lasts(steps: Mapping[str, float], lasting: list[str]) -> None:
    attempts = (AttemptTimes(number=1, steps=steps),)
    found = intervals(JobTimes(uploaded_s=0.0, received_s=1.0, attempts=attempts))
    assert [one.name for one in found if one.end_s is None] == lasting


def test_a_message_that_nobody_received_is_queued_until_now() -> None:
    assert bars(JobTimes(uploaded_s=0.0)) == [("queue", "queued", 0.0, None, 0)]


def test_a_failed_attempt_ends_with_its_failure_and_a_pause_follows() -> None:
    first = AttemptTimes(number=1, steps={"RUNNING": 2.0}, code={"EStart": 2.5}, failed_s=4.0)
    second = AttemptTimes(number=2, steps={"WAITING": 7.0})
    found = bars(JobTimes(attempts=(first, second)))
    assert found == [
        ("queue", "pause", 4.0, 7.0, 1),
        ("scheduler", "waits", 7.0, None, 2),
        ("function", "running", 2.5, 4.0, 1),
        ("device", "session", 2.0, 4.0, 1),
    ]
    assert ("queue", "pause", 4.0, 9.0, 1) in bars(JobTimes(attempts=(first,), retry_s=9.0))
    assert not [one for one in bars(JobTimes(attempts=(first,), ended_s=4.5)) if one[1] == "pause"]


MOMENTS = st.floats(0, 1e9)
TIMES = st.builds(
    lambda steps, code, failed_s, ended_s, uploaded_s: JobTimes(
        uploaded_s=uploaded_s,
        ended_s=ended_s,
        attempts=(
            AttemptTimes(number=1, steps=steps, code=code, failed_s=failed_s),
            AttemptTimes(number=2, steps=steps),
        ),
    ),
    st.dictionaries(st.sampled_from(list(STEPS)), MOMENTS),
    st.dictionaries(st.sampled_from(list(CODE)), MOMENTS),
    st.none() | MOMENTS,
    st.none() | MOMENTS,
    st.none() | MOMENTS,
)


@given(TIMES)
def test_intervals_of_several_clocks_never_end_before_they_start(times: JobTimes) -> None:
    found = intervals(times)
    assert all(one.end_s is None or one.end_s >= one.start_s for one in found)
    assert all(one.name in NAMES[one.lane] for one in found)
    assert [one.lane for one in found] == sorted(
        (one.lane for one in found), key=lambda lane: LANES.index(lane)
    )


def record(**fields: Any) -> Record:
    source = InputEvent(
        bucket="in",
        key="k",
        version_id="v",
        etag="e",
        size=1,
        event_name="ObjectCreated:Put",
        event_time=UPLOADED,
    )
    given: dict[str, Any] = {
        "attempt": 2,
        "step": Step.ENDED,
        "block": {"function": "f", "input": encode(source)},
        "times": {"RECEIVED": 1.5, **STEPS, "ENDED": 15.0},
    }
    return job_record(**{**given, **fields})


def result(**fields: Any) -> Result:
    return job_result(**{"times": CODE, **fields})


def report(**times: float) -> Report:
    return Report(
        job_id="j1",
        attempt=1,
        nonce="n",
        reason="KILLED",
        exit_code=None,
        detail="",
        log_tail="",
        times=times,
    )


def test_the_moments_of_record_result_and_reports() -> None:
    found = job_times(record(), result(), {1: report()}, {1: 1.9})
    assert (found.uploaded_s, found.received_s, found.ended_s) == (1.0, 1.5, 15.0)
    assert found.attempts == (
        AttemptTimes(number=1, failed_s=1.9),
        AttemptTimes(number=2, steps=STEPS, code=CODE),
    )


def test_earlier_attempts_are_those_of_the_record_and_of_their_reports() -> None:
    first = EndedAttempt(
        n=1,
        ended_s=1.95,
        outcome=None,
        reason="KILLED",
        lease=None,
        times={"RECEIVED": 1.5, "RESERVED": 1.6, "RUNNING": 1.7, "LEASE_ENDED": 1.8},
    )
    found = job_times(record(attempts=(first,)), result(), {1: report(EStart=1.72)}, {1: 1.9})
    assert found.attempts[0] == AttemptTimes(
        number=1,
        steps={"RESERVED": 1.6, "RUNNING": 1.7, "LEASE_ENDED": 1.8},
        code={"EStart": 1.72},
        failed_s=1.95,
    )
    assert ("device", "session", 1.7, 1.8, 1) in bars(found)
    assert ("queue", "pause", 1.95, 2.0, 1) in bars(found)


@pytest.mark.parametrize(
    ("times", "scheduler", "lasting"),
    [
        ({}, ("scheduler", "staging", 1.5, None, 1), True),
        ({"STAGED": 1.6}, ("scheduler", "staging", 1.5, 1.6, 1), True),
        ({"STAGED": 1.6, "RUNNING": 1.9}, ("scheduler", "staging", 1.5, 1.6, 1), True),
    ],
)
def test_a_first_attempt_without_a_device_is_staged_from_its_receipt(
    times: dict[str, float], scheduler: tuple[str, str, float, float | None, int], lasting: bool
) -> None:
    open_record = replace(record(), attempt=1, with_device=False, times={"RECEIVED": 1.5, **times})
    found = bars(job_times(open_record, None, {}, {}))
    assert scheduler in found
    assert not [one for one in found if one[0] == "device"]
    assert any(one[3] is None for one in found) is lasting


def test_an_ended_attempt_without_a_device_has_its_staging_too() -> None:
    times = {"RECEIVED": 1.5, "STAGED": 1.6, "RUNNING": 1.7}
    first = EndedAttempt(n=1, ended_s=1.95, outcome=None, reason="KILLED", lease=None, times=times)
    found = bars(job_times(record(attempts=(first,)), result(), {}, {}))
    assert ("scheduler", "staging", 1.5, 1.6, 1) in found
    assert not [one for one in found if one[0] == "device" and one[4] == 1]


def test_a_job_without_a_record_has_the_moments_of_its_result() -> None:
    found = job_times(None, result(), {}, {})
    assert (found.uploaded_s, found.received_s, found.ended_s) == (None, None, 12.5)
    assert found.attempts == (AttemptTimes(number=2, code=CODE),)
    written = job_times(None, result(times={}, ended_at_s=20.0), {}, {})
    assert written.ended_s == 20.0


def test_the_newest_attempt_may_have_failed_too() -> None:
    waiting = record(step=Step.RECEIVED, times={"RECEIVED": 1.5, "RETRY_AT": 9.0}, attempt=1)
    found = job_times(waiting, None, {1: report(EStart=2.0, EEnd=3.0)}, {1: 3.1})
    assert found.retry_s == 9.0
    assert bars(found) == [
        ("queue", "queued", 1.0, 1.5, 0),
        ("queue", "pause", 3.0, 9.0, 1),
        ("function", "running", 2.0, 3.0, 1),
    ]

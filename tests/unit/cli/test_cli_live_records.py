"""Job records that are read once and changed by pushes, in the order of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.ids import JobId
from gpu_scheduler.core.state.state import State
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol.answers import RecordPush
from orchgpu.jobs.live.records import LiveRecords
from tests.history_records import job_record

JOBS = st.sampled_from("abcdef")
STEPS = st.sampled_from([Step.RECEIVED, Step.WAITING, Step.RUNNING, Step.ENDED])


def record(job: str, step: Step = Step.RUNNING, at_s: float = 0.0, **fields: Any) -> Record:
    return job_record(job, step, **{"updated_s": at_s, "times": {step.value: at_s}, **fields})


def pushed(*records: Record) -> list[RecordPush]:
    return [RecordPush(holder=one.holder, record=one) for one in records]


def forgotten(job: str) -> RecordPush:
    return RecordPush(holder=JobId(job), record=None)


def names(live: LiveRecords) -> str:
    return "".join(one.holder for one in live.newest())


def read(live: LiveRecords, newest: Sequence[Record]) -> None:
    live.read(newest, live.readings)


class Scheduler:
    """Writes into the scheduler's own state, each as the push that reports it."""

    def __init__(self) -> None:
        self.state = State()
        self.now_s = 0.0

    def write(self, job: str, step: Step | None) -> RecordPush:
        self.now_s += 1.0
        if step is None:
            self.state.forget_record(JobId(job))
            return forgotten(job)
        written = record(job, step, self.now_s)
        self.state.set_record(written)
        return RecordPush(holder=written.holder, record=written)

    def newest(self) -> list[Record]:
        return [self.state.records[one] for one in self.state.record_order.newest()]


@given(
    st.lists(st.tuples(JOBS, STEPS | st.none())),
    st.lists(st.tuples(JOBS, STEPS)),
    st.integers(0, 5),
    st.lists(st.tuples(JOBS, STEPS | st.none())),
)
def test_it_has_the_records_of_the_scheduler_in_its_order(
    before: list[tuple[str, Step | None]],
    during: list[tuple[str, Step]],
    late: int,
    after: list[tuple[str, Step | None]],
) -> None:
    """The last `late` changes before the reading arrive after it."""
    scheduler, live = Scheduler(), LiveRecords(100)
    for write in before:
        scheduler.write(*write)
    live.expire()
    changes = [scheduler.write(*write) for write in during]
    found = scheduler.newest()
    early = max(0, len(changes) - late)
    for change in changes[:early]:
        live.change(change)
    read(live, found)
    for change in changes[early:]:
        live.change(change)
    assert live.newest() == scheduler.newest()
    for write in after:
        live.change(scheduler.write(*write))
    assert live.newest() == scheduler.newest()


@pytest.mark.parametrize(
    ("changes", "newest"),
    [
        (pushed(record("d", at_s=9.0)), "dcb"),
        (pushed(record("a", Step.ENDED, 9.0)), "acb"),
        (pushed(record("b", Step.STAGED, 9.0)), "cba"),
        (pushed(record("c", Step.RUNNING, 2.5)), "cba"),  # older than the reading
        ([forgotten("b")], "ca"),
        ([forgotten("x")], "cba"),
        # an old job that is not among the newest, and lives
        (pushed(record("o", at_s=9.0, times={"WAITING": 0.5, "RUNNING": 9.0})), "cba"),
        (pushed(record("o", Step.ENDED, 9.0)), "ocb"),
    ],
)
def test_the_newest_three(changes: list[RecordPush], newest: str) -> None:
    live = LiveRecords(3)
    read(live, [record("c", at_s=3.0), record("b", at_s=2.0), record("a", at_s=1.0)])
    for change in changes:
        live.change(change)
    assert names(live) == newest


def test_a_change_older_than_the_reading_is_left_out_and_its_followers_are_not() -> None:
    live = LiveRecords(3)
    read(live, [record("a", Step.RUNNING, 5.0)])
    for step, at_s in ((Step.STAGED, 4.0), (Step.RUNNING, 5.0), (Step.ENDED, 4.5)):
        live.change(pushed(record("a", step, at_s))[0])  # the wall clock went back at last
    assert [one.step for one in live.newest()] == [Step.ENDED]


def test_changes_during_a_reading_follow_it() -> None:
    live = LiveRecords(3)
    for change in [*pushed(record("a", Step.ENDED, 7.0), record("b", at_s=8.0)), forgotten("c")]:
        live.change(change)
    assert names(live) == ""
    read(live, [record("c", at_s=2.0), record("a", at_s=1.0)])
    assert names(live) == "ba"


def test_a_reading_that_began_before_a_gap_is_left_out() -> None:
    live = LiveRecords(3)
    began = live.readings
    live.expire()
    live.read([record("a")], began)
    assert live.is_stale


def test_it_is_read_again_when_half_of_it_was_forgotten_and_the_scheduler_has_more() -> None:
    live = LiveRecords(3)
    read(live, [record(job, at_s=1.0) for job in "abc"])
    live.change(forgotten("a"))
    assert not live.is_stale
    live.change(forgotten("b"))
    assert live.is_stale

"""The sources of log lines: of one job, and of all jobs of a function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from corekit.cli.screen import echo
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import RETRY_AT, Record, Step
from orchgpu.cli.jobs.lookup import echo_scheduler_error, known_job
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.joblog import (
    FunctionLog,
    Line,
    LineSource,
    Programs,
    function_lines,
    log_group_of,
    record_lines,
)
from orchgpu.jobs.known import Known, Scheduled, look_of
from orchgpu.jobs.records import newest_records
from orchgpu.jobs.runs import SeenRun, read_run
from orchgpu.jobs.scheduler import NO_ANSWER, ask, scheduler_address
from orchgpu.jobs.transfers import for_each
from orchgpu.local.home import default_home
from orchgpu.ports import Tolerating

#: The age of a function's lines without --since.
FUNCTION_SINCE_S = 3600.0
#: The newest jobs of a function: only their lines are shown.
JOBS_MAX = 50
#: The newest records, of all functions, that are searched for those jobs.
RECORDS_MAX = 1000
#: Results and reports that are read together.
LOOKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class LogSources:
    """All sources of one log."""

    sources: Sequence[LineSource]
    over: Callable[[], bool] = lambda: False  #: no further lines are expected


def sources_of_job(cloud: JobCloud, job: str, scheduler: str | None) -> LogSources:
    """Record, function and programs of one job. Raises NOT_FOUND for an unknown job."""
    known = known_job(job, scheduler, despite_scheduler=True)
    echo_scheduler_error(known)

    def of_record() -> Iterator[Line]:  # the first source: the others use the same look at the job
        nonlocal known
        if not known.over:
            known = known_job(job, scheduler, despite_scheduler=True)
        yield from record_lines(known)

    def of_function() -> list[Line]:
        return function_lines(cloud.services, known)

    def words() -> Iterator[tuple[str, str]]:
        yield job, job
        if known.record is not None and known.record.lease:
            yield known.record.lease, job

    programs = Programs(default_home().logs, words)
    return LogSources([of_record, of_function, programs], lambda: known.over)


def sources_of_run(cloud: JobCloud, seen: SeenRun, scheduler: str | None) -> LogSources:
    """Record, function and programs of the jobs of a run's steps, also of those yet to start."""
    jobs: dict[str, LogSources] = {}

    def lines() -> Iterator[Line]:
        nonlocal seen
        if not seen.over:
            seen = read_run(cloud, seen.workflow, seen.id, seen.facts) or seen
        started = [job.id for step in seen.state.steps.values() for job in step.jobs]
        for job in started[:JOBS_MAX]:
            if job not in jobs:
                with Tolerating(ErrorCode.NOT_FOUND):  # it was not received yet
                    jobs[job] = sources_of_job(cloud, job, scheduler)
        for log in jobs.values():
            for source in log.sources:
                yield from source()

    return LogSources([lines], lambda: seen.over)


@dataclass(slots=True)
class JobsOfFunction:
    """The newest jobs of a function, as they were at their last change."""

    cloud: JobCloud
    name: str
    function: Function | None  #: None: without a device
    scheduler: str | None
    jobs: dict[str, Known]
    reported: bool = False  #: a scheduler that does not answer is reported once

    def lines(self) -> Iterator[Line]:
        mine = [one for one in self._records() if one.block.get("function") == self.name]
        changed = [one for one in mine[:JOBS_MAX] if self._changed(one)]
        found = for_each(self._look, changed, LOOKS_AT_ONCE, lambda _: None)
        before = {**self.jobs, **{one.job: one for one in found}}
        self.jobs = {one.holder: before[one.holder] for one in mine[:JOBS_MAX]}
        for known in self.jobs.values():
            yield from record_lines(known)

    def _changed(self, record: Record) -> bool:
        return record.holder not in self.jobs or self.jobs[record.holder].record != record

    def _look(self, record: Record) -> Known:
        """One job with its objects in the cloud.

        An attempt leaves a report when it fails and a job a result when it ends: before that there
        are none to read.
        """
        scheduled, job = Scheduled(record=record), record.holder
        if record.step is Step.ENDED or record.attempt > 1 or RETRY_AT in record.times:
            return look_of(self.cloud, self.function, scheduled, job)
        return Known(job=job, function=self.function, scheduled=scheduled, result=None, reports={})

    def _records(self) -> list[Record]:
        """The newest records; none while the scheduler does not answer."""
        try:
            address = scheduler_address(self.scheduler)
            return ask(address, lambda one: newest_records(one, RECORDS_MAX))
        except AppError as error:
            if error.code not in NO_ANSWER:
                raise
            if not self.reported:
                echo(f"orchgpu: {error.message}; only the function's lines are shown", err=True)
            self.reported = True
            return []


def sources_of_function(
    cloud: JobCloud, name: str, scheduler: str | None, since_s: float | None
) -> LogSources:
    """Records, log and programs of all jobs of a deployed function."""
    function = cloud.function(name) if name in cloud.served() else None
    start_s = time.time() - FUNCTION_SINCE_S if since_s is None else since_s
    jobs = JobsOfFunction(cloud, name, function, scheduler, {})
    log = FunctionLog(cloud.services, name, log_group_of(function))
    programs = Programs(default_home().logs, lambda: [(job, job) for job in jobs.jobs])
    return LogSources([jobs.lines, lambda: log.since(start_s), programs])

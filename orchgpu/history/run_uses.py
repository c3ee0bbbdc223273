"""Runs of workflows in the history: their number, their ends, their times.

The history has the jobs of runs, not the runs: a run is over here when no job of it lives, so one
between two steps counts as over until its next job comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from corekit.values import Value, field
from orchgpu.history.measures import quantile


class StepJobRow(Value):
    """A job of a step. Times are of the scheduler's wall clock."""

    workflow: str
    run: str
    step: str
    state: str
    began_s: float | None  #: the input of the run was stored
    running_s: float | None
    ended_s: float | None


class StepUse(Value):
    """One step over all its jobs in some runs."""

    step: str
    runs: int  #: that had jobs of it
    jobs: int
    succeeded: int  #: of its jobs
    p50_s: float | None  #: from the begin of a job's function to its end
    p95_s: float | None


class WorkflowUse(Value):
    """The runs of one workflow that ended in a window."""

    workflow: str
    runs: int
    succeeded: int  #: all their jobs did
    jobs: int
    p50_s: float | None  #: from the storing of the input to the end of the last job, of successes
    p95_s: float | None
    steps: tuple[StepUse, ...]  #: in the order of their first begins


class _Run(Value):
    workflow: str
    jobs: list[StepJobRow] = field(default_factory=list)

    def ends_s(self) -> float | None:
        """The end of its last job; None while one lives."""
        ends = [job.ended_s for job in self.jobs]
        known = [end_s for end_s in ends if end_s is not None]
        return max(known) if known and len(known) == len(ends) else None

    @property
    def succeeded(self) -> bool:
        return all(job.state == "SUCCEEDED" for job in self.jobs)


def workflow_uses(rows: Iterable[StepJobRow], until_s: float) -> tuple[WorkflowUse, ...]:
    """The workflows by name; `rows` are all jobs of the runs, those that ended by then count."""
    runs: dict[str, _Run] = {}
    for row in rows:
        runs.setdefault(row.run, _Run(workflow=row.workflow)).jobs.append(row)
    over = [run for run in runs.values() if (end_s := run.ends_s()) is not None and end_s < until_s]
    names = sorted({run.workflow for run in over})
    return tuple(_use(name, [run for run in over if run.workflow == name]) for name in names)


def _use(name: str, runs: list[_Run]) -> WorkflowUse:
    lengths_s = [length_s for run in runs if (length_s := _length_s(run)) is not None]
    jobs = [job for run in runs for job in run.jobs]
    steps: dict[str, list[StepJobRow]] = {}
    for job in sorted(jobs, key=lambda job: job.running_s or float("inf")):
        steps.setdefault(job.step, []).append(job)
    return WorkflowUse(
        workflow=name,
        runs=len(runs),
        succeeded=sum(run.succeeded for run in runs),
        jobs=len(jobs),
        p50_s=quantile(lengths_s, 0.5),
        p95_s=quantile(lengths_s, 0.95),
        steps=tuple(_step(step, of) for step, of in steps.items()),
    )


def _length_s(run: _Run) -> float | None:
    end_s = run.ends_s()
    begins = [job.began_s for job in run.jobs if job.began_s is not None]
    if end_s is None or not begins or not run.succeeded:
        return None
    return max(0.0, end_s - min(begins))


def _step(name: str, jobs: list[StepJobRow]) -> StepUse:
    lengths_s = [
        max(0.0, job.ended_s - job.running_s)
        for job in jobs
        if job.running_s is not None and job.ended_s is not None
    ]
    return StepUse(
        step=name,
        runs=len({job.run for job in jobs}),
        jobs=len(jobs),
        succeeded=sum(job.state == "SUCCEEDED" for job in jobs),
        p50_s=quantile(lengths_s, 0.5),
        p95_s=quantile(lengths_s, 0.95),
    )

"""The facts of one run: what was read of it, and what is still to be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from contract.result import Result
from contract.run import step_jobs
from contract.states import JobState
from corekit.values import Value, field
from orchgpu.core.runs.records import Admission, Cancel, Frozen, Retry, RunResult
from orchgpu.core.runs.workflow import WorkflowStep


class Read(Value):
    """A look for the result of one job."""

    result: Result | None  #: None: there was none
    etag: str = ""


class Facts(Value):
    """The objects of a run, as far as they were read.

    Every object but `cancel` and `result` is written once, and results of jobs change by a retry
    alone: facts that are older than the objects lead to actions that do no harm.
    """

    frozen: Frozen
    wall_s: float  #: wall clock of the reader
    cancel: Cancel | None = None
    retries: tuple[Retry, ...] = ()  #: the first one first
    admission: Admission | None = None  #: of the newest retry
    ended: RunResult | None = None
    ended_etag: str = ""
    #: Steps whose jobs were sent, with the number of retries before.
    started: frozenset[tuple[int, str]] = frozenset()
    #: Results by job id, with the etag that they had.
    reads: Mapping[str, Read] = field(default_factory=dict)
    #: Steps with several jobs: etag of each job's result that a LIST found, by job id.
    listed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()  #: steps whose functions are not deployed any more
    hints: frozenset[str] = frozenset()  #: jobs that ended without success, as a message states

    @property
    def run(self) -> str:
        return self.frozen.run

    @property
    def retried_at_s(self) -> float | None:
        """The time of the newest retry."""
        return max((retry.at_s for retry in self.retries), default=None)

    @property
    def stands(self) -> bool:
        """Whether the run has ended, without a retry since."""
        return self.ended is not None and self.ended.retries >= len(self.retries)

    @property
    def cancelled(self) -> Cancel | None:
        """The cancel that counts: one that is newer than every retry."""
        if self.cancel is None or self.cancel.at_s <= (self.retried_at_s or float("-inf")):
            return None
        return self.cancel

    @property
    def begun_at_s(self) -> float:
        """Wall clock: its input was stored, or its newest retry was requested."""
        return max(self.frozen.stored_at_s, self.retried_at_s or 0.0)

    @property
    def unadmitted(self) -> bool:
        """Whether the run has objectives, and neither a promise nor a refusal yet."""
        return self.frozen.workflow.slo is not None and self.admission is None

    def deadline_at_s(self) -> float | None:
        """Wall clock. A retry begins a new time."""
        deadline_s = self.frozen.workflow.deadline_s
        if deadline_s is None:
            return None
        return self.begun_at_s + deadline_s

    def result_of(self, step: str, job: str) -> Result | None:
        """The result of a job that counts; None also for one that a retry lets run again."""
        read = self.reads.get(job)
        if read is None or read.result is None or self._void(step, read.result):
            return None
        return read.result

    def lasting(self) -> dict[str, Read]:
        """The reads that no later one can change: the facts of the next fold begin with them."""
        again = frozenset[str]().union(*(self._again(retry) for retry in self.retries))
        return {
            job: read
            for job, read in self.reads.items()
            if read.result is not None
            and read.result.state == JobState.SUCCEEDED
            and (not again or read.result.ended_at_s > (self.retried_at_s or 0.0))
        }

    def _void(self, step: str, result: Result) -> bool:
        return any(
            result.ended_at_s <= retry.at_s
            and (result.state != JobState.SUCCEEDED or step in self._again(retry))
            for retry in self.retries
        )

    def _again(self, retry: Retry) -> frozenset[str]:
        return after(self.frozen.workflow.steps, retry.from_step) if retry.from_step else _NONE

    def conditions_on(self, step: str) -> bool:
        """Whether a condition looks at the results of a step."""
        steps = self.frozen.workflow.steps
        return any(feed.when and feed.step == step for one in steps for feed in one.feeds)

    def may_have_results(self, step: str) -> bool:
        """Whether jobs of a step are known to be sent, or were sent before a retry."""
        return bool(self.retries) or (0, step) in self.started

    def unread_end(self, step: str, job: str) -> bool:
        """Whether a LIST found the result of a job, which is not read yet."""
        return not self.retries and job not in self.reads and job in self.listed.get(step, {})

    def unread(self, step: str, jobs: Sequence[str], *, several: bool) -> Iterator[str]:
        """The jobs of a step whose results are to be read, after a LIST where it has several."""
        if not several:
            yield from (job for job in jobs if job not in self.reads)
            return
        listed = self.listed.get(step, {})
        fresh = [
            job
            for job in jobs
            if job in listed and (job not in self.reads or self.reads[job].etag != listed[job])
        ]
        if self.retries or all(job in listed for job in jobs):
            yield from fresh
        else:
            yield from (job for job in fresh if job in self.hints)


_NONE = frozenset[str]()


class Wanted(Value):
    """The objects to read next; empty = the fold has all that it needs."""

    jobs: tuple[tuple[str, str], ...] = ()  #: step and job: one GET of a result each
    lists: tuple[str, ...] = ()  #: steps: one LIST of results each

    def __bool__(self) -> bool:
        return bool(self.jobs or self.lists)


def list_prefix(run: str, step: str) -> str:
    """The keys of the results of a step's jobs begin so."""
    return f"results/{step_jobs(run, step)}"


def after(steps: Sequence[WorkflowStep], first: str) -> frozenset[str]:
    """A step, and all that it feeds, directly or through others."""
    found = {first}
    for step in steps:  # every step comes after those that feed it
        if any(feed.step in found for feed in step.feeds):
            found.add(step.name)
    return frozenset(found)

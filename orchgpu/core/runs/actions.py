"""The actions of runs, as imperatives. Each may be repeated, and by several replicas at once."""

from __future__ import annotations

from contract.states import Reason
from corekit.values import Value
from gpu_scheduler.promises import Slo
from orchgpu.core.promised import Promised
from orchgpu.core.runs.messages import JobFacts
from orchgpu.core.runs.records import Inputs, RunResult
from orchgpu.core.runs.workflow import Workflow


class RunAction(Value):
    run: str


class Admit(RunAction):
    """Request the promise of the run, and store the answer: its steps begin after that alone."""

    workflow: Workflow  #: as it is frozen
    slo: Slo
    retries: int
    begun_at_s: float  #: wall clock: from then on its latency counts
    done: frozenset[str]  #: steps that have ended already


class WaiveSteps(RunAction):
    """End the bookings of steps that are skipped; the rest of the run is promised as before."""

    promise: str
    jobs: tuple[str, ...]


class StartStep(RunAction):
    """Store the list of files, if it has one; send the jobs; then mark the step as started."""

    step: str
    retries: int
    inputs: Inputs | None
    #: The bodies of its jobs' messages, for the queue of its function. The job of a list of files
    #: is pinned to what is stored: `machine.list_body` makes its body then.
    bodies: tuple[str, ...]
    facts: JobFacts
    run_bucket: str = ""  #: see `StepOf.run_bucket`


class ClosedJob(Value):
    """A job that ends because its run does."""

    job: str
    replace_etag: str | None  #: of the result that a retry made void


class CloseJobs(RunAction):
    """Commit a CANCELLED result for each job that has none; then end what it holds.

    A job whose function was removed has no place for a result: only what it holds is ended.
    """

    step: str
    jobs: tuple[ClosedJob, ...]
    reason: Reason
    detail: str


class ResendLost(RunAction):
    """Send the jobs of a started step again whose messages were lost: without result or record."""

    step: str
    jobs: tuple[str, ...]  #: without a result; those of `start.bodies`, in their order
    start: StartStep


class EndRun(RunAction):
    """End the promise of the run, if it has one; then store its result."""

    result: RunResult
    promise: str  #: its name; "" = none
    promised: Promised | None  #: what became of it
    replace_etag: str | None

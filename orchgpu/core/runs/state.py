"""The state of a run, folded from what was read of it. Deterministic: equal facts, equal state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum

from contract.record import JsonObject
from contract.result import Result
from contract.run import FILES_MAX, part_of, step_job_id
from contract.states import JobState, Reason, RunState, StepState
from corekit.conditions import DOCUMENT, ConditionFailed, holds
from corekit.values import Value, replace
from orchgpu.core.runs.facts import Facts, Wanted
from orchgpu.core.runs.records import InputFile, local_names
from orchgpu.core.runs.workflow import Feed, Workflow, WorkflowStep


class StepJob(Value):
    """One job of a step."""

    id: str
    part: str  #: "" for the one job of a step
    files: tuple[InputFile, ...]
    result: Result | None = None  #: that counts
    ended: bool = False  #: it has a result that counts, read or not


class Step(Value):
    """One step of a run."""

    name: str
    state: StepState
    jobs: tuple[StepJob, ...] = ()  #: empty until all its files are known
    reason: Reason = Reason.NONE
    detail: str = ""

    @property
    def open_jobs(self) -> tuple[StepJob, ...]:
        return tuple(job for job in self.jobs if not job.ended)

    @property
    def ended_at_s(self) -> float:
        return max((job.result.ended_at_s for job in self.jobs if job.result), default=0.0)


class Stop(StrEnum):
    """The reason why nothing of a run starts any more; the first that holds counts."""

    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    MAX_COST = "MAX_COST"
    REFUSED = "REJECTED"


class Run(Value):
    """The state of a run."""

    id: str
    state: RunState
    steps: Mapping[str, Step]  #: in the order of the workflow
    reason: Reason = Reason.NONE
    detail: str = ""
    stop: Stop | None = None
    wanted: Wanted = Wanted()  #: the state is that of what was read; this is missing

    @property
    def cost_usd(self) -> float:
        """Of the results that count, where they state it: `Workflow.counts_cost`."""
        return _cost_usd(self.steps)

    def left_usd(self, workflow: Workflow) -> float | None:
        """The cap of each job that starts now; None = the run has none."""
        cap = workflow.max_cost_usd
        return None if cap is None else max(0.0, cap - self.cost_usd)

    def left(self, workflow: Workflow) -> Iterator[InputFile]:
        """The files of the run: what steps wrote that are DONE, and no other step takes."""
        feeds = [feed for step in workflow.steps for feed in step.feeds]
        for step in self.steps.values():
            if step.state is StepState.DONE:
                of_step = [feed for feed in feeds if feed.step == step.name]
                for result in _succeeded(step):
                    takers = [feed for feed in of_step if _open(feed, result)]
                    yield from (
                        file
                        for file in _files(step.name, result)
                        if not any(feed.takes(file.bucket, file.key) for feed in takers)
                    )


def _open(feed: Feed, result: Result) -> bool:
    """Whether a feed passes the files of a result on; one without an answer keeps them too."""
    try:
        return _passes(feed, result)
    except ConditionFailed:
        return True


def _passes(feed: Feed, result: Result) -> bool:
    """Raises ConditionFailed where the condition is neither true nor false."""
    if not feed.when:
        return True
    return holds(feed.when, {name: getattr(result, name) for name in DOCUMENT})


_SUCCESS = (JobState.SUCCEEDED,)
_CANCELLED = (JobState.CANCELLED,)
_STOPPED = {
    Stop.FAILED: (Reason.RUN_ENDED, "another step of its run failed"),
    Stop.CANCELLED: (Reason.CANCELLED_BY_USER, "its run was cancelled"),
    Stop.DEADLINE: (Reason.DEADLINE, "the deadline of its run passed"),
    Stop.MAX_COST: (Reason.MAX_COST, "its run has cost as much as it may"),
    Stop.REFUSED: (Reason.RUN_ENDED, "the promise of its run was refused"),
}


_OF_REASON = {Reason.DEADLINE.value: Stop.DEADLINE, Reason.MAX_COST.value: Stop.MAX_COST}


def state_of(facts: Facts) -> Run:
    """Fold: the steps in order, each from those before; then what ends the run."""
    steps: dict[str, Step] = {}
    for step in facts.frozen.workflow.steps:
        steps[step.name] = _folded(facts, step, steps)
    stop = _stop(facts, steps)
    if stop is Stop.REFUSED:
        steps = {name: _never_began(step) for name, step in steps.items()}
    elif stop is not None:
        steps = {name: _stopped(step, stop) for name, step in steps.items()}
    state, reason, detail = _ended(facts, steps, stop)
    return Run(
        id=facts.run,
        state=state,
        steps=steps,
        reason=reason,
        detail=detail,
        stop=stop,
        wanted=_wanted(facts, steps, stop),
    )


# ---------------------------------------------------------------------- one step


def _folded(facts: Facts, step: WorkflowStep, before: Mapping[str, Step]) -> Step:
    feeders = [before[feed.step] for feed in step.feeds]
    lost = [one for one in feeders if one.state in (StepState.FAILED, StepState.CANCELLED)]
    if lost:
        detail = f"step {lost[0].name}, which feeds it, is {lost[0].state}"
        reason = Reason.RUN_ENDED
        return Step(name=step.name, state=StepState.CANCELLED, reason=reason, detail=detail)
    if not all(one.state.terminal for one in feeders):
        return Step(name=step.name, state=StepState.BLOCKED)
    try:
        files = files_for(facts, step, before)
    except ConditionFailed as error:
        reason, detail = Reason.CONDITION_ERROR, f"`when` of its input: {error}"
        return Step(name=step.name, state=StepState.FAILED, reason=reason, detail=detail)
    if not files:
        return Step(name=step.name, state=StepState.SKIPPED)
    if step.name in facts.gone:
        detail = f"function {step.name} is not deployed any more"
        reason = Reason.UNKNOWN_FUNCTION
        failed = Step(name=step.name, state=StepState.FAILED, reason=reason, detail=detail)
        sent = (len(facts.retries), step.name) in facts.started
        return replace(failed, jobs=tuple(_jobs(facts, step, files))) if sent else failed
    if len(files) > FILES_MAX:
        detail = f"step {step.name} would get {len(files):,} files; at most {FILES_MAX:,} can be"
        reason, detail = Reason.TOO_MANY_FILES, f"{detail} delivered: pack them into fewer"
        return Step(name=step.name, state=StepState.FAILED, reason=reason, detail=detail)
    return _of_jobs(facts, step, tuple(_jobs(facts, step, files)))


def files_for(
    facts: Facts, step: WorkflowStep, before: Mapping[str, Step]
) -> tuple[InputFile, ...]:
    """The files that a step gets: the input of the run, or those of its feeders' results.

    Raises ConditionFailed.
    """
    if not step.feeds:
        source = facts.frozen.input
        name = source.key.rsplit("/", 1)[-1]
        return (
            InputFile(
                step="",
                bucket=source.bucket,
                key=source.key,
                version=source.version_id,
                etag=source.etag,
                size=source.size,
                name=name,
            ),
        )
    found: dict[tuple[str, str, str], tuple[InputFile, str]] = {}
    for feed in step.feeds:
        for result in _succeeded(before[feed.step]):
            if not _passes(feed, result):
                continue
            for file in _files(feed.step, result):
                if feed.takes(file.bucket, file.key):
                    found.setdefault((file.bucket, file.key, file.pin), (file, feed.prefix))
    return local_names(found.values())


def _succeeded(step: Step) -> Iterator[Result]:
    """The results of a step whose files count, in the order of its jobs."""
    for job in step.jobs:
        if job.result is not None and job.result.state == JobState.SUCCEEDED:
            yield job.result


def _files(step: str, result: Result) -> Iterator[InputFile]:
    return (_written(step, file) for file in result.files)


def _written(step: str, file: JsonObject) -> InputFile:
    """A file as a result names it; results come from functions, so each field is checked."""
    version, etag, size = file.get("version"), file.get("etag"), file.get("size")
    key = str(file.get("key", ""))
    return InputFile(
        step=step,
        bucket=str(file.get("bucket", "")),
        key=key,
        version=version if isinstance(version, str) and version not in ("", "null") else None,
        etag=etag.strip('"') if isinstance(etag, str) else "",
        size=size if type(size) is int and size >= 0 else 0,
        name=key.rsplit("/", 1)[-1],
    )


def _jobs(facts: Facts, step: WorkflowStep, files: tuple[InputFile, ...]) -> Iterator[StepJob]:
    if not step.each or not step.feeds:
        yield _job(facts, step.name, "", files)
        return
    for file in files:
        yield _job(facts, step.name, part_of(file.bucket, file.key, file.pin), (file,))


def _job(facts: Facts, step: str, part: str, files: tuple[InputFile, ...]) -> StepJob:
    job = step_job_id(facts.run, step, part)
    result = facts.result_of(step, job)
    ended = result is not None or facts.unread_end(step, job)
    return StepJob(id=job, part=part, files=files, result=result, ended=ended)


def _of_jobs(facts: Facts, step: WorkflowStep, jobs: tuple[StepJob, ...]) -> Step:
    """READY or STARTED until every job has a result."""
    results = [job.result for job in jobs if job.result is not None]
    failed = next((one for one in results if one.state not in (*_SUCCESS, *_CANCELLED)), None)
    cancelled = next((one for one in results if one.state in _CANCELLED), None)
    worst = failed or cancelled
    if len(results) < len(jobs):
        sent = (len(facts.retries), step.name) in facts.started
        state = StepState.STARTED if sent else StepState.READY
    elif worst is None:
        return Step(name=step.name, state=StepState.DONE, jobs=jobs)
    else:
        state = StepState.FAILED if failed else StepState.CANCELLED
    reason, detail = _why(worst) if worst is not None else (Reason.NONE, "")
    return Step(name=step.name, state=state, jobs=jobs, reason=reason, detail=detail)


def _why(result: Result) -> tuple[Reason, str]:
    try:
        return Reason(result.reason), result.detail
    except ValueError:  # of a newer version
        return Reason.FUNCTION_ERROR, result.detail


# ---------------------------------------------------------------------- the whole


def _stop(facts: Facts, steps: Mapping[str, Step]) -> Stop | None:
    results = [job.result for step in steps.values() for job in step.jobs if job.result]
    failed = any(one.state not in (*_SUCCESS, *_CANCELLED) for one in results)
    if failed or any(step.state is StepState.FAILED for step in steps.values()):
        return Stop.FAILED
    for result in results:  # what others wrote, or this one before it died
        if result.state in _CANCELLED:
            return _OF_REASON.get(result.reason, Stop.CANCELLED)
    if all(step.state.terminal for step in steps.values()):
        return None  # too late to end it otherwise
    if facts.admission is not None and not facts.admission.granted:
        return Stop.REFUSED
    if facts.cancelled is not None:
        return Stop.CANCELLED
    cap = facts.frozen.workflow.max_cost_usd
    if cap is not None and _cost_usd(steps) >= cap:
        return Stop.MAX_COST
    deadline_at_s = facts.deadline_at_s()
    return Stop.DEADLINE if deadline_at_s is not None and facts.wall_s >= deadline_at_s else None


def _cost_usd(steps: Mapping[str, Step]) -> float:
    """Results come from functions, so what one states is checked."""
    stated = [job.result.cost_usd for step in steps.values() for job in step.jobs if job.result]
    return sum(one for one in stated if isinstance(one, int | float) and 0 <= one < math.inf)


def _stopped(step: Step, stop: Stop) -> Step:
    """A step that waits for others never starts; the open jobs of one that may run are ended."""
    if step.state is not StepState.BLOCKED:
        return step
    reason, detail = _STOPPED[stop]
    return replace(step, state=StepState.CANCELLED, reason=reason, detail=detail)


def _never_began(step: Step) -> Step:
    """A step of a run that was refused; one that ended before a retry stays as it is."""
    if step.state.terminal:
        return step
    reason, detail = _STOPPED[Stop.REFUSED]
    return Step(name=step.name, state=StepState.SKIPPED, reason=reason, detail=detail)


def stopped_reason(stop: Stop) -> tuple[Reason, str]:
    """The reason and the sentence of a job that ends because its run does."""
    return _STOPPED[stop]


def _ended(
    facts: Facts, steps: Mapping[str, Step], stop: Stop | None
) -> tuple[RunState, Reason, str]:
    if not all(step.state.terminal for step in steps.values()):
        return RunState.RUNNING, Reason.NONE, ""
    if stop is None:
        return RunState.SUCCEEDED, Reason.NONE, ""
    if stop is Stop.REFUSED and facts.admission is not None:
        return RunState.REJECTED, facts.admission.reason, facts.admission.why
    states = [StepState.FAILED] if stop is Stop.FAILED else [StepState.CANCELLED]
    first = next(step for step in steps.values() if step.state in states)
    detail = f"step {first.name}: {first.detail}" if first.detail else f"step {first.name}"
    reason = _STOPPED[stop][0] if stop is not Stop.FAILED else first.reason
    state = RunState.FAILED if stop is Stop.MAX_COST else RunState(stop.value)
    return state, reason, detail


def _wanted(facts: Facts, steps: Mapping[str, Step], stop: Stop | None) -> Wanted:
    jobs: list[tuple[str, str]] = []
    lists: list[str] = []
    for step in facts.frozen.workflow.steps:
        folded = steps[step.name]
        if step.name in facts.gone:
            continue  # the place of its results is not known any more
        if stop is None and not facts.may_have_results(step.name):
            continue  # before its start none is expected, and a job that is sent twice ends once
        several = step.each and bool(step.feeds)
        if several and folded.jobs and step.name not in facts.listed:
            lists.append(step.name)
            continue
        ids = [job.id for job in folded.jobs]
        jobs += [(step.name, job) for job in facts.unread(step.name, ids, several=several)]
    return Wanted(jobs=tuple(jobs), lists=tuple(lists))

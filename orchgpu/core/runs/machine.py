"""The next actions of a run. Pure: the facts in, actions out; any replica may perform them."""

from __future__ import annotations

from collections.abc import Iterator

from contract.run import FILES_MAX, inputs_key
from contract.states import StepState
from orchgpu.core.routing import StepOf
from orchgpu.core.runs.actions import (
    ClosedJob,
    CloseJobs,
    EndRun,
    ResendLost,
    RunAction,
    StartStep,
)
from orchgpu.core.runs.facts import Facts
from orchgpu.core.runs.messages import step_body
from orchgpu.core.runs.records import EndedStep, InputFile, Inputs, RunResult
from orchgpu.core.runs.state import Run, Step, StepJob, stopped_reason


def next_actions(facts: Facts, run: Run, *, patrol: bool = False) -> tuple[RunAction, ...]:
    """The actions of a run whose facts are complete (`run.wanted` is empty).

    `patrol`: also look for jobs whose messages were lost. Nothing comes next while jobs run, and
    once the run has ended.
    """
    if facts.stands:
        return ()
    assert not run.wanted, "actions follow from complete facts"
    if run.state.terminal:
        return (*_unknown(facts, run), _end(facts, run))
    if run.stop is not None:
        return tuple(_closed(facts, run))
    return tuple(_started(facts, run, patrol=patrol))


def _started(facts: Facts, run: Run, *, patrol: bool) -> Iterator[RunAction]:
    for step in run.steps.values():
        if step.state is StepState.READY:
            yield _start(facts, step)
        elif step.state is StepState.STARTED and patrol:
            jobs = tuple(job.id for job in step.open_jobs)
            yield ResendLost(run=run.id, step=step.name, jobs=jobs, start=_start(facts, step))


def _start(facts: Facts, step: Step) -> StartStep:
    jobs = step.open_jobs
    listed = jobs[0].files if len(jobs) == 1 and len(jobs[0].files) > 1 else None
    retries, dead_at_s = len(facts.retries), facts.retried_at_s
    inputs = None
    if listed is not None:
        inputs = Inputs(
            run=facts.run,
            workflow=facts.frozen.workflow.name,
            step=step.name,
            retry=retries,
            files=listed,
        )
    return StartStep(
        run=facts.run,
        step=step.name,
        retries=retries,
        inputs=inputs,
        bodies=() if inputs else tuple(_body(facts, step, job) for job in jobs),
        dead_at_s=dead_at_s,
        stored_at_s=facts.frozen.stored_at_s,
    )


def _body(facts: Facts, step: Step, job: StepJob) -> str:
    file = job.files[0]
    of = StepOf(
        run=facts.run,
        workflow=facts.frozen.workflow.name,
        step=step.name,
        part=job.part,
        feeder=file.step,
    )
    return step_body(of, file, facts.frozen.stored_at_s, facts.retried_at_s)


def _closed(facts: Facts, run: Run) -> Iterator[RunAction]:
    assert run.stop is not None, "jobs are closed when their run stops"
    reason, detail = stopped_reason(run.stop)
    for step in run.steps.values():
        if step.state.terminal or not step.open_jobs:
            continue
        jobs = tuple(
            ClosedJob(job=job.id, replace_etag=_void_etag(facts, job.id)) for job in step.open_jobs
        )
        yield CloseJobs(run=run.id, step=step.name, jobs=jobs, reason=reason, detail=detail)


def _unknown(facts: Facts, run: Run) -> Iterator[RunAction]:
    """Jobs whose function was removed: they have no place for a result, and hold devices."""
    for step in run.steps.values():
        jobs = tuple(ClosedJob(job=job.id, replace_etag=None) for job in step.open_jobs)
        if jobs and step.name in facts.gone:
            reason, detail = step.reason, step.detail
            yield CloseJobs(run=run.id, step=step.name, jobs=jobs, reason=reason, detail=detail)


def _void_etag(facts: Facts, job: str) -> str | None:
    read = facts.reads.get(job)
    return None if read is None or read.result is None else read.etag


def _end(facts: Facts, run: Run) -> EndRun:
    files = tuple(run.left(facts.frozen.workflow))
    result = RunResult(
        run=run.id,
        workflow=facts.frozen.workflow.name,
        state=run.state,
        reason=run.reason.value,
        detail=run.detail,
        retries=len(facts.retries),
        started_at_s=facts.frozen.stored_at_s,
        ended_at_s=facts.wall_s,
        steps=tuple(
            EndedStep(
                name=step.name,
                state=step.state,
                reason=step.reason.value,
                detail=step.detail,
                jobs=len(step.jobs),
                ended_at_s=step.ended_at_s,
            )
            for step in run.steps.values()
        ),
        files=files[:FILES_MAX],
        files_left_out=max(0, len(files) - FILES_MAX),
    )
    return EndRun(run=run.id, result=result, replace_etag=facts.ended_etag or None)


def list_body(start: StartStep, *, bucket: str, etag: str, version: str | None, size: int) -> str:
    """The message of the job that gets a list of files, once the list is stored there."""
    assert start.inputs is not None, "the step has a list of files"
    file = InputFile(
        step="",
        bucket=bucket,
        key=inputs_key(start.run, start.step),
        version=version,
        etag=etag,
        size=size,
    )
    of = StepOf(run=start.run, workflow=start.inputs.workflow, step=start.step)
    return step_body(of, file, start.stored_at_s, start.dead_at_s)

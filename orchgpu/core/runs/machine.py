"""The next actions of a run. Pure: the facts in, actions out; any replica may perform them."""

from __future__ import annotations

from collections.abc import Iterator

from contract.run import FILES_MAX, inputs_key, step_job_id
from contract.states import StepState
from orchgpu.core.promised import promised
from orchgpu.core.promises import promise_name
from orchgpu.core.routing import StepOf
from orchgpu.core.runs.actions import (
    Admit,
    ClosedJob,
    CloseJobs,
    EndRun,
    ResendLost,
    RunAction,
    StartStep,
    WaiveSteps,
)
from orchgpu.core.runs.facts import Facts
from orchgpu.core.runs.messages import JobFacts, step_body
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
    if facts.unadmitted:
        return (_admit(facts, run),)
    return tuple(_started(facts, run, patrol=patrol))


def waived_steps(facts: Facts, run: Run) -> tuple[WaiveSteps, ...]:
    """The bookings of a promised run that its skipped steps do not need. To be repeated freely."""
    if facts.stands or facts.admission is None or not facts.admission.granted:
        return ()
    booked = {step.name for step in facts.admission.steps}
    skipped = [one for one in run.steps.values() if one.state is StepState.SKIPPED]
    jobs = tuple(step_job_id(run.id, one.name) for one in skipped if one.name in booked)
    name = promise_name(run.id, len(facts.retries))
    return (WaiveSteps(run=run.id, promise=name, jobs=jobs),) if jobs else ()


def _admit(facts: Facts, run: Run) -> Admit:
    workflow = facts.frozen.workflow
    assert workflow.slo is not None, "a run without objectives needs no promise"
    return Admit(
        run=run.id,
        workflow=workflow,
        slo=workflow.slo,
        retries=len(facts.retries),
        begun_at_s=facts.begun_at_s,
        done=frozenset(step.name for step in run.steps.values() if step.state.terminal),
    )


def _started(facts: Facts, run: Run, *, patrol: bool) -> Iterator[RunAction]:
    for step in run.steps.values():
        if step.state is StepState.READY:
            yield _start(facts, run, step)
        elif step.state is StepState.STARTED and patrol:
            jobs = tuple(job.id for job in step.open_jobs)
            yield ResendLost(run=run.id, step=step.name, jobs=jobs, start=_start(facts, run, step))


def _start(facts: Facts, run: Run, step: Step) -> StartStep:
    jobs, retries = step.open_jobs, len(facts.retries)
    listed = jobs[0].files if len(jobs) == 1 and len(jobs[0].files) > 1 else None
    inputs = None
    if listed is not None:
        inputs = Inputs(
            run=facts.run,
            workflow=facts.frozen.workflow.name,
            step=step.name,
            retry=retries,
            files=listed,
        )
    given = _job_facts(facts, run, step)
    return StartStep(
        run=facts.run,
        step=step.name,
        retries=retries,
        inputs=inputs,
        bodies=() if inputs else tuple(_body(facts, step, job, given) for job in jobs),
        facts=given,
        run_bucket=facts.frozen.metadata_bucket,
    )


def _job_facts(facts: Facts, run: Run, step: Step) -> JobFacts:
    left_usd = run.left_usd(facts.frozen.workflow)
    if left_usd is not None:  # parts are read once all have ended, so none may spend it all
        left_usd /= max(1, len(step.open_jobs))
    return JobFacts(
        stored_at_s=facts.frozen.stored_at_s,
        dead_at_s=facts.retried_at_s,
        ready_at_s=_ready_at_s(facts, run, step),
        max_cost_usd=left_usd,
        counts_cost=facts.frozen.workflow.counts_cost,
    )


def _ready_at_s(facts: Facts, run: Run, step: Step) -> float:
    """Wall clock: the last of the steps before it had ended, and the run was promised."""
    of = next(one for one in facts.frozen.workflow.steps if one.name == step.name)
    ends_s = [run.steps[feed.step].ended_at_s for feed in of.feeds]
    begun_at_s = facts.begun_at_s if facts.admission is None else facts.admission.at_s
    return max(begun_at_s, *ends_s) if ends_s else begun_at_s


def _body(facts: Facts, step: Step, job: StepJob, given: JobFacts) -> str:
    file = job.files[0]
    of = StepOf(
        run=facts.run,
        workflow=facts.frozen.workflow.name,
        step=step.name,
        part=job.part,
        feeder=file.step,
        run_bucket=facts.frozen.metadata_bucket,
    )
    return step_body(of, file, given)


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
        cost_usd=round(run.cost_usd, 9) if facts.frozen.workflow.counts_cost else None,
        files_left_out=max(0, len(files) - FILES_MAX),
    )
    slo, etag = facts.frozen.workflow.slo, facts.ended_etag or None
    if slo is None:
        return EndRun(run=run.id, result=result, promise="", promised=None, replace_etag=etag)
    return EndRun(
        run=run.id,
        result=result,
        promise=promise_name(run.id, result.retries),
        promised=promised(
            slo,
            max(0.0, result.ended_at_s - facts.begun_at_s),
            result.state.value,
            result.reason,
            result.cost_usd,
        ),
        replace_etag=etag,
    )


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
    of = StepOf(
        run=start.run,
        workflow=start.inputs.workflow,
        step=start.step,
        run_bucket=start.run_bucket,
        files_text=start.inputs.text,
    )
    return step_body(of, file, start.facts)

"""Runs of workflows: those of one workflow, one with its steps over its graph; cancel and retry."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from contract.run import RUN_ID
from contract.states import StepState
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.run_jobs import Records, SeenStep, records_of, steps_of, unread_jobs
from orchgpu.jobs.runs import SeenRun, cancel_run, find_run, newest_runs, retry_run
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.security import Visit, visit_of

ROUTES = web.RouteTableDef()

#: Runs of one answer, the newest ones.
RUNS_MAX = 20
#: Runs whose facts are kept.
FACTS_MAX = 32
#: Jobs of a step in the answer about a run.
JOBS_MAX = 200


class RunSummary(Value):
    """A run in a list. Times are of the wall clock."""

    run: str
    state: str
    reason: str
    bucket: str
    key: str  #: of its input
    began_s: float  #: its input was stored
    ended_s: float | None
    steps: int
    steps_ended: int
    running: tuple[str, ...]  #: steps that have begun and not ended


def summary_of_run(seen: SeenRun) -> RunSummary:
    steps, ended = seen.state.steps.values(), seen.facts.ended
    return RunSummary(
        run=seen.id,
        state=seen.state.state.value,
        reason=seen.state.reason.value,
        bucket=seen.facts.frozen.input.bucket,
        key=seen.facts.frozen.input.key,
        began_s=seen.facts.frozen.stored_at_s,
        ended_s=ended.ended_at_s if ended is not None and seen.over else None,
        steps=len(steps),
        steps_ended=seen.steps_ended,
        running=tuple(step.name for step in steps if step.state is StepState.STARTED),
    )


def run_story(seen: SeenRun, records: Records, viewer: KeyRights) -> dict[str, object]:
    """A run with its steps, their jobs, and the edges between them."""
    now_s = seen.facts.wall_s
    return {
        **encode(summary_of_run(seen)),
        "workflow": seen.workflow.name,
        "detail": seen.state.detail,
        "promise": None if seen.promised is None else seen.promised.sentence,
        "tries": len(seen.facts.retries) + 1,
        "now_s": now_s,
        "steps": [_step(step, now_s) for step in steps_of(seen, records)],
        "edges": [
            {"from": feed.step, "to": step.name}
            for step in seen.workflow.steps
            for feed in step.feeds
        ],
        "files": [{"bucket": one.bucket, "key": one.key, "bytes": one.size} for one in seen.files],
        "may_change": viewer.role is not KeyRole.READER,
    }


def _step(shown: SeenStep, now_s: float) -> dict[str, object]:
    step = shown.step
    return {
        "name": shown.name,
        "state": step.state.value,
        "reason": step.reason.value,
        "detail": step.detail,
        "device": shown.devices,
        "seconds": shown.seconds(now_s),
        "ended": shown.ended,
        "count": len(shown.jobs),
        "jobs": [
            {
                "job": seen.id,
                "state": seen.state,
                "device": seen.device,
                "start_s": seen.start_s,
                "end_s": seen.end_s,
                "key": job.files[0].key,
                "files": len(job.files),
            }
            for job, seen in zip(step.jobs[:JOBS_MAX], shown.jobs[:JOBS_MAX], strict=True)
        ],
    }


@ROUTES.get("/api/workflows/{name}/runs")
async def runs(request: web.Request) -> web.Response:
    """The newest runs of a workflow, the newest first."""
    visit, name = await visit_of(request), request.match_info["name"]

    def read(cloud: JobCloud) -> list[RunSummary]:
        workflow = cloud.workflow(name)
        if workflow is None:
            raise AppError(ErrorCode.NOT_FOUND, f"no workflow {name!r:.80} is deployed here")
        require_workflow(visit.viewer, workflow, cloud.functions())
        return [summary_of_run(seen) for seen in newest_runs(cloud, workflow, RUNS_MAX)]

    return answered({"items": await visit.ask_cloud(read)})


@ROUTES.get("/api/runs/{run}")
async def run(request: web.Request) -> web.Response:
    visit = await visit_of(request)
    seen = await _seen(visit, request)
    jobs = unread_jobs(seen)

    async def ask(client: SchedulerClient) -> dict[str, Record]:
        return await records_of(client, jobs)

    records = await visit.console.scheduler.ask(visit.session.key, ask) if jobs else {}
    return answered(run_story(seen, records, visit.viewer))


@ROUTES.post("/api/runs/{run}/cancel")
async def cancel(request: web.Request) -> web.Response:
    """Ask for the end of a run. Raises CONFLICT for one that ended otherwise."""
    visit = await visit_of(request)
    await body_of(request, {})
    visit.viewer.require(KeyRole.REQUESTER, "a cancel of a run")
    seen = await _seen(visit, request)
    who = f"{visit.viewer.name!r} in the console" if visit.viewer.name else "the console"
    await visit.ask_cloud(lambda cloud: cancel_run(cloud, seen, f"cancelled by {who}"))
    return answered({"run": seen.id})


@ROUTES.post("/api/runs/{run}/retry")
async def retry(request: web.Request) -> web.Response:
    """Run what failed again. Raises CONFLICT while the run is not over, INVALID for a success."""
    visit = await visit_of(request)
    await body_of(request, {})
    visit.viewer.require(KeyRole.REQUESTER, "a retry of a run")
    seen = await _seen(visit, request)
    await visit.ask_cloud(lambda cloud: retry_run(cloud, seen))
    return answered({"run": seen.id})


async def _seen(visit: Visit, request: web.Request) -> SeenRun:
    """The run, for a viewer of all its functions. Raises NOT_FOUND, DENIED."""
    named = request.match_info["run"]
    if not RUN_ID.fullmatch(named):
        raise AppError(ErrorCode.NOT_FOUND, f"{named!r:.60} is not the id of a run")

    def read(cloud: JobCloud) -> SeenRun:
        seen = find_run(cloud, named, before)
        require_workflow(visit.viewer, seen.workflow, cloud.functions())
        return seen

    facts = visit.console.run_facts
    before = facts.get(named)
    seen = await visit.ask_cloud(read)
    facts.pop(named, None)
    facts[named] = seen.facts
    while len(facts) > FACTS_MAX:
        del facts[next(iter(facts))]
    return seen


def require_workflow(viewer: KeyRights, workflow: Workflow, deployed: Sequence[Function]) -> None:
    """Raise DENIED unless the viewer may read every function of a workflow."""
    functions = {one.name: one for one in deployed}
    for step in workflow.steps:
        if step.name in functions:
            viewer.require_function(functions[step.name])
        elif not viewer.sees_all:
            raise viewer.denied(f"function {step.name} is not deployed any more")

"""Deployed functions: settings, the workflow around each, revisions; roll back and upload."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

from contract.run import run_id
from corekit.errors import ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.keys import KeyRole
from gpu_scheduler.request_text import request_text
from gpu_scheduler.warm import workload_key
from orchgpu.cloud_services import Address
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.deploy.deployment import execute, prepare_rollback
from orchgpu.deploy.ports import ScheduleState
from orchgpu.deploy.revisions import Revision
from orchgpu.jobs.cloud import DirectFunction, JobCloud
from orchgpu.jobs.provider import provider
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.schedules import next_run_s
from orchgpu.jobs.uploaded import input_key
from orchgpu.ports import Tolerating
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.security import visit_of
from orchgpu.web.http.uploads import Upload, body_pieces, check_size
from orchgpu.web.shared_answers import label_key

ROUTES = web.RouteTableDef()

#: Bucket and prefix, which has no trailing slash.
Place: TypeAlias = tuple[str, str]


class Node(Value):
    """A function or a place of objects in a workflow."""

    id: str
    kind: str  #: function or place
    label: str
    device: str = ""  #: of a function: what its jobs request


class Edge(Value, rename={"source": "from", "target": "to"}):
    """Objects at `source` start `target`, or `source` writes them to `target`."""

    source: str
    target: str


class WorkflowGraph(Value):
    """A workflow as nodes and edges."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class Step(Value):
    """A deployed function as a step of a workflow."""

    name: str
    device: str  #: what its jobs request
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


@ROUTES.get("/api/functions")
async def functions(request: web.Request) -> web.Response:
    """All functions that the viewer sees, by name, with the numbers of their jobs."""
    visit = await visit_of(request)
    viewer, labels = visit.viewer, await visit.console.workloads.labels()

    def seen(cloud: JobCloud) -> list[dict[str, object]]:
        with_jobs = (one for one in cloud.functions() if viewer.sees_function(one))
        plain = (_plain_summary(cloud, one) for one in plain_functions(cloud, viewer))
        return [*(_summary(one, labels) for one in with_jobs), *plain]

    found = sorted(await visit.ask_cloud(seen), key=lambda one: str(one["name"]))
    jobs = visit.console.picture.jobs.functions()
    return answered({"items": [{**one, "jobs": jobs.get(str(one["name"]), 0)} for one in found]})


@ROUTES.get("/api/functions/{name}")
async def function(request: web.Request) -> web.Response:
    visit, name = await visit_of(request), request.match_info["name"]
    return answered(await visit.ask_cloud(lambda cloud: _function(cloud, visit.viewer, name)))


@ROUTES.post("/api/functions/{name}/rollback")
async def roll_back(request: web.Request) -> web.Response:
    """Restore a revision of a function, as `orchgpu rollback` does. For operators."""
    visit, name = await visit_of(request), request.match_info["name"]
    revision = (await body_of(request, {"revision": int}))["revision"]
    assert isinstance(revision, int), "as `body_of` checked"

    def restored(cloud: JobCloud) -> dict[str, object]:
        visit.viewer.require(KeyRole.OPERATOR, "a roll back")
        cloud.function(name)
        with provider().deploy_cloud(Address(), Address()) as target:
            target.guard(True)  # the operator confirmed it in the page
            prepared = prepare_rollback(name, revision, target.cloud)
            execute(prepared, target.cloud, lambda _number, _count, _step: None)
        return {"function": name, "note": prepared.note, "steps": len(prepared.plan.steps)}

    return answered(await visit.ask_cloud(restored))


@ROUTES.put("/api/functions/{name}/files/{file}")
async def upload(request: web.Request) -> web.Response:
    """Store a file as an input of a function, which starts a job."""
    visit, name = await visit_of(request), request.match_info["name"]
    check_size(request.content_length)

    def uploadable(cloud: JobCloud) -> Function | Workflow:
        visit.viewer.require(KeyRole.REQUESTER, "an upload")
        found = cloud.function(name)
        visit.viewer.require_function(found)
        workflow = workflow_of(cloud, name)
        if workflow is not None and not _is_first(workflow, name):
            text = f"{name} is a step within workflow {workflow.name}: an upload starts nothing"
            raise invalid(f"{text}; upload to {workflow.steps[0].name}")
        return workflow or found

    target = await visit.ask_cloud(uploadable)
    received = Upload(request.match_info["file"])
    try:
        await received.receive(body_pieces(request))
        started = await visit.ask_cloud(lambda cloud: _stored(cloud, target, received.file))
    finally:
        received.remove()
    return answered({**started, "bucket": target.input_bucket, "function": name}, status=201)


def _stored(cloud: JobCloud, target: Function | Workflow, file: Path) -> dict[str, str]:
    """Upload an input; the key, and the job or the run that it starts."""
    if isinstance(target, Function):
        stored = cloud.submit(target, file, now_s=time.time())
        return {"job": stored.job_ids[0], "key": stored.key}
    head, key = cloud.upload_input(target, file), input_key(target, file)
    return {"run": run_id(target.input_bucket, key, head.versions[0], target.name), "key": key}


def _function(cloud: JobCloud, viewer: KeyRights, name: str) -> dict[str, object]:
    """One function with its workflow and its revisions, newest first. Raises NOT_FOUND, DENIED."""
    plain = cloud.direct(name)
    if plain is None:
        viewer.require_function(cloud.function(name))
    elif not _sees_plain(viewer):
        raise viewer.denied(f"function {name} belongs to no tenant")
    workflow = workflow_of(cloud, name)
    steps = [_step(one) for one in cloud.functions() if viewer.sees_function(one)]
    steps += [_plain_step(cloud, one) for one in plain_functions(cloud, viewer)]
    with provider().deploy_cloud(Address(), Address()) as target:
        revisions = target.cloud.revisions(name)[::-1]
        schedules: tuple[ScheduleState, ...] = ()
        with Tolerating(ErrorCode.DENIED):  # the console's role need not read them
            schedules = target.cloud.schedules(name)
    return {
        "name": name,
        "jobs_kept": plain is None,
        "workflow": None if workflow is None else workflow.name,
        "definition": revisions[0].written if revisions else None,
        "graph": graph_around(name, steps),
        "schedules": [_schedule(one, time.time()) for one in schedules],
        "revisions": [revision_json(one, at == 0) for at, one in enumerate(revisions)],
        "may_roll_back": viewer.role is KeyRole.OPERATOR and len(revisions) > 1,
        "may_upload": viewer.role is not KeyRole.READER
        and plain is None
        and (workflow is None or _is_first(workflow, name)),
    }


def _schedule(found: ScheduleState, now_s: float) -> dict[str, object]:
    schedule = found.schedule
    times = {"cron": schedule.cron, "timezone": schedule.timezone}
    return {"name": schedule.name, **times, "next_s": next_run_s(found, now_s)}


def workflow_of(cloud: JobCloud, name: str) -> Workflow | None:
    """The workflow that a function is a step of."""
    steps = {step.name: one for one in cloud.workflows() for step in one.steps}
    return steps.get(name)


def _is_first(workflow: Workflow, name: str) -> bool:
    """Whether a step takes the input of the runs."""
    return any(step.name == name and not step.feeds for step in workflow.steps)


def plain_functions(cloud: JobCloud, viewer: KeyRights) -> list[DirectFunction]:
    """The functions that objects start without a job, for those who may see them."""
    return cloud.direct_functions() if _sees_plain(viewer) else []


def _sees_plain(viewer: KeyRights) -> bool:
    """True for a key of all tenants: a function without a job has none."""
    return viewer.sees_all or (viewer.tenant is None and viewer.role is KeyRole.REQUESTER)


def _summary(function: Function, workloads: Mapping[str, str]) -> dict[str, object]:
    return {
        "jobs_kept": True,
        "revision": function.revision[:8],
        "changed_s": function.deployed_at_s or None,
        "tenant": function.request.tenant,
        "suffixes": function.input_suffixes,
        "warm_keys": _warm_keys(function.request, workloads),
        **_shown(_step(function)),
    }


def _plain_summary(cloud: JobCloud, function: DirectFunction) -> dict[str, object]:
    return {
        "jobs_kept": False,  # its runs leave no records: its event alone starts them
        "revision": None,
        "changed_s": None,
        "tenant": None,
        "suffixes": sorted({rule.suffix for rule in function.inputs if rule.suffix}),
        "warm_keys": [],
        **_shown(_plain_step(cloud, function)),
    }


def _shown(step: Step) -> dict[str, object]:
    return {
        "name": step.name,
        "gpu": step.device,
        "inputs": [_text(one) for one in step.inputs],
        "outputs": [_text(one) for one in step.outputs],
    }


def _step(function: Function) -> Step:
    return Step(
        name=function.name,
        device=request_text(function.request),
        inputs=((function.input_bucket, function.input_prefix),),
        outputs=tuple((one.bucket, one.prefix) for one in function.outputs),
    )


def _plain_step(cloud: JobCloud, function: DirectFunction) -> Step:
    return Step(
        name=function.name,
        device="no device",
        inputs=tuple(
            dict.fromkeys((rule.bucket, rule.prefix.rstrip("/")) for rule in function.inputs)
        ),
        outputs=tuple(cloud.direct_outputs(function)),
    )


def _warm_keys(request: Request, workloads: Mapping[str, str]) -> list[str]:
    """The keys of warm workers of this function: of its revision, and of those before it."""
    named = request.workload
    if named is None:
        return []
    of = label_key(request.tenant, named)
    earlier = (key for key, label in workloads.items() if label == of)
    return list(dict.fromkeys([workload_key(request.tenant, named), *earlier]))


def revision_json(revision: Revision, current: bool) -> dict[str, object]:
    return {
        "revision": revision.number,
        "changed_s": revision.deployed_at_s,
        "package_sha256": revision.package,
        "note": revision.changes,
        "changes": revision.summary,
        "current": current,
    }


def graph_around(name: str, steps: Sequence[Step]) -> WorkflowGraph:
    """The whole workflow that the function is a part of, over any number of steps."""
    part = {one.name: one for one in steps if one.name == name}
    while True:
        near = {
            one.name: one
            for one in steps
            if one.name not in part
            and any(_feeds(one, inside) or _feeds(inside, one) for inside in part.values())
        }
        if not near:
            break
        part |= near
    ordered = [part[one] for one in sorted(part)]
    return _graph(ordered)


def _graph(steps: Sequence[Step]) -> WorkflowGraph:
    nodes: dict[str, Node] = {}
    edges: dict[Edge, None] = {}

    def place(at: Place) -> str:
        text = _text(at)
        nodes.setdefault(f"place/{text}", Node(id=f"place/{text}", kind="place", label=text))
        return f"place/{text}"

    for one in steps:
        id_ = f"function/{one.name}"
        nodes[id_] = Node(id=id_, kind="function", label=one.name, device=one.device)
        for source in one.inputs:
            edges[Edge(source=place(source), target=id_)] = None
        for output in one.outputs:
            read = [at for reader in steps for at in reader.inputs if _meets(output, at)]
            for target in read or [output]:
                edges[Edge(source=id_, target=place(target))] = None
    return WorkflowGraph(nodes=tuple(nodes.values()), edges=tuple(edges))


def _feeds(writer: Step, reader: Step) -> bool:
    return any(_meets(output, at) for output in writer.outputs for at in reader.inputs)


def _meets(output: Place, source: Place) -> bool:
    """Whether objects of an output may start a function with that input."""
    written, read = _folder(output[1]), _folder(source[1])
    return output[0] == source[0] and (written.startswith(read) or read.startswith(written))


def _folder(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


def _text(place: Place) -> str:
    bucket, prefix = place
    return f"{bucket}/{prefix}" if prefix else bucket

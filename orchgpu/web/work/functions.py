"""Deployed functions: settings, the workflow around each, revisions; roll back and upload."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.model import Request
from gpu_scheduler.request_text import request_text
from gpu_scheduler.warm import workload_key
from orchgpu.cloud_services import Address
from orchgpu.core.function import Function, Output
from orchgpu.deploy.deployment import execute, prepare_rollback
from orchgpu.deploy.revisions import Revision
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.provider import provider
from orchgpu.jobs.rights import Role
from orchgpu.web.model.viewers import Viewer

#: Changes of a revision that its one line has.
NOTED_MAX = 3


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


def functions_json(cloud: JobCloud, viewer: Viewer) -> list[dict[str, object]]:
    """All functions that the viewer sees, by name."""
    seen = [one for one in cloud.functions() if viewer.sees_function(one)]
    return [_summary(one) for one in sorted(seen, key=lambda one: one.name)]


def function_json(cloud: JobCloud, viewer: Viewer, name: str) -> dict[str, object]:
    """One function with its workflow and its revisions, newest first. Raises NOT_FOUND, DENIED."""
    found = cloud.function(name)
    viewer.require_function(found)
    others = [one for one in cloud.functions() if viewer.sees_function(one)]
    with provider().deploy_cloud(Address(), Address()) as target:
        revisions = target.cloud.revisions(name)[::-1]
    return {
        "name": found.name,
        "definition": _definition(found),
        "graph": graph_around(found, others),
        "revisions": [revision_json(one, at == 0) for at, one in enumerate(revisions)],
        "may_roll_back": viewer.role is Role.OPERATOR and len(revisions) > 1,
        "may_upload": viewer.role is not Role.READER,
    }


def _summary(function: Function) -> dict[str, object]:
    return {
        "name": function.name,
        "revision": function.revision[:8],
        "changed_s": function.deployed_at_s or None,
        "gpu": request_text(function.request),
        "tenant": function.request.tenant,
        "inputs": [_place(function.input_bucket, function.input_prefix)],
        "suffixes": function.input_suffixes,
        "outputs": [_place(one.bucket, one.prefix) for one in function.outputs],
        "warm_key": _warm_key(function.request),
    }


def _warm_key(request: Request) -> str | None:
    """The key that hosts publish for warm workers of this request; None: it keeps none."""
    named = request.workload
    return None if named is None else workload_key(request.tenant, named)


def _definition(function: Function) -> dict[str, object]:
    """The settings that people chose, in the words of the definition; of variables the names."""
    chosen = encode(function.request)
    request = {name: value for name, value in chosen.items() if value not in (None, [], "", 0)}
    return {
        "input": _place(function.input_bucket, function.input_prefix),
        "suffixes": function.input_suffixes,
        "output": [_place(one.bucket, one.prefix) for one in function.outputs],
        "timeout_s": function.timeout_s,
        "attempts_max": function.attempts_max,
        "middleware": function.middleware,
        "on_unavailable": function.on_unavailable,
        "concurrency_max": function.concurrency_max,
        "envelope": function.envelope,
        "image": function.image,
        "variables": sorted(function.variables),
        "gpu": request,
        "record": function.revision,
    }


def revision_json(revision: Revision, current: bool) -> dict[str, object]:
    """A revision as data."""
    return {
        "revision": revision.number,
        "changed_s": revision.deployed_at_s,
        "package_sha256": revision.package,
        "note": revision.note or "; ".join(revision.summary[:NOTED_MAX]),
        "changes": revision.summary,
        "current": current,
    }


def graph_around(function: Function, others: Sequence[Function]) -> WorkflowGraph:
    """The whole workflow that the function is a part of, over any number of steps."""
    part = {function.name: function}
    while True:
        near = {
            one.name: one
            for one in others
            if one.name not in part
            and any(_feeds(one, inside) or _feeds(inside, one) for inside in part.values())
        }
        if not near:
            break
        part |= near
    ordered = [part[name] for name in sorted(part)]
    return _graph(ordered)


def _graph(functions: Sequence[Function]) -> WorkflowGraph:
    nodes: dict[str, Node] = {}
    edges: dict[Edge, None] = {}
    for one in functions:
        node = Node(
            id=f"function/{one.name}",
            kind="function",
            label=one.name,
            device=request_text(one.request),
        )
        nodes[node.id] = node
        source = _place(one.input_bucket, one.input_prefix)
        nodes[f"place/{source}"] = Node(id=f"place/{source}", kind="place", label=source)
        edges[Edge(source=f"place/{source}", target=node.id)] = None
        for output in one.outputs:
            place = _place(output.bucket, output.prefix)
            readers = [f for f in functions if _reads(f, output)]
            targets = [f"place/{_place(f.input_bucket, f.input_prefix)}" for f in readers]
            for target in targets or [f"place/{place}"]:
                nodes.setdefault(target, Node(id=target, kind="place", label=place))
                edges[Edge(source=node.id, target=target)] = None
    return WorkflowGraph(nodes=tuple(nodes.values()), edges=tuple(edges))


def _feeds(writer: Function, reader: Function) -> bool:
    return any(_reads(reader, output) for output in writer.outputs)


def _reads(reader: Function, output: Output) -> bool:
    """Whether objects of an output may start the reader."""
    if output.bucket != reader.input_bucket:
        return False
    written, read = _folder(output.prefix), _folder(reader.input_prefix)
    return written.startswith(read) or read.startswith(written)


def _folder(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


def _place(bucket: str, prefix: str) -> str:
    return f"{bucket}/{prefix}" if prefix else bucket


def roll_back(cloud: JobCloud, viewer: Viewer, name: str, revision: int) -> dict[str, object]:
    """Restore a revision of a function, as `orchgpu rollback` does. For operators."""
    viewer.require(Role.OPERATOR, "a roll back")
    cloud.function(name)
    with provider().deploy_cloud(Address(), Address()) as target:
        target.guard(True)  # the operator confirmed it in the page
        prepared = prepare_rollback(name, revision, target.cloud)
        execute(prepared, target.cloud, lambda _number, _count, _step: None)
    return {"function": name, "note": prepared.note, "steps": len(prepared.plan.steps)}


# ---------------------------------------------------------------------- uploads

#: The largest file that the page may upload; `orchgpu put` has the store's own limit.
UPLOAD_BYTES_MAX = 512 * 2**20
_NAME_BYTES_MAX = 255


class Upload:
    """A file on its way from a browser to the input of a function."""

    def __init__(self, name: str) -> None:
        """Raises INVALID for a name that is not one of a file."""
        is_path = name in ("", ".", "..") or "/" in name or "\\" in name
        if is_path or not name.isprintable() or len(name.encode()) > _NAME_BYTES_MAX:
            raise invalid(f"{name!r:.80} is not the name of a file")
        self._folder = Path(tempfile.mkdtemp(prefix="orchgpu-upload-"))
        self.file = self._folder / name

    def remove(self) -> None:
        """Remove what was received."""
        shutil.rmtree(self._folder, ignore_errors=True)


def uploadable(cloud: JobCloud, viewer: Viewer, name: str) -> Function:
    """The function, if the viewer may upload to it. Raises NOT_FOUND, DENIED."""
    viewer.require(Role.REQUESTER, "an upload")
    found = cloud.function(name)
    viewer.require_function(found)
    return found


def submit(cloud: JobCloud, function: Function, upload: Upload) -> dict[str, object]:
    """Store the file as an input, which starts a job."""
    submitted = cloud.submit(function, upload.file, now_s=time.time())
    return {
        "job": submitted.job_ids[0],
        "bucket": function.input_bucket,
        "key": submitted.key,
        "function": function.name,
    }


def too_large() -> AppError:
    """The refusal of an upload."""
    text = f"the file has more than {UPLOAD_BYTES_MAX} bytes; `orchgpu put` uploads larger ones"
    return AppError(ErrorCode.IMPOSSIBLE, text)

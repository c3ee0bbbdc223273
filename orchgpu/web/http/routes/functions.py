"""Deployed functions: list, one, roll back, upload."""

from __future__ import annotations

from aiohttp import web

from orchgpu.web.console import CONSOLE
from orchgpu.web.http.access import session_of
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.work import functions as work

ROUTES = web.RouteTableDef()
_PIECE_BYTES = 256 * 1024


@ROUTES.get("/api/functions")
async def functions(request: web.Request) -> web.Response:
    """All functions that the viewer sees, with the numbers of their jobs."""
    session, console = await session_of(request), request.app[CONSOLE]
    viewer, labels = session.viewer, await console.workloads.labels()
    found = await console.cloud.ask(
        session.party, lambda cloud: work.functions_json(cloud, viewer, labels)
    )
    jobs = console.picture.jobs.functions()
    items = [{**one, "jobs": jobs.get(str(one["name"]), 0)} for one in found]
    return answered({"items": items})


@ROUTES.get("/api/functions/{name}")
async def function(request: web.Request) -> web.Response:
    """One function with its workflow and revisions."""
    session, name = await session_of(request), request.match_info["name"]
    console = request.app[CONSOLE]
    return answered(
        await console.cloud.ask(
            session.party, lambda cloud: work.function_json(cloud, session.viewer, name)
        )
    )


@ROUTES.post("/api/functions/{name}/rollback")
async def roll_back(request: web.Request) -> web.Response:
    """Restore a revision."""
    session, name = await session_of(request), request.match_info["name"]
    revision = (await body_of(request, {"revision": int}))["revision"]
    assert isinstance(revision, int), "as `body_of` checked"
    return answered(
        await request.app[CONSOLE].cloud.ask(
            session.party, lambda cloud: work.roll_back(cloud, session.viewer, name, revision)
        )
    )


@ROUTES.put("/api/functions/{name}/files/{file}")
async def upload(request: web.Request) -> web.Response:
    """Store a file as an input of a function."""
    session, name = await session_of(request), request.match_info["name"]
    console = request.app[CONSOLE]
    if (request.content_length or 0) > work.UPLOAD_BYTES_MAX:
        raise work.too_large()
    found = await console.cloud.ask(
        session.party, lambda cloud: work.uploadable(cloud, session.viewer, name)
    )
    received = work.Upload(request.match_info["file"])
    try:
        await _receive(request, received)
        done = await console.cloud.ask(
            session.party, lambda cloud: work.submit(cloud, found, received)
        )
    finally:
        received.remove()
    return answered(done, status=201)


async def _receive(request: web.Request, upload: work.Upload) -> None:
    size = 0
    with upload.file.open("wb") as file:
        async for piece in request.content.iter_chunked(_PIECE_BYTES):
            size += len(piece)
            if size > work.UPLOAD_BYTES_MAX:
                raise work.too_large()
            file.write(piece)

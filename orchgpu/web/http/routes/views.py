"""Overview, fleet, queue and jobs out of the shared picture; the stream of its changes."""

from __future__ import annotations

import contextlib

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.access import check_key, session_of
from orchgpu.web.http.answers import answered
from orchgpu.web.http.routes.query import number_of, stream_response, text_of
from orchgpu.web.model.fleet import FleetQuery
from orchgpu.web.model.jobs import JobQuery
from orchgpu.web.model.pages import page_limit
from orchgpu.web.work.export import csv_pieces, json_pieces

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/overview")
async def overview(request: web.Request) -> web.Response:
    """The counters."""
    await session_of(request)
    return answered(request.app[CONSOLE].picture.overview())


@ROUTES.get("/api/fleet")
async def fleet(request: web.Request) -> web.Response:
    """A page of hosts with their devices."""
    await session_of(request)
    return answered(request.app[CONSOLE].picture.fleet.page(_fleet_query(request)))


@ROUTES.get("/api/fleet/summary")
async def fleet_summary(request: web.Request) -> web.Response:
    """A page of hosts, in a few figures each."""
    await session_of(request)
    return answered(request.app[CONSOLE].picture.fleet.summaries(_fleet_query(request)))


@ROUTES.get("/api/jobs")
async def jobs(request: web.Request) -> web.Response:
    """A page of jobs, newest first."""
    viewer, query = (await session_of(request)).viewer, _job_query(request)
    page = request.app[CONSOLE].picture.jobs.page(query, viewer.shown)
    if query.function is not None and not viewer.sees_all:
        page = replace(page, total=None)  # others' jobs are not counted for the viewer
    return answered(page)


def _job_query(request: web.Request) -> JobQuery:
    return JobQuery(
        state=text_of(request, "state"),
        function=text_of(request, "function"),
        text=text_of(request, "q") or "",
        since_s=number_of(request, "since"),
        sort=text_of(request, "sort"),
        descending=request.query.get("order") == "descending",
        limit=page_limit(request.query.get("limit")),
        after=text_of(request, "after"),
    )


@ROUTES.get("/api/export/jobs.{form}")
async def export(request: web.Request) -> web.StreamResponse:
    """All jobs that a list would have, newest first, as a file."""
    viewer, query = (await session_of(request)).viewer, _job_query(request)
    form = request.match_info["form"]
    if form not in ("csv", "json"):
        raise AppError(ErrorCode.NOT_FOUND, f"jobs are exported as csv or json, not {form!r:.20}")
    found = request.app[CONSOLE].picture.jobs.matching(query, viewer.shown)
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/csv; charset=utf-8" if form == "csv" else "application/json",
            "Content-Disposition": f'attachment; filename="jobs.{form}"',
            "Cache-Control": "no-store",
        }
    )
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for piece in csv_pieces(found) if form == "csv" else json_pieces(found):
            await response.write(piece)
        await response.write_eof()
    return response


@ROUTES.get("/api/events")
async def events(request: web.Request) -> web.StreamResponse:
    """The stream of changes."""
    session, console = await session_of(request), request.app[CONSOLE]

    def is_gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    stream = console.live.events(session, request.headers.get("Last-Event-ID"), is_gone)
    async with contextlib.aclosing(stream):
        first = await anext(stream)  # refused before the answer begins
        response = stream_response()
        with contextlib.suppress(ConnectionError, AppError):  # AppError: its key was revoked
            await response.prepare(request)
            await response.write(first)
            async for text in stream:
                await check_key(console, session)
                await response.write(text)
            await response.write_eof()
    return response


def _fleet_query(request: web.Request) -> FleetQuery:
    return FleetQuery(
        host=text_of(request, "host"),
        state=text_of(request, "state"),
        text=text_of(request, "q") or "",
        limit=page_limit(request.query.get("limit")),
        after=text_of(request, "after"),
    )

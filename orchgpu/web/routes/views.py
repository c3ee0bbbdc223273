"""Overview, fleet, jobs and their export out of the shared picture; the stream of its changes."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import islice

from aiohttp import web

from corekit.aio.event_stream import LAST_EVENT_ID, streamed
from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.jobs.summary import JobSummary
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.answers import answered, number_of, text_of
from orchgpu.web.http.security import check_key, session_of
from orchgpu.web.model.fleet import FleetQuery
from orchgpu.web.model.jobs import JobQuery
from orchgpu.web.model.pages import page_limit

#: Jobs of one piece; other requests are answered between two.
PIECE = 500
COLUMNS = (
    *("job", "state", "reason", "function", "tenant", "bucket", "key", "attempt", "device"),
    *("submitted_s", "received_s", "changed_s", "duration_s"),
)
#: The first characters by which a spreadsheet takes a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_pieces(jobs: Iterable[JobSummary]) -> Iterator[bytes]:
    """RFC 4180, with a line of names. A text that looks like a formula begins with `'`."""
    yield _csv([COLUMNS])
    for part in _parts(jobs):
        yield _csv([[_cell(value) for value in _row(job).values()] for job in part])


def json_pieces(jobs: Iterable[JobSummary]) -> Iterator[bytes]:
    """`{"jobs": [...]}`, one job on each line."""
    begin = b'{"jobs": [\n'
    for part in _parts(jobs):
        yield begin + b",\n".join(encode_json(_row(job)) for job in part)
        begin = b",\n"
    yield b"\n]}\n" if begin == b",\n" else begin + b"]}\n"


def _parts(jobs: Iterable[JobSummary]) -> Iterator[list[JobSummary]]:
    left = iter(jobs)
    while part := list(islice(left, PIECE)):
        yield part


def _row(job: JobSummary) -> dict[str, object]:
    row = {name: getattr(job, name) for name in COLUMNS}
    return row | {"reason": None if job.reason == "NONE" else job.reason}


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


ROUTES = web.RouteTableDef()


@ROUTES.get("/api/overview")
async def overview(request: web.Request) -> web.Response:
    await session_of(request)
    return answered(request.app[CONSOLE].picture.overview())


@ROUTES.get("/api/fleet")
async def fleet(request: web.Request) -> web.Response:
    await session_of(request)
    return answered(request.app[CONSOLE].picture.fleet.page(_fleet_query(request)))


@ROUTES.get("/api/fleet/summary")
async def fleet_summary(request: web.Request) -> web.Response:
    """A page of hosts, in a few figures each."""
    await session_of(request)
    return answered(request.app[CONSOLE].picture.fleet.summaries(_fleet_query(request)))


@ROUTES.get("/api/fleet/pools")
async def pools(request: web.Request) -> web.Response:
    """The pools of hosts that come and go, and warm floors; prices, notices and the workloads of
    other tenants for operators only."""
    viewer = (await session_of(request)).viewer
    found = request.app[CONSOLE].picture.pools()
    if not viewer.sees_all:
        pools = tuple(replace(one, usd_per_h=0.0) for one in found.pools)
        floors = tuple(
            one if one.tenant == viewer.tenant else one.redacted() for one in found.floors
        )
        found = replace(found, pools=pools, notices=(), floors=floors)
    return answered(found)


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
    session, console = await session_of(request), request.app[CONSOLE]

    def is_gone() -> bool:
        return request.transport is None or request.transport.is_closing()

    async def pieces() -> AsyncGenerator[bytes, None]:
        stream = console.live.events(session, request.headers.get(LAST_EVENT_ID), is_gone)
        async with contextlib.aclosing(stream):
            async for text in stream:
                try:
                    await check_key(console, session)
                except AppError:  # its key was revoked
                    return
                yield text

    return await streamed(request, pieces())


def _fleet_query(request: web.Request) -> FleetQuery:
    return FleetQuery(
        host=text_of(request, "host"),
        state=text_of(request, "state"),
        text=text_of(request, "q") or "",
        limit=page_limit(request.query.get("limit")),
        after=text_of(request, "after"),
    )

"""One job: its story, its lines while it runs, outputs and cost; cancel and another run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote

from aiohttp import web

from corekit.aio.event_stream import BEAT, streamed
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from orchgpu.core.function import Function
from orchgpu.jobs.cancelling import commit_cancelled, delete_message, finish_cancelled
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.joblog import Line, Stream, function_lines, record_lines
from orchgpu.jobs.known import Known, measured_run
from orchgpu.jobs.letters import retry
from orchgpu.jobs.outputs import output_of, read_output
from orchgpu.jobs.rights import JobRights
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.live import event_text
from orchgpu.web.http.security import SANDBOX_POLICY, Visit, visit_of
from orchgpu.web.http.sessions import Stream as OpenStream
from orchgpu.web.stories import (
    BYTES_MAX,
    OutputEntry,
    cost_json,
    output_at,
    outputs_of,
    story_json,
    story_of,
    summary_of_known,
)

ROUTES = web.RouteTableDef()
#: The pause between two reads of the cloud.
ASK_EVERY_S = 1.0
#: A cloud shows lines with a delay: a job is followed this long after its end.
AFTER_END_S = 3.0


@ROUTES.get("/api/jobs/{job}")
async def story(request: web.Request) -> web.Response:
    visit, known = await _known(request)
    return answered(story_json(known, visit.viewer))


@ROUTES.get("/api/jobs/{job}/outputs")
async def outputs(request: web.Request) -> web.Response:
    _, known = await _known(request)
    return answered({"items": outputs_of(known.standing)})


@ROUTES.get("/api/jobs/{job}/outputs/{number}")
async def output(request: web.Request) -> web.Response:
    """The content of one output file: a preview, or a download."""
    visit, known = await _known(request)
    found = output_at(outputs_of(known.standing), request.match_info["number"])
    named = output_of(_function(known), known.job, {"bucket": found.bucket, "key": found.key})
    content = await visit.ask_cloud(lambda cloud: read_output(cloud, named, BYTES_MAX))
    return web.Response(body=content, headers=_content_headers(request, found))


def _content_headers(request: web.Request, found: OutputEntry) -> dict[str, str]:
    shown = found.preview is not None and request.query.get("download") is None
    name = quote(found.name or "output", safe="")
    how = "inline" if shown else "attachment"
    return {
        "Content-Type": found.type if shown else "application/octet-stream",
        "Content-Disposition": f"{how}; filename*=UTF-8''{name}",
        "Content-Security-Policy": SANDBOX_POLICY,
        "Cache-Control": "no-store",
    }


@ROUTES.get("/api/jobs/{job}/cost")
async def cost(request: web.Request) -> web.Response:
    visit, known = await _known(request)
    return answered(cost_json(*await visit.ask_cloud(lambda cloud: measured_run(cloud, known))))


@ROUTES.post("/api/jobs/{job}/cancel")
async def cancel_job(request: web.Request) -> web.Response:
    """End a job that waits or runs. Raises CONFLICT for one that ended before."""
    visit, job = await visit_of(request), request.match_info["job"]
    given = await body_of(request, {}, {"reason": str})
    known = await story_of(visit, job)
    _rights(visit, known).require_cancel()
    _function(known)
    who = f"{visit.viewer.name!r} in the console" if visit.viewer.name else "the console"
    reason = str(given.get("reason", ""))[:200]
    detail = f"cancelled by {who}" + (f": {reason}" if reason else "")
    await visit.ask_cloud(lambda cloud: commit_cancelled(cloud, known, detail))
    if known.record is not None:

        async def finish(client: SchedulerClient) -> str | None:
            return await finish_cancelled(client, known, detail)

        asked = visit.console.scheduler.ask(visit.session.key, finish)
        handle = await asyncio.shield(asked)
        await visit.ask_cloud(lambda cloud: delete_message(cloud, known, handle))
    return answered({"job": job, "state": "CANCELLED"})


@ROUTES.post("/api/jobs/{job}/retry")
async def retry_job(request: web.Request) -> web.Response:
    """Run a failed job again. Raises CONFLICT for one that is not over, INVALID for a success."""
    visit, job = await visit_of(request), request.match_info["job"]
    await body_of(request, {})
    known = await story_of(visit, job)
    _rights(visit, known).require_retry()
    _function(known)
    await visit.ask_cloud(lambda cloud: retry(cloud, known))
    return answered({"job": job, "retried": True})


async def _known(request: web.Request) -> tuple[Visit, Known]:
    visit = await visit_of(request)
    return visit, await story_of(visit, request.match_info["job"])


def _rights(visit: Visit, known: Known) -> JobRights:
    return JobRights(key=visit.viewer, job=known.job, record=known.record, function=known.function)


def _function(known: Known) -> Function:
    if known.function is None:
        text = f"the function of {known.job} is not deployed any more"
        raise AppError(ErrorCode.NOT_FOUND, text)
    return known.function


# ---------------------------------------------------------------------- lines


class LogLine(Value):
    """One line as the page gets it."""

    time_s: float
    stream: str  #: function, orchestrator, scheduler, queue or device
    text: str


@ROUTES.get("/api/jobs/{job}/logs")
async def logs(request: web.Request) -> web.StreamResponse:
    """The lines of a job as a stream of events, until it ends: `line` each, then `end`."""
    visit = await visit_of(request)
    lines = _log_lines(visit, request.match_info["job"])
    with visit.console.streams.open(visit.session) as stream:
        return await streamed(request, _pieces(lines, stream))


async def _log_lines(visit: Visit, job: str) -> AsyncGenerator[Sequence[LogLine], None]:
    """The lines so far, then new ones each second until the job has ended."""
    known, console = await story_of(visit, job), visit.console

    def of_function(cloud: JobCloud) -> list[Line]:
        return function_lines(cloud.services, known)

    found: list[Line] = []
    seen = console.picture.jobs.get(job)
    stream = Stream([lambda: record_lines(known), lambda: found])
    left_s = AFTER_END_S
    if known.over:
        left_s -= console.clock.wall_s() - summary_of_known(known).changed_s
    while console.sessions.is_open(visit.session):
        found = await visit.ask_cloud(of_function)
        yield [LogLine(time_s=one.at_s, stream=one.where, text=one.text) for one in stream.fresh()]
        if known.over:
            left_s -= ASK_EVERY_S
            if left_s < 0:
                return
        await asyncio.sleep(ASK_EVERY_S)
        now = console.picture.jobs.get(job)
        if not known.over and (now is None or now != seen):
            known, seen = await story_of(visit, job), now


async def _pieces(
    lines: AsyncGenerator[Sequence[LogLine], None], stream: OpenStream
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(lines):
        yield _events(await anext(lines, ()))  # an error here is the answer
        try:
            async for found in lines:
                yield _events(found)
                if stream.evicted:
                    text = "the log stopped: other pages of this key follow too many others"
                    raise AppError(ErrorCode.EXHAUSTED, text)
            yield event_text("end", {})
        except AppError as error:
            yield event_text("error", {"message": error.message})


def _events(found: Sequence[LogLine]) -> bytes:
    """The lines as events; without any, a comment that keeps the stream open."""
    return b"".join(event_text("line", line) for line in found) or BEAT

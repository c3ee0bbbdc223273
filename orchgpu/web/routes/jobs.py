"""One job: its story, its lines while it runs, outputs and cost; cancel and another run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from urllib.parse import quote

from aiohttp import web

from corekit.aio.event_stream import BEAT, streamed
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.jobs.joblog import Line
from orchgpu.jobs.known import Known, measured_run
from orchgpu.jobs.letters import retry
from orchgpu.jobs.outputs import output_of, read_output
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.live import event_text
from orchgpu.web.http.security import SANDBOX_POLICY, Visit, visit_of
from orchgpu.web.http.sessions import Stream as OpenStream
from orchgpu.web.job_visits import Seen, cancel, followed, function_of, job_rights
from orchgpu.web.stories import (
    BYTES_MAX,
    OutputEntry,
    cost_json,
    output_at,
    outputs_of,
    story_json,
    story_of,
)

ROUTES = web.RouteTableDef()


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
    named = output_of(function_of(known), known.job, {"bucket": found.bucket, "key": found.key})
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
    await cancel(visit, known, str(given.get("reason", ""))[:200])
    return answered({"job": job, "state": "CANCELLED"})


@ROUTES.post("/api/jobs/{job}/retry")
async def retry_job(request: web.Request) -> web.Response:
    """Run a failed job again. Raises CONFLICT for one that is not over, INVALID for a success."""
    visit, job = await visit_of(request), request.match_info["job"]
    await body_of(request, {})
    known = await story_of(visit, job)
    job_rights(visit, known).require_retry()
    function_of(known)
    await visit.ask_cloud(lambda cloud: retry(cloud, known))
    return answered({"job": job, "retried": True})


async def _known(request: web.Request) -> tuple[Visit, Known]:
    visit = await visit_of(request)
    return visit, await story_of(visit, request.match_info["job"])


# ---------------------------------------------------------------------- lines


class LogLine(Value):
    """One line as the page gets it."""

    time_s: float
    stream: str  #: function, orchestrator, scheduler, queue or device
    text: str

    @classmethod
    def of(cls, line: Line) -> LogLine:
        return cls(time_s=line.at_s, stream=line.where, text=line.text)


@ROUTES.get("/api/jobs/{job}/logs")
async def logs(request: web.Request) -> web.StreamResponse:
    """The lines of a job as a stream of events, until it ends: `line` each, then `end`."""
    visit = await visit_of(request)
    lines = followed(visit, request.match_info["job"])
    with visit.console.streams.open(visit.session) as stream:
        return await streamed(request, _pieces(lines, stream))


async def _pieces(
    lines: AsyncGenerator[Seen, None], stream: OpenStream
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(lines):
        seen = await anext(lines, None)  # an error here is the answer
        if seen is None:
            return  # the session ended meanwhile
        yield _events(seen)
        try:
            async for seen in lines:
                yield _events(seen)
                if stream.evicted:
                    text = "the log stopped: other pages of this key follow too many others"
                    raise AppError(ErrorCode.EXHAUSTED, text)
            if seen.known.over:  # else the session ended
                yield event_text("end", {})
        except AppError as error:
            yield event_text("error", {"message": error.message})


def _events(seen: Seen) -> bytes:
    """The lines as events; without any, a comment that keeps the stream open."""
    return b"".join(event_text("line", LogLine.of(line)) for line in seen.lines) or BEAT

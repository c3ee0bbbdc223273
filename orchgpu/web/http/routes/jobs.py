"""One job: its story, logs, outputs and cost; cancel and another run; dead letters."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from orchgpu.jobs.known import Known
from orchgpu.jobs.measured import measured_run
from orchgpu.jobs.outputs import output_of, read_output
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.access import session_of
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.live import event_text
from orchgpu.web.http.routes.query import stream_response, text_of
from orchgpu.web.http.security import SANDBOX_POLICY
from orchgpu.web.http.sessions import Session
from orchgpu.web.http.streams import Stream
from orchgpu.web.work.changes import cancel, run_again
from orchgpu.web.work.joblogs import LogLine, log_lines
from orchgpu.web.work.letters import letters_json, send_back
from orchgpu.web.work.outputs import BYTES_MAX, OutputEntry, output_at, outputs_of
from orchgpu.web.work.stories import cost_json, story_json, story_of

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/jobs/{job}")
async def story(request: web.Request) -> web.Response:
    """The whole story of a job."""
    session, known = await _known(request)
    return answered(story_json(known, session.viewer))


@ROUTES.get("/api/jobs/{job}/logs")
async def logs(request: web.Request) -> web.StreamResponse:
    """The lines of a job as a stream of events, until it ends: `line` each, then `end`."""
    session, console = await session_of(request), request.app[CONSOLE]
    lines = log_lines(console, session, request.match_info["job"])
    with console.streams.open(session) as stream:
        return await _streamed(request, lines, stream)


async def _streamed(
    request: web.Request, lines: AsyncGenerator[Sequence[LogLine], None], stream: Stream
) -> web.StreamResponse:
    async with contextlib.aclosing(lines):
        first: Sequence[LogLine] = await anext(lines, ())  # refused before the answer begins
        response = stream_response()
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write(_lines(first))
            try:
                async for found in lines:
                    await response.write(_lines(found))
                    if stream.evicted:
                        text = "the log stopped: other pages of this key follow too many others"
                        raise AppError(ErrorCode.EXHAUSTED, text)
                await response.write(event_text("end", {}))
            except AppError as error:
                await response.write(event_text("error", {"message": error.message}))
            await response.write_eof()
    return response


def _lines(found: Sequence[LogLine]) -> bytes:
    """The lines as events; without any, a comment that keeps the stream open."""
    return b"".join(event_text("line", line) for line in found) or b": beat\n\n"


@ROUTES.get("/api/jobs/{job}/outputs")
async def outputs(request: web.Request) -> web.Response:
    """The output files of a job."""
    _, known = await _known(request)
    return answered({"items": outputs_of(known.standing)})


@ROUTES.get("/api/jobs/{job}/outputs/{number}")
async def output(request: web.Request) -> web.Response:
    """The content of one output file: a preview, or a download."""
    session, known = await _known(request)
    found = output_at(outputs_of(known.standing), request.match_info["number"])
    function = known.function
    if function is None:
        text = (
            f"the function of {known.job}, which defines where its outputs are, is not deployed now"
        )
        raise AppError(ErrorCode.NOT_FOUND, text)
    file = {"bucket": found.bucket, "key": found.key}
    output = output_of(function, known.job, file)
    content = await request.app[CONSOLE].cloud.ask(
        session.party, lambda cloud: read_output(cloud, output, BYTES_MAX)
    )
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
    """The cost of a job that succeeded."""
    session, known = await _known(request)
    ran_s, memory_mib = await request.app[CONSOLE].cloud.ask(
        session.party, lambda cloud: measured_run(cloud, known)
    )
    return answered(cost_json(ran_s, memory_mib))


@ROUTES.post("/api/jobs/{job}/cancel")
async def cancel_job(request: web.Request) -> web.Response:
    """End a job that waits or runs."""
    session, job = await session_of(request), request.match_info["job"]
    given = await body_of(request, {}, {"reason": str})
    await cancel(request.app[CONSOLE], session, job, str(given.get("reason", ""))[:200])
    return answered({"job": job, "state": "CANCELLED"})


@ROUTES.post("/api/jobs/{job}/retry")
async def retry_job(request: web.Request) -> web.Response:
    """Run a failed job again."""
    session, job = await session_of(request), request.match_info["job"]
    await body_of(request, {})
    await run_again(request.app[CONSOLE], session, job)
    return answered({"job": job, "retried": True})


@ROUTES.get("/api/letters")
async def letters(request: web.Request) -> web.Response:
    """Dead letters with their reasons; they stay in their queues."""
    session, function = await session_of(request), text_of(request, "function")
    cloud = request.app[CONSOLE].cloud
    return answered(await letters_json(cloud, session, function))


@ROUTES.post("/api/letters/{letter}/retry")
async def retry_letter(request: web.Request) -> web.Response:
    """Send one dead letter back to the queue of its function."""
    session, letter = await session_of(request), request.match_info["letter"]
    function = (await body_of(request, {}, {"function": str})).get("function")
    name = function if isinstance(function, str) else None
    await request.app[CONSOLE].cloud.ask(
        session.party, lambda cloud: send_back(cloud, session.viewer, letter, name)
    )
    return answered({"letter": letter, "retried": True})


async def _known(request: web.Request) -> tuple[Session, Known]:
    session = await session_of(request)
    return session, await story_of(request.app[CONSOLE], session, request.match_info["job"])

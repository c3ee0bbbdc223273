"""Jobs for programs: one, a list, the events of one, its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from aiohttp import web

from contract.http_jobs import INLINE_BYTES_MAX, WAIT_S_MAX, inlined
from corekit.aio.event_stream import BEAT, LAST_EVENT_ID, streamed
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value, replace
from orchgpu.core.function import Function
from orchgpu.jobs.joblog import Line
from orchgpu.jobs.known import Known
from orchgpu.jobs.outputs import read_output
from orchgpu.jobs.summary import JobSummary
from orchgpu.web.api.callers import visit_of
from orchgpu.web.api.model import (
    Job,
    JobPage,
    LogLine,
    entry_of,
    files_of,
    job_of,
)
from orchgpu.web.http.answers import answered, number_of, text_of
from orchgpu.web.http.live import event_text
from orchgpu.web.http.security import Visit, check_key
from orchgpu.web.http.sessions import Stream
from orchgpu.web.job_visits import Seen, cancel, followed
from orchgpu.web.model.jobs import JobQuery
from orchgpu.web.model.pages import page_limit
from orchgpu.web.stories import story_of

ROUTES = web.RouteTableDef()

#: Interval between checks whether the caller is still there.
LOOK_EVERY_S = 0.5


@ROUTES.get("/v1/jobs")
async def jobs(request: web.Request) -> web.Response:
    """A page of the jobs that the caller may read, newest first.

    A job's place never changes, so pages repeat and miss none.
    """
    visit = await visit_of(request)

    def shown(job: JobSummary) -> JobSummary | None:
        return job if visit.viewer.sees(job) else None

    query = JobQuery(
        state=text_of(request, "state"),
        function=text_of(request, "function"),
        text=text_of(request, "q") or "",
        since_s=number_of(request, "since"),
        limit=page_limit(request.query.get("limit")),
        after=text_of(request, "after"),
    )
    page = visit.console.picture.jobs.page(query, shown)
    found = tuple(entry_of(one) for one in page.items if isinstance(one, JobSummary))
    return answered(JobPage(jobs=found, next=page.next))


@ROUTES.get("/v1/jobs/{job}")
async def job(request: web.Request) -> web.Response:
    """One job; with `wait`, once it is over or the time has passed."""
    visit, wait_s = await visit_of(request), seconds_of(request)
    id_ = request.match_info["job"]
    known = await known_of(visit, id_)
    if not wait_s:
        return answered(_job(visit, known))
    with visit.console.api.waiting.one(visit.session.party):
        return answered(await finished(request, visit, id_, wait_s) or _job(visit, known))


@ROUTES.delete("/v1/jobs/{job}")
async def cancel_job(request: web.Request) -> web.Response:
    """End a job that waits or runs; safe to repeat. Raises CONFLICT for one that ended before."""
    visit = await visit_of(request)
    known = await known_of(visit, request.match_info["job"])
    if known.state != "CANCELLED":
        await cancel(visit, known, text_of(request, "reason") or "")
        known = await known_of(visit, known.job)
    return answered(_job(visit, known))


async def known_of(visit: Visit, job: str) -> Known:
    """All that the caller may know of a job, received or not. Raises NOT_FOUND, DENIED."""
    return await story_of(visit, job, _submitted_to(visit, job))


def _submitted_to(visit: Visit, job: str) -> Function | None:
    submitted = visit.console.api.submitted(job)
    return None if submitted is None else submitted.function


def _job(visit: Visit, known: Known) -> Job:
    return job_of(known, visit.console.api.submitted(known.job))


def seconds_of(request: web.Request) -> float:
    """The time that an answer may wait. Raises INVALID."""
    wait_s = number_of(request, "wait") or 0.0
    if not 0.0 <= wait_s <= WAIT_S_MAX:
        raise invalid(f"wait {wait_s:g} must lie in 0…{WAIT_S_MAX:g} seconds; ask again after that")
    return wait_s


async def finished(request: web.Request, visit: Visit, job: str, wait_s: float) -> Job | None:
    """The job with its outputs, once it is over; None: not in time, or the caller has gone.

    The scheduler's changes end the wait; where it is away, the next request asks again. Raises
    NOT_FOUND, DENIED.
    """
    console = visit.console
    until_s = console.clock.monotonic_s() + wait_s
    known: Known | None = None
    while True:
        summary = console.picture.jobs.get(job)
        if known is None or (summary is not None and summary.over):
            try:
                known = await known_of(visit, job)
            except AppError as error:
                if not error.retryable:
                    raise
        if known is not None and known.over:
            return await _with_content(visit, known)
        left_s = until_s - console.clock.monotonic_s()
        is_gone = request.transport is None or request.transport.is_closing()
        if left_s <= 0 or is_gone or console.live.is_over:
            return None
        await console.live.changed(min(left_s, LOOK_EVERY_S))


async def _with_content(visit: Visit, known: Known) -> Job:
    """The job, with the content of its output if that is small and the only one."""
    found, files = _job(visit, known), files_of(known)
    if len(files) != 1 or files[0][0].bytes > INLINE_BYTES_MAX:
        return found
    file, output = files[0]
    try:
        content = await visit.ask_cloud(lambda cloud: read_output(cloud, output, INLINE_BYTES_MAX))
    except AppError:
        return found  # its link has the reason
    text, encoding = inlined(content)
    return replace(found, outputs=(replace(file, content=text, encoding=encoding),))


# ---------------------------------------------------------------------- events


class Position(Value):
    """A place in the lines of a job, by time: how many are before its last moment, and in it."""

    at_s: float = 0.0
    before: int = 0
    rank: int = 0

    @classmethod
    def parse(cls, text: str | None) -> Position:
        """Another text is the beginning."""
        try:
            at_s, before, rank = (text or "").split("_")[:3]
            return cls(at_s=float(at_s), before=int(before), rank=int(rank))
        except ValueError:
            return cls()

    @property
    def text(self) -> str:
        return f"{self.at_s!r}_{self.before}_{self.rank}"

    def after(self, line: Line) -> Position:
        """The place after one more line was sent."""
        if line.at_s > self.at_s:
            return Position(at_s=line.at_s, before=self.before + self.rank, rank=1)
        if line.at_s == self.at_s:
            return replace(self, rank=self.rank + 1)
        return replace(self, before=self.before + 1)  # it was written late

    def left(self, lines: list[Line]) -> list[Line] | None:
        """The lines after this place; None: others came before it, and all are to be sent again."""
        before = sum(line.at_s < self.at_s for line in lines)
        there = sum(line.at_s == self.at_s for line in lines)
        if before != self.before or there < self.rank:
            return None
        return lines[self.before + self.rank :]


#: Ends the id of the last event: an EventSource that returns with it is to stop.
_END = "_end"


@ROUTES.get("/v1/jobs/{job}/events", allow_head=False)
async def events(request: web.Request) -> web.StreamResponse:
    """The job's states and lines until it ends: `state`, `line`, at last `end`.

    `Last-Event-ID` continues after that event. Where lines came late before it, `reset` is sent,
    and all lines again.
    """
    visit, last = await visit_of(request), request.headers.get(LAST_EVENT_ID)
    id_ = request.match_info["job"]
    if last is not None and last.endswith(_END) and (await known_of(visit, id_)).over:
        return web.Response(status=204)  # by the standard: do not come back
    seen = followed(visit, id_, _submitted_to(visit, id_))
    with visit.console.streams.open(visit.session) as stream:
        return await streamed(request, _pieces(visit, seen, stream, Position.parse(last)))


async def _pieces(
    visit: Visit, looks: AsyncGenerator[Seen, None], stream: Stream, resumed: Position
) -> AsyncGenerator[bytes, None]:
    sent = _Sent(visit, resumed)
    async with contextlib.aclosing(looks):
        seen = await anext(looks, None)  # an error here is the answer
        if seen is None:
            return  # the session ended meanwhile
        yield sent.events(seen)
        try:
            async for seen in looks:
                await check_key(visit.console, visit.session)
                if stream.evicted:
                    text = "the stream ended: other requests of this key follow too many others"
                    raise AppError(ErrorCode.EXHAUSTED, text)
                yield sent.events(seen)
            if seen.known.over:  # else the session ended: the reader returns with its key
                yield event_text("end", {}, sent.at.text + _END)
        except AppError as error:
            yield event_text("error", error.as_json())


class _Sent:
    """The events that one reader got so far."""

    def __init__(self, visit: Visit, resumed: Position) -> None:
        self.at = Position()
        self._visit = visit
        self._resumed: Position | None = None if resumed == Position() else resumed
        self._state: tuple[object, ...] = ()

    def events(self, seen: Seen) -> bytes:
        """The events of one look; a comment where there are none."""
        found: list[bytes] = []
        lines = list(seen.lines)
        if self._resumed is not None:
            left, self.at, self._resumed = self._resumed.left(lines), self._resumed, None
            if left is None:
                found, self.at = [event_text("reset", {})], Position()
            else:
                lines = left
        job = _job(self._visit, seen.known)
        if (state := (job.state, job.reason, job.waits, job.progress)) != self._state:
            self._state = state
            found.append(event_text("state", job))
        for line in lines:
            self.at = self.at.after(line)
            found.append(event_text("line", LogLine.of(line), self.at.text))
        return b"".join(found) or BEAT

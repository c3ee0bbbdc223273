"""A job while a caller looks at it or ends it: its lines as they are written, its cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from orchgpu.core.function import Function
from orchgpu.jobs.cancelling import commit_cancelled, delete_message, finish_cancelled
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.joblog import Line, Stream, function_lines, record_lines
from orchgpu.jobs.known import Known, with_progress
from orchgpu.jobs.rights import JobRights
from orchgpu.web.http.security import Visit
from orchgpu.web.stories import story_of, summary_of_known

#: The pause between two reads of the cloud.
ASK_EVERY_S = 1.0
#: A cloud shows lines with a delay: a job is followed this long after its end.
AFTER_END_S = 3.0


class Seen(Value):
    """A job at one look, and its lines since the last one, by time."""

    known: Known
    lines: Sequence[Line]


async def followed(
    visit: Visit, job: str, submitted: Function | None = None
) -> AsyncGenerator[Seen, None]:
    """The job with its lines so far, then with new ones each second until it has ended.

    It stops before that when the session ends; the last job seen shows which.

    Raises as `story_of` does.
    """
    console = visit.console
    seen = console.picture.jobs.get(job)  # before its story: what changes meanwhile is read again
    known = await story_of(visit, job, submitted)

    def of_function(cloud: JobCloud) -> tuple[list[Line], Known]:
        """Its lines and its progress, of which the scheduler knows nothing."""
        return function_lines(cloud.services, known), with_progress(cloud, known)

    def of_record() -> Iterator[Line]:
        return record_lines(replace(known, progress=None))  # a report replaces the one before

    found: list[Line] = []
    stream = Stream([of_record, lambda: found])
    left_s = AFTER_END_S
    if known.over:
        left_s -= console.clock.wall_s() - summary_of_known(known).changed_s
    while console.sessions.is_open(visit.session):
        found, known = await visit.ask_cloud(of_function)
        yield Seen(known=known, lines=stream.fresh())
        if known.over:
            left_s -= ASK_EVERY_S
            if left_s < 0:
                return
        await asyncio.sleep(ASK_EVERY_S)
        now = console.picture.jobs.get(job)
        if not known.over and (now is None or now != seen):
            known, seen = await story_of(visit, job, submitted), now


async def cancel(visit: Visit, known: Known, reason: str) -> None:
    """End a job that waits or runs. Raises CONFLICT for one that ended otherwise, DENIED."""
    job_rights(visit, known).require_cancel()
    function_of(known)
    who = f"{visit.viewer.name!r} in the console" if visit.viewer.name else "the console"
    detail = f"cancelled by {who}" + (f": {reason}" if reason else "")
    await visit.ask_cloud(lambda cloud: commit_cancelled(cloud, known, detail))
    if known.record is not None:

        async def finish(client: SchedulerClient) -> str | None:
            return await finish_cancelled(client, known, detail)

        handle = await asyncio.shield(visit.console.scheduler.ask(visit.session.key, finish))
        await visit.ask_cloud(lambda cloud: delete_message(cloud, known, handle))


def job_rights(visit: Visit, known: Known) -> JobRights:
    return JobRights(key=visit.viewer, job=known.job, record=known.record, function=known.function)


def function_of(known: Known) -> Function:
    """The function of a job. Raises NOT_FOUND when it is not deployed any more."""
    if known.function is None:
        text = f"the function of {known.job} is not deployed any more"
        raise AppError(ErrorCode.NOT_FOUND, text)
    return known.function

"""Lines of one job while it runs: the steps of its record, and the log of its function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from corekit.values import Value
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.functionlog import FunctionLog
from orchgpu.jobs.joblog import Line, Stream, record_lines, tail_lines
from orchgpu.jobs.known import moments
from orchgpu.web.console import Console
from orchgpu.web.http.sessions import Session
from orchgpu.web.work.stories import story_of, summary_of_known

#: The pause between two reads of the cloud.
ASK_EVERY_S = 1.0
#: A cloud shows lines with a delay: a job is followed this long after its end.
AFTER_END_S = 3.0
#: The clocks of upload and function differ a little.
SLACK_S = 60.0


class LogLine(Value):
    """One line as the page gets it."""

    time_s: float
    stream: str  #: function, orchestrator, scheduler, queue or device
    text: str


async def log_lines(
    console: Console, session: Session, job: str
) -> AsyncGenerator[Sequence[LogLine], None]:
    """The lines so far, then new ones each second until the job has ended."""
    known = await story_of(console, session, job)

    def of_function(cloud: JobCloud) -> list[Line]:
        began = moments(known)
        if known.function is None or not began:
            return []
        log = FunctionLog(cloud.services, known.function.name)
        lines = log.of_job(job, began[0].at_s - SLACK_S)
        return lines or (tail_lines(known) if known.over else [])

    found: list[Line] = []
    seen = console.picture.jobs.get(job)
    stream = Stream([lambda: record_lines(known), lambda: found])
    left_s = AFTER_END_S
    if known.over:
        left_s -= console.clock.wall_s() - summary_of_known(known).changed_s
    while console.sessions.is_open(session):
        found = await console.cloud.ask(session.party, of_function)
        yield [_shown(line) for line in stream.fresh()]
        if known.over:
            left_s -= ASK_EVERY_S
            if left_s < 0:
                return
        await asyncio.sleep(ASK_EVERY_S)
        now = console.picture.jobs.get(job)
        if not known.over and (now is None or now != seen):
            known, seen = await story_of(console, session, job), now


def _shown(line: Line) -> LogLine:
    return LogLine(time_s=line.at_s, stream=line.where, text=line.text)

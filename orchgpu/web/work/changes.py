"""Changes of a job by a viewer: cancel, another run."""

from __future__ import annotations

import asyncio

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import SchedulerClient
from orchgpu.jobs.cancelling import commit_cancelled, delete_message, finish_cancelled
from orchgpu.jobs.known import Known
from orchgpu.jobs.retrying import retry
from orchgpu.jobs.rights import JobRights
from orchgpu.web.console import Console
from orchgpu.web.http.sessions import Session
from orchgpu.web.work.stories import story_of


async def cancel(console: Console, session: Session, job: str, reason: str) -> None:
    """End a job that waits or runs. Raises CONFLICT for one that ended before."""
    known = await story_of(console, session, job)
    _rights(session, known).require_cancel()
    _require_deployed(known)
    who = f"{session.viewer.name!r} in the console" if session.viewer.name else "the console"
    detail = f"cancelled by {who}" + (f": {reason}" if reason else "")
    await console.cloud.ask(session.party, lambda cloud: commit_cancelled(cloud, known, detail))
    if known.record is None:
        return

    async def finish(client: SchedulerClient) -> str | None:
        return await finish_cancelled(client, known, detail)

    handle = await asyncio.shield(console.scheduler.ask(session.key, finish))
    await console.cloud.ask(session.party, lambda cloud: delete_message(cloud, known, handle))


async def run_again(console: Console, session: Session, job: str) -> None:
    """Run a failed job again. Raises CONFLICT for one that is not over, INVALID for a success."""
    known = await story_of(console, session, job)
    _rights(session, known).require_retry()
    _require_deployed(known)
    await console.cloud.ask(session.party, lambda cloud: retry(cloud, known))


def _rights(session: Session, known: Known) -> JobRights:
    return JobRights(
        key=session.viewer, job=known.job, record=known.record, function=known.function
    )


def _require_deployed(known: Known) -> None:
    if known.function is None:
        text = f"the function of {known.job} is not deployed any more"
        raise AppError(ErrorCode.NOT_FOUND, text)

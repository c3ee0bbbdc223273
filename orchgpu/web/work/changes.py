"""Changes of a job by a viewer: cancel, another run."""

from __future__ import annotations

import asyncio

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import SchedulerClient
from orchgpu.jobs.cancelling import commit_cancelled, delete_message, finish_cancelled
from orchgpu.jobs.known import Known
from orchgpu.jobs.retrying import retry
from orchgpu.web.console import Console
from orchgpu.web.http.sessions import Session
from orchgpu.web.model.viewers import Viewer
from orchgpu.web.work.stories import story_of, summary_of_known


async def cancel(console: Console, session: Session, job: str, reason: str) -> None:
    """End a job that waits or runs. Raises CONFLICT for one that ended before."""
    known = await _changeable(console, session, job)
    _require_acting(session.viewer, known)
    who = f"{session.viewer.name!r} in the console" if session.viewer.name else "the console"
    detail = f"cancelled by {who}" + (f": {reason}" if reason else "")
    await console.cloud.ask(lambda cloud: commit_cancelled(cloud, known, detail))
    if known.record is None:
        return

    async def finish(client: SchedulerClient) -> str | None:
        return await finish_cancelled(client, known, detail)

    handle = await asyncio.shield(console.scheduler.ask(session.key, finish))
    await console.cloud.ask(lambda cloud: delete_message(cloud, known, handle))


async def run_again(console: Console, session: Session, job: str) -> None:
    """Run a failed job again. Raises CONFLICT for one that is not over, INVALID for a success."""
    known = await _changeable(console, session, job)
    await console.cloud.ask(lambda cloud: retry(cloud, known))


def _require_acting(viewer: Viewer, known: Known) -> None:
    """Raise DENIED unless the scheduler lets the viewer's key act for the job.

    It shows a job's receipt handle only to keys that may. Without this check the result would be
    written, and the scheduler would refuse to end the lease.
    """
    record = known.record
    if record is None or viewer.sees_all or record.handle:
        return
    summary = summary_of_known(known)
    owner = summary.owned_by or summary.made_by
    if viewer.name != owner:
        text = f"job {known.job} belongs to key {owner!r}; a key of "
        text += "its tenant or an operator may cancel it"
        raise AppError(ErrorCode.DENIED, text, needs="owner")


async def _changeable(console: Console, session: Session, job: str) -> Known:
    known = await story_of(console, session, job)
    session.viewer.require_change(summary_of_known(known))
    if known.function is None:
        text = f"the function of {job} is not deployed any more"
        raise AppError(ErrorCode.NOT_FOUND, text)
    return known

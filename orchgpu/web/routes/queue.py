"""The queue in the order of service, with the reason of each wait."""

from __future__ import annotations

from aiohttp import web

from contract.states import Reason
from corekit.values import Value
from gpu_scheduler.protocol.answers import QueuedView
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import Explanation
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.waiting import reason_of_wait
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.answers import answered, text_of
from orchgpu.web.http.security import session_of
from orchgpu.web.model.pages import Page, page_limit, sliced

ROUTES = web.RouteTableDef()


class QueueEntry(Value):
    """One waiting request as the page gets it."""

    position: int | None  #: 1 = next; None = without an owner
    attempt: str
    job: str | None
    function: str | None  #: None: a reservation, or another key's
    key: str | None  #: of the input, likewise
    tenant: str
    priority: int
    waiting_s: float
    reason: str
    sentence: str  #: "" = not asked for: the request is far behind
    expected_s: float | None
    wants: str


@ROUTES.get("/api/queue")
async def queue(request: web.Request) -> web.Response:
    session, console = await session_of(request), request.app[CONSOLE]
    limit, picture = page_limit(request.query.get("limit")), console.picture
    views, more = sliced(picture.queue, text_of(request, "after"), limit)
    explained = await console.explanations.of([view.attempt for view in views])
    items = [_entry(console, session.viewer, one, explained.get(one.attempt)) for one in views]
    return answered(Page(items=tuple(items), next=more, total=picture.waiting))


def _entry(
    console: Console, viewer: KeyRights, view: QueuedView, why: Explanation | None
) -> QueueEntry:
    job = None if view.holder is None else console.picture.jobs.get(view.holder)
    shown = None if job is None else viewer.shown(job)
    return QueueEntry(
        position=view.position,
        attempt=view.attempt,
        job=view.holder,
        function=None if shown is None else shown.function,
        key=None if shown is None else shown.files_text or shown.key,
        tenant=view.request.tenant,
        priority=view.request.priority,
        waiting_s=max(0.0, console.clock.wall_s() - view.waiting_since_s),
        reason=(Reason.QUEUED_BEHIND if why is None else reason_of_wait(why)).value,
        sentence="" if why is None else why.sentence,
        expected_s=None if why is None else why.expected_s,
        wants=request_text(view.request),
    )

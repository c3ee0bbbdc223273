"""Use of the devices and measures over time."""

from __future__ import annotations

from aiohttp import web

from orchgpu.web.console import CONSOLE
from orchgpu.web.http.access import session_of
from orchgpu.web.http.answers import answered
from orchgpu.web.http.routes.query import number_of
from orchgpu.web.work.activity import SINCE_S, activity_json

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/activity")
async def activity(request: web.Request) -> web.Response:
    """The last `since_s` seconds."""
    session, since_s = await session_of(request), number_of(request, "since_s")
    console = request.app[CONSOLE]
    found = await console.activity.of(SINCE_S if since_s is None else since_s)
    return answered(activity_json(found, session.viewer, console.picture.fleet))

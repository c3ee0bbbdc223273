"""`/api/session`: log in, the present session, log out."""

from __future__ import annotations

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.access import COOKIE, session_of, set_cookie
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.sessions import Session

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/session")
async def read(request: web.Request) -> web.Response:
    """The present session; one begins by itself where the scheduler needs no keys."""
    console = request.app[CONSOLE]
    if console.has_keys or console.sessions.find(request.cookies.get(COOKIE)) is not None:
        return answered(_shown(console, await session_of(request)))
    return await _opened(console, None)


@ROUTES.post("/api/session")
async def log_in(request: web.Request) -> web.Response:
    """Begin a session with a key."""
    console = request.app[CONSOLE]
    given = await body_of(request, {"key": str})
    if not console.has_keys:
        raise AppError(ErrorCode.CONFLICT, "the scheduler has no keys; no login is needed")
    before = console.sessions.find(request.cookies.get(COOKIE))
    if before is not None:
        console.sessions.close(before)  # the token of a session never outlives a login
    return await _opened(console, str(given["key"]).strip())


@ROUTES.delete("/api/session")
async def log_out(request: web.Request) -> web.Response:
    """End the session."""
    console = request.app[CONSOLE]
    console.sessions.close(await session_of(request))
    response = answered({})
    response.del_cookie(COOKIE, path="/")
    return response


async def _opened(console: Console, key: str | None) -> web.Response:
    viewer = await console.scheduler.viewer(key)
    token, session = console.sessions.open(viewer, key)
    response = answered(_shown(console, session))
    set_cookie(console, response, token)
    return response


def _shown(console: Console, session: Session) -> dict[str, object]:
    viewer = session.viewer
    return {
        "role": viewer.role.value,
        "name": viewer.name,
        "tenant": viewer.tenant,
        "csrf": session.csrf,
        "scheduler": console.settings.scheduler,
        "version": BUILD,
        "login_needed": False,
        "keys": console.has_keys,
    }

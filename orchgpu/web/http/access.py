"""The session of a request: who sends it, and whether it may change anything."""

from __future__ import annotations

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.security import READING, Handler, refuse_other_sites
from orchgpu.web.http.sessions import LENGTH_S, Session

COOKIE = "orchgpu_session"
CSRF_HEADER = "X-CSRF-Token"


@web.middleware
async def sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other sites, before any route."""
    console = request.app[CONSOLE]
    refuse_other_sites(request, has_keys=console.has_keys, allowed=console.settings.allowed_hosts)
    return await handler(request)


async def session_of(request: web.Request) -> Session:
    """The session of a request; of a change, with its CSRF token. Raises DENIED."""
    console = request.app[CONSOLE]
    session = console.sessions.find(request.cookies.get(COOKIE))
    if session is None:
        raise AppError(ErrorCode.DENIED, "no session is open; log in with a key", needs="key")
    if request.method not in READING:
        session.check_csrf(request.headers.get(CSRF_HEADER))
    await check_key(console, session)
    return session


async def check_key(console: Console, session: Session) -> None:
    """End a session whose key was revoked since its last check. Raises DENIED then."""
    if not console.sessions.is_due(session):
        return
    try:
        session.viewer = await console.scheduler.viewer(session.key)
    except AppError as error:
        if error.code is ErrorCode.DENIED:
            console.sessions.close(session)
            raise


def set_cookie(console: Console, response: web.Response, token: str) -> None:
    """Give the browser the token of its session."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(LENGTH_S),
        httponly=True,
        samesite="Strict",
        secure=console.settings.secure_cookies,
        path="/",
    )

"""Callers of the API: their rights, and how often they may call.

A program sends a key of the scheduler with each request, and has its rights. Without keys the
programs of this machine are trusted; a page in a browser is not one of them: it needs the session
and the token of the console.
"""

from __future__ import annotations

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.security import COOKIE, Visit, check_key, session_of
from orchgpu.web.http.sessions import Session
from orchgpu.web.routes import session as logins

#: What a browser sends with requests of its pages, and no program does.
_OF_PAGES = ("Origin", "Sec-Fetch-Site")


async def visit_of(request: web.Request) -> Visit:
    """The request with the rights of its caller. Raises DENIED, EXHAUSTED."""
    console = request.app[CONSOLE]
    session = await _session(console, request)
    console.api.require_rate(session.party, console.clock.monotonic_s())
    return Visit(console, session)


async def _session(console: Console, request: web.Request) -> Session:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if console.has_keys and scheme.lower() == "bearer":
        return await _of_key(console, request, key.strip())
    if COOKIE in request.cookies or any(name in request.headers for name in _OF_PAGES):
        return await session_of(request)
    if console.has_keys:
        text = "send a key of the scheduler: Authorization: Bearer NAME.SECRET"
        raise AppError(ErrorCode.DENIED, text, needs="key")
    found = console.sessions.find(console.api.token)
    if found is not None:
        return found
    viewer = await console.scheduler.viewer(None)
    token = console.api.token
    return console.sessions.find(token) or console.sessions.open(viewer, None, token)[1]


async def _of_key(console: Console, request: web.Request, key: str) -> Session:
    """The session of a key, which a first request opens; it is checked again as a browser's is."""
    found = console.sessions.find(key)
    if found is None:
        source = f"source {request.remote}"
        logins.limit_logins(console, source, logins.LOGINS_OF_SOURCE_PER_S)
        viewer = await console.scheduler.viewer(key)
        return console.sessions.find(key) or console.sessions.open(viewer, key, key)[1]
    await check_key(console, found)
    return found

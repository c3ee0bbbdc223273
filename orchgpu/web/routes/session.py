"""`/api/session`: log in, the present session, log out."""

from __future__ import annotations

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.security import COOKIE, session_of, set_cookie
from orchgpu.web.http.sessions import Session

ROUTES = web.RouteTableDef()

#: Logins of one key, and attempts from one address; ten seconds of them may come at once.
LOGINS_OF_KEY_PER_S: float | None = 3.0
LOGINS_OF_SOURCE_PER_S: float | None = 6.0


@ROUTES.get("/api/session")
async def read(request: web.Request) -> web.Response:
    """The present session; one begins by itself where the scheduler needs no keys."""
    console = request.app[CONSOLE]
    if console.has_keys or console.sessions.find(request.cookies.get(COOKIE)) is not None:
        return answered(_shown(console, await session_of(request)))
    return await _opened(console, None)


@ROUTES.post("/api/session")
async def log_in(request: web.Request) -> web.Response:
    console = request.app[CONSOLE]
    given = await body_of(request, {"key": str})
    if not console.has_keys:
        raise AppError(ErrorCode.CONFLICT, "the scheduler has no keys; no login is needed")
    before = console.sessions.find(request.cookies.get(COOKIE))
    if before is not None:
        console.sessions.close(before)  # the token of a session never outlives a login
    limit_logins(console, f"source {request.remote}", LOGINS_OF_SOURCE_PER_S)
    return await _opened(console, str(given["key"]).strip())


@ROUTES.delete("/api/session")
async def log_out(request: web.Request) -> web.Response:
    console = request.app[CONSOLE]
    console.sessions.close(await session_of(request))
    response = answered({})
    response.del_cookie(COOKIE, path="/")
    return response


async def _opened(console: Console, key: str | None) -> web.Response:
    viewer = await console.scheduler.viewer(key)
    if key is not None:  # once it is known to be right: a wrong secret takes no turn from it
        limit_logins(console, f"key {viewer.name}", LOGINS_OF_KEY_PER_S)
    token, session = console.sessions.open(viewer, key)
    response = answered(_shown(console, session))
    set_cookie(console, response, token)
    return response


def limit_logins(console: Console, scope: str, rate_per_s: float | None) -> None:
    """Raise EXHAUSTED above the rate of a key or a source."""
    empty = console.logins.take([(scope, rate_per_s)], console.clock.monotonic_s())
    if empty is not None:
        text = f"too many logins by this {scope.partition(' ')[0]}; try again in a moment"
        raise AppError(ErrorCode.EXHAUSTED, text, retry_in_s=empty.in_s)


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

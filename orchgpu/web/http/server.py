"""The HTTP server: routes, limits and headers of every answer."""

from __future__ import annotations

from contextlib import AsyncExitStack

from aiohttp import web

from corekit.aio.http_server import listening
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http import security
from orchgpu.web.http.assets import INDEX, asset_answer
from orchgpu.web.routes import (
    activity,
    functions,
    jobs,
    letters,
    queue,
    session,
    settings,
    views,
)

#: The routes of the API, by subject.
MODULES = (session, views, queue, jobs, letters, functions, activity, settings)


def application(console: Console) -> web.Application:
    app = web.Application(middlewares=[security.errors, security.sites])
    app[CONSOLE] = console
    app.on_response_prepare.append(security.protection(over_tls=console.settings.tls is not None))
    app.router.add_get("/", _page)
    app.router.add_get("/assets/{path:.+}", _asset)
    app.router.add_get("/healthz", _healthz)
    for module in MODULES:
        app.router.add_routes(module.ROUTES)
    return app


async def _page(request: web.Request) -> web.Response:
    return asset_answer(request, request.app[CONSOLE].assets.get(INDEX))


async def _asset(request: web.Request) -> web.Response:
    return asset_answer(request, request.app[CONSOLE].assets.get(request.match_info["path"]))


async def _healthz(request: web.Request) -> web.Response:
    return web.json_response({"ok": True, "connected": request.app[CONSOLE].picture.connected})


async def listen(console: Console, stack: AsyncExitStack) -> str:
    """Serve until the stack is closed; returns the address. Raises INVALID, UNAVAILABLE."""
    settings = console.settings
    served = listening(application(console), settings.listen, "the console", settings.tls)
    address = await stack.enter_async_context(served)
    stack.callback(console.live.end_all)
    return address

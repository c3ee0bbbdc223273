"""The HTTP server: routes, limits and headers of every answer."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http import access, security
from orchgpu.web.http.assets import INDEX, asset_answer
from orchgpu.web.http.routes import activity, functions, jobs, queue, session, settings, views

#: aiohttp would log a trace for every malformed request.
_SILENT = logging.getLogger("orchgpu.web.no_http")
_SILENT.setLevel(logging.CRITICAL)
_IDLE_S = 75.0
_HEADERS_MAX = 64
_HEADER_BYTES_MAX = 8190
#: Streams end by themselves when the server stops; requests take milliseconds.
_STOP_WITHIN_S = 2.0


#: The routes of the API, by subject.
MODULES = (session, views, queue, jobs, functions, activity, settings)


def application(console: Console) -> web.Application:
    """The routes of a console."""
    app = web.Application(middlewares=[security.errors, access.sites])
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
    host, port = parse_address(settings.listen)
    runner = web.AppRunner(
        application(console),
        access_log=None,
        logger=_SILENT,
        shutdown_timeout=_STOP_WITHIN_S,
        keepalive_timeout=_IDLE_S,
        max_headers=_HEADERS_MAX,
        max_field_size=_HEADER_BYTES_MAX,
        auto_decompress=False,  # 1 MB of gzip may inflate to 1 GB before a limit applies
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port, ssl_context=settings.tls)
    try:
        await site.start()
    except OSError as error:
        text = f"cannot listen on {settings.listen}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None
    stack.callback(console.live.end_all)
    bound = runner.addresses[0]
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return f"{shown}:{bound[1]}"

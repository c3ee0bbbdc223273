"""The HTTP server: routes and headers of every answer, and the files of the page.

The files are in memory: a name that is none of them is not found. A file has an ETag of its
content; a browser asks again and gets 304, so that a new version of the server is a new page.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from contract.http_jobs import PREFIX
from corekit.aio.http_server import listening
from corekit.decode import encode_json
from corekit.values import Value
from gpu_scheduler.daemon.build import BUILD
from orchgpu.web.api import calls as api_calls
from orchgpu.web.api import jobs as api_jobs
from orchgpu.web.api import outputs as api_outputs
from orchgpu.web.api import submitting
from orchgpu.web.api.openapi import openapi
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http import security
from orchgpu.web.routes import (
    activity,
    functions,
    jobs,
    letters,
    queue,
    runs,
    session,
    settings,
    views,
)

FOLDER = "assets"
INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}


class Asset(Value):
    """One file of the page."""

    content: bytes
    kind: str  #: the value of Content-Type
    etag: str


def read_assets() -> Mapping[str, Asset]:
    """All files below `assets/`, by path with slashes."""
    return dict(_below(files("orchgpu.web") / FOLDER, ""))


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{path}{entry.name}/")
        elif (kind := _TYPES.get(entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            yield path + entry.name, Asset(content=content, kind=kind, etag=etag)


def asset_answer(request: web.Request, asset: Asset | None) -> web.Response:
    """The file, or 304 where the browser has it, or 404."""
    if asset is None:
        raise web.HTTPNotFound
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == asset.etag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.content, headers={**headers, "Content-Type": asset.kind})


#: The routes of the page's own API, by subject, and those of the API for programs.
MODULES = (session, views, queue, jobs, letters, functions, runs, activity, settings)
API_MODULES = (submitting, api_calls, api_jobs, api_outputs)


def application(console: Console) -> web.Application:
    app = web.Application(middlewares=[security.errors, security.sites])
    app[CONSOLE] = console
    app.on_response_prepare.append(security.protection(over_tls=console.settings.tls is not None))
    assets = read_assets()

    async def asset(request: web.Request) -> web.Response:
        return asset_answer(request, assets.get(request.match_info.get("path", INDEX)))

    app.router.add_get("/", asset)
    app.router.add_get("/assets/{path:.+}", asset)
    app.router.add_get("/healthz", _healthz)
    description = encode_json(openapi(BUILD))

    async def described(_: web.Request) -> web.Response:
        return web.Response(body=description, content_type="application/json")

    app.router.add_get(f"{PREFIX}openapi.json", described)
    for module in (*MODULES, *API_MODULES):
        app.router.add_routes(module.ROUTES)
    return app


async def _healthz(request: web.Request) -> web.Response:
    return web.json_response({"ok": True, "connected": request.app[CONSOLE].picture.connected})


@asynccontextmanager
async def served(console: Console) -> AsyncIterator[str]:
    """The address of a console, for the length of the block. Raises INVALID, UNAVAILABLE."""
    settings = console.settings
    async with listening(
        application(console), settings.listen, "the console", settings.tls
    ) as address:
        try:
            yield address
        finally:
            console.live.end_all()

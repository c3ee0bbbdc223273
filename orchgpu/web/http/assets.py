"""The files of the page, from the package, in memory: a name that is none of them is not found.

A file has an ETag of its content; a browser asks again and gets 304, so that a new version of the
server is a new page at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from corekit.values import Value

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

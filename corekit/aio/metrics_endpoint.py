"""An HTTP endpoint with a program's metrics: `GET /metrics`, for Prometheus; `GET /healthz`.

It has no keys: it serves counts and names of hosts, functions and reasons, no secrets. On loopback
it refuses web pages of other sites, as every local port does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from corekit.metrics import CONTENT_TYPE
from corekit.net.addresses import is_loopback, parse_address
from corekit.net.browsers import foreign_part

if TYPE_CHECKING:
    from aiohttp import web

#: Makes all lines of a scrape; called in the event loop, so it must not block.
Lines = Callable[[], Iterable[str]]


@asynccontextmanager
async def metrics_endpoint(address: str | None, lines: Lines) -> AsyncIterator[dict[str, str]]:
    """Serve for the length of the block; yields the ready file's fields: {"metrics": "host:port"}.

    None: no endpoint. Port 0: any free one. Raises INVALID and UNAVAILABLE, naming the address.
    """
    if address is None:
        yield {}
        return
    # aiohttp is a third of a daemon's start, and of its modules in memory
    from corekit.aio.http_server import listening

    application = _application(lines, is_local=is_loopback(parse_address(address)[0]))
    async with listening(application, address, "metrics") as bound:
        yield {"metrics": bound}


def _application(lines: Lines, *, is_local: bool) -> web.Application:
    from aiohttp import web

    def refuse_other_sites(request: web.Request) -> None:
        if is_local and foreign_part(request.method, request.headers, "") is not None:
            raise web.HTTPForbidden(text="web pages of other sites are refused\n")

    async def metrics(request: web.Request) -> web.Response:
        refuse_other_sites(request)
        text = "\n".join(lines()) + "\n"
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def health(request: web.Request) -> web.Response:
        refuse_other_sites(request)
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", health)
    return app

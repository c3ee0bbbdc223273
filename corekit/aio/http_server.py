"""The set-up of an HTTP server: limits of its connections, and the address where it listens."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address

#: The endpoints log their own errors; aiohttp would log a trace for every malformed request.
SILENT = logging.getLogger("corekit.no_http")
SILENT.setLevel(logging.CRITICAL)
#: The longest pause between requests of a connection; scrapers and pages pause less.
IDLE_S = 75.0
#: Requests take milliseconds; streams end by themselves when their server stops.
STOP_WITHIN_S = 2.0


def runner_of(
    application: web.Application, *, headers_max: int = 64, header_bytes_max: int = 8190
) -> web.AppRunner:
    """The server of an application, not listening yet. The limits of headers fit browsers."""
    return web.AppRunner(
        application,
        access_log=None,
        logger=SILENT,
        shutdown_timeout=STOP_WITHIN_S,
        keepalive_timeout=IDLE_S,
        max_headers=headers_max,
        max_field_size=header_bytes_max,
        auto_decompress=False,  # 1 MB of gzip may inflate to 1 GB before a limit applies
    )


@asynccontextmanager
async def listening(
    application: web.Application, address: str, what: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve for the length of the block; yields the address. Port 0: any free one.

    Raises INVALID for an address of another form, UNAVAILABLE when it cannot be used, naming
    `what` was to be served there.
    """
    host, port = parse_address(address)
    runner = runner_of(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            text = f"cannot serve {what} at {address}: {error.strerror or error}"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        yield f"{shown}:{bound[1]}"
    finally:
        await runner.cleanup()

"""Process plumbing of both programs of this package: addresses, signals, a silent log."""

from __future__ import annotations

import asyncio
import logging
import signal

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode, invalid

#: For servers that log their own faults; what aiohttp would log here, with a trace each, is the
#: peers': connections that break off, and bytes that are not HTTP.
SILENT_HTTP = logging.getLogger("local_cloud.no_http")
SILENT_HTTP.setLevel(logging.CRITICAL)


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`. Raises INVALID."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, for example 127.0.0.1:0")
    return host, int(port)


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_stopped(stop: asyncio.Event, nursery: Nursery) -> None:
    """Wait for the signal. Raises INTERNAL when a task of the nursery failed before."""
    stopping = nursery.start(stop.wait(), "stop")
    failing = nursery.start(nursery.failed(), "watch")
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    if not stop.is_set():
        raise AppError(ErrorCode.INTERNAL, "a background task failed; see the log")

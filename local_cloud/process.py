"""What both programs of this package do as processes: logs, addresses, the ready file, signals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode, invalid


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, "event", ""),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def log_as_json_lines(level: int = logging.INFO) -> None:
    """Send everything that is logged to stderr, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`. Raises INVALID."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, for example 127.0.0.1:0")
    return host, int(port)


def write_ready(path: Path, addresses: dict[str, str]) -> None:
    """Tell whoever started us that we serve: one JSON object, written atomically."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(json.dumps({"pid": os.getpid(), **addresses}) + "\n")
    fresh.replace(path)


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

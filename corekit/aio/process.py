"""What every daemon shares as a process: logs, ready file, signals, exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from corekit.aio.files import replace_file
from corekit.errors import EXIT_STATUS, AppError, invalid

#: A connection is a descriptor; the kernel's tables for this many cost nothing until they are used.
DESCRIPTORS_MAX = 65_536
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and what `extra` gave."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((k, v) for k, v in vars(record).items() if k not in _PLAIN)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_as_json(level: int = logging.INFO) -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("aiohttp.access", "botocore", "aiobotocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def raise_descriptor_limit(most: int = DESCRIPTORS_MAX) -> int:
    """Let this process open as many files as it may, up to `most`; how many it may open now.

    The usual soft limit of 1,024 is there for programs that use select(); ours do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def private_folder(folder: Path) -> None:
    """Make a state folder that only we can look into; idempotent. Raises OSError.

    One that others may look into is used as it is, with a warning: whose it is, is not ours to say.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        text = f"other users may look into the state folder {folder} (mode {mode:o}); "
        text += f"run: chmod 700 {folder}"
        extra = {"event": "open_state_folder", "folder": str(folder)}
        logging.getLogger(__name__).warning(text, extra=extra)


def write_ready(path: Path | None, fields: Mapping[str, Any], *, private: bool = False) -> None:
    """Write the ready file of a daemon that is serving: `{"pid": …, …}`. Raises INVALID.

    A `private` file, with a secret, is readable by its owner only.
    """
    if path is None:
        return
    text = json.dumps({"pid": os.getpid(), **fields})
    try:
        replace_file(path, text.encode(), mode=0o600 if private else 0o666, durable=False)
    except OSError as error:
        raise invalid(f"cannot write --ready-file {path}: {error.strerror or error}") from None


@contextmanager
def until_signal(task: asyncio.Task[Any]) -> Iterator[None]:
    """While open, SIGTERM and SIGINT cancel the task: its `async with` blocks close in order."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def run_program(program: str, main: Coroutine[Any, Any, None], *, fast: bool = False) -> None:
    """Run a daemon until it is told to stop (exit 0) or fails (exit status by code).

    `program` is the name that people know it by. `fast`: on uvloop's event loop where there is one.
    """

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            with until_signal(task):
                await main
        except asyncio.CancelledError:
            logging.getLogger(__name__).info("stopped", extra={"event": "stopped"})

    factory = _uvloop() if fast else None
    with exiting_by_code(program), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(supervised())


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None where it has no wheel; asyncio's own loop does the same, a tenth slower."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextmanager
def exiting_by_code(program: str) -> Iterator[None]:
    """AppError → `program: what is wrong` on stderr and the exit status of its code."""
    try:
        yield
    except AppError as error:
        sys.stderr.write(f"{program}: {error.message}\n")
        sys.exit(EXIT_STATUS[error.code])

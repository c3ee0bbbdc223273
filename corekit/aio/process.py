"""The process side of every daemon: logs, ready file, signals, children, exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from corekit.aio.files import replace_json
from corekit.errors import AppError, invalid

#: A connection is a descriptor; the kernel's tables for this many cost nothing until they are used.
DESCRIPTORS_MAX = 65_536
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
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


def log_as_json() -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("aiohttp.access", "botocore", "aiobotocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def raise_descriptor_limit(most: int = DESCRIPTORS_MAX) -> int:
    """Raise the soft limit of open files to the hard one, but at most to `most`; returns it.

    The usual soft limit of 1,024 protects programs that use select(); ours do not.
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
    """Create a state folder that only its owner may read; idempotent. Raises OSError.

    An existing one that others may read is used as it is, with a warning.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        text = f"other users may read the state folder {folder} (mode {mode:o}); "
        text += f"run: chmod 700 {folder}"
        extra = {"event": "open_state_folder", "folder": str(folder)}
        logging.getLogger(__name__).warning(text, extra=extra)


def write_ready(path: Path | None, fields: Mapping[str, object], *, private: bool = False) -> None:
    """Write the ready file of a daemon that is serving: `{"pid": …, …}`. Raises INVALID.

    A `private` file, with a secret, is readable by its owner only.
    """
    if path is None:
        return
    try:
        replace_json(path, {"pid": os.getpid(), **fields}, private=private)
    except OSError as error:
        raise invalid(f"cannot write --ready-file {path}: {error.strerror or error}") from None


def guarded(
    command: Sequence[str], death_signal: signal.Signals, *, user: int = -1, held: bool = False
) -> list[str]:
    """The command line of a child to which the kernel sends a signal when this process dies.

    `user`: runs the child as that user; -1 = this one. `held`: the child begins when a byte is
    written to its standard input, and ends if that is closed first.
    """
    script = str(Path(__file__).with_name("guard.py"))
    options = map(str, (os.getpid(), int(death_signal), user, int(held)))
    return [sys.executable, "-I", "-S", script, *options, *command]


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


@contextmanager
def until_signal(task: asyncio.Task[object]) -> Iterator[None]:
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


def run_program(program: str, main: Coroutine[object, object, None], *, fast: bool = False) -> None:
    """Run a daemon until a stop signal (exit 0) or a failure (exit status by code).

    `program` is its name in messages. `fast`: on uvloop's event loop where that is installed.
    """

    async def supervised() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            with until_signal(task):
                await main
        except asyncio.CancelledError:
            logging.getLogger(__name__).info("stopped", extra={"event": "stopped"})

    factory = fast_loop() if fast else None
    with exiting_by_code(program), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(supervised())


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loop.

    None where it has no wheel; asyncio's own loop does the same, a tenth slower.
    """
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextmanager
def exiting_by_code(program: str) -> Iterator[None]:
    """AppError → `program: message` on stderr and the exit status of its code."""
    try:
        yield
    except AppError as error:
        sys.stderr.write(f"{program}: {error.message}\n")
        sys.exit(error.exit_status)

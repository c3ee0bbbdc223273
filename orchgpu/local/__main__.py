"""`python -m orchgpu.local`: the supervisor process of one local system.

It reports its progress as JSON lines on standard output and ends, with everything it started, on
SIGTERM or, with --lifeline, when its standard input closes: so nothing is left even when the
command that started it is killed. `orchgpu up` and `orchgpu demo` start it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import orchgpu
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json
from corekit.decode import decode_json
from corekit.errors import EXIT_STATUS, AppError
from orchgpu.local.fleet import write_offers
from orchgpu.local.home import Home
from orchgpu.local.programs import LocalSettings, Programs, base_environment
from orchgpu.local.supervisor import Event, Supervisor

logger = logging.getLogger(__name__)


def main() -> None:
    """Run one system until it is stopped. Exit status as in `corekit.errors`."""
    arguments = _parser().parse_args()
    log_as_json()
    home = Home(arguments.home)
    status = 0
    try:
        home.create()
        with home.lock():
            asyncio.run(_supervise(home, arguments))
    except AppError as error:
        report({"event": "failed", **error.as_json()})
        status = EXIT_STATUS[error.code]
    if arguments.remove_home:
        shutil.rmtree(home.path, ignore_errors=True)
    report({"event": "down"})
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orchgpu.local")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--settings", required=True, help="LocalSettings as JSON")
    parser.add_argument("--lifeline", action="store_true", help="stop when standard input closes")
    parser.add_argument("--remove-home", action="store_true", help="remove the folder at the end")
    return parser


async def _supervise(home: Home, arguments: argparse.Namespace) -> None:
    loop, life, look = asyncio.get_running_loop(), _Life(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.end)
    loop.add_signal_handler(signal.SIGCHLD, look.set)
    if arguments.lifeline:
        loop.add_reader(sys.stdin.fileno(), _lifeline, loop, life)
    settings = decode_json(LocalSettings, arguments.settings.encode(), "--settings")
    environment = base_environment(os.environ, home, Path(orchgpu.__file__).parents[1])
    write_offers(home, settings.fleet, settings.host_memory_mib)
    supervisor = Supervisor(
        Programs(settings, home, environment), home, report, budget_from_environment()
    )
    try:
        await supervisor.start()
        record = supervisor.record(settings.cloud, os.getpid())
        home.write_system(record)
        home.keep_addresses(supervisor.addresses())
        report({"event": "up", "system": record.as_json()})
        await supervisor.watch(look, lambda: _rewrite(home, supervisor, settings.cloud))
    except asyncio.CancelledError:
        if not life.ended:
            raise
    finally:
        life.forget()
        await supervisor.stop()


class _Life:
    """Cancels the running start or watch once, and never the stop that follows."""

    def __init__(self) -> None:
        self.ended = False
        self._task = asyncio.current_task()

    def end(self) -> None:
        if self._task is not None:
            self.ended = True
            self._task.cancel()
            self._task = None

    def forget(self) -> None:
        """Cancel nothing from here on."""
        self._task = None


def _rewrite(home: Home, supervisor: Supervisor, cloud: str) -> None:
    """Show a change to commands; a full disk must not end the running programs."""
    try:
        home.write_system(supervisor.record(cloud, os.getpid()))
    except OSError as error:
        logger.warning("%s is out of date: %s", home.system_file, error)


def _lifeline(loop: asyncio.AbstractEventLoop, life: _Life) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        loop.remove_reader(sys.stdin.fileno())
        life.end()


#: Events that the log keeps too: nothing reads the output of a detached system.
_LOGGED = ("died", "restarting", "given_up")


def report(event: Event) -> None:
    """Write one JSON line for the command that started us, if it still runs."""
    if event["event"] in _LOGGED:
        text = " ".join(str(event[key]) for key in ("program", "message") if key in event)
        logger.warning("%s: %s", event["event"], text, extra={"event": event["event"]})
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), (json.dumps(event) + "\n").encode())


if __name__ == "__main__":
    main()

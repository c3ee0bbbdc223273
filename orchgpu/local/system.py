"""A local system as commands use it: launch it, find it, check its health, stop it."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orchgpu
from corekit.aio.environment import budget_from_environment
from corekit.decode import encode_json
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from orchgpu.local.child import birth_of
from orchgpu.local.home import Home, ProcessRecord, ProgramState, SystemRecord
from orchgpu.local.programs import LocalSettings, cloud_environment

_PROBE_WITHIN_S = 1.0


class Launch:
    """A supervisor process that this process started, and its events."""

    def __init__(
        self, home: Home, settings: LocalSettings, *, lifeline: bool, remove_home: bool = False
    ) -> None:
        """Start it. With `lifeline` it ends when this process does, however that happens."""
        self.left = False  #: True: it runs on by itself
        home.create()
        command = [sys.executable, "-m", "orchgpu.local", "--home", str(home.path)]
        command += ["--settings", encode_json(settings).decode()]
        command += ["--lifeline"] if lifeline else []
        command += ["--remove-home"] if remove_home else []
        with home.supervisor_log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C here must not reach it: it stops in order
                env={**os.environ, **_import_path()},
            )
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="supervisor-events", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events until its output ends; waits for each."""
        while (event := self._events.get()) is not None:
            yield event

    def fresh_events(self) -> list[dict[str, Any]]:
        """The events since the last call; never waits. Raises UNAVAILABLE when it is gone."""
        found = []
        while not self._events.empty():
            event = self._events.get()
            if event is None:
                self._events.put(None)
                raise AppError(ErrorCode.UNAVAILABLE, "the supervisor of the local system is gone")
            found.append(event)
        return found

    def ask_to_stop(self) -> None:
        """Request an orderly stop, which `events` report. Safe to repeat."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status, once it ended; after `system_stop_s` it is killed."""
        try:
            status = self._process.wait(budget_from_environment().system_stop_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def leave_running(self) -> None:
        """Detach from a system started without a lifeline: it runs on by itself."""
        self.left = True
        self._process.returncode = 0  # no one waits for it any more


def stop_system(home: Home) -> bool:
    """Stop the system of that folder and wait for its end. False: none was running.

    Raises TIMEOUT when the supervisor had to be killed; the kernel then ends its programs.
    """
    system = home.read_system()
    if system is None:
        home.forget_system()
        return False
    os.kill(system.supervisor_pid, signal.SIGTERM)
    within_s = budget_from_environment().system_stop_s
    deadline_s = time.monotonic() + within_s
    while home.supervised():
        if time.monotonic() > deadline_s:
            os.kill(system.supervisor_pid, signal.SIGKILL)
            home.forget_system()
            raise AppError(
                ErrorCode.TIMEOUT, f"the system did not stop in {within_s:.0f} s; killed"
            )
        time.sleep(0.02)
    return True


def running_system(home: Home) -> SystemRecord:
    """The running system. Raises UNAVAILABLE, with the command to start one."""
    system = home.read_system()
    if system is None:
        raise AppError(
            ErrorCode.UNAVAILABLE,
            f"no local system runs in {home.path}; start one with `orchgpu up`",
        )
    return system


def healthy(process: ProcessRecord) -> bool:
    """True: the same process still runs, and its address accepts a connection."""
    if birth_of(process.pid) != process.birth:
        return False
    if process.address is None:
        return True
    try:
        with socket.create_connection(parse_address(process.address), timeout=_PROBE_WITHIN_S):
            return True
    except (OSError, AppError):
        return False


def health(process: ProcessRecord, *, good: bool) -> str:
    """One word: healthy, unhealthy, restarting or given_up."""
    if good:
        return "healthy"
    return "unhealthy" if process.state == ProgramState.RUNNING else process.state


def unhealthy(system: SystemRecord) -> list[ProcessRecord]:
    """Its programs that died or do not answer; the others continue."""
    return [process for process in system.processes if not healthy(process)]


def survivors(system: SystemRecord) -> list[str]:
    """The names of its programs that still run; empty after a clean stop."""
    return [p.name for p in system.processes if p.birth and birth_of(p.pid) == p.birth]


def environment_of(system: SystemRecord) -> dict[str, str]:
    """The variables by which clients of this process use that system."""
    keys = (system.access_key, system.secret_key)
    cloud = cloud_environment(system.endpoint, keys, system.queues)
    return {**cloud, SCHEDULER_VARIABLE: system.scheduler}


#: "address:port" of ssgmd's socket endpoint, for every command that asks the scheduler.
SCHEDULER_VARIABLE = "ORCHGPU_SCHEDULER"


def _import_path() -> dict[str, str]:
    root = Path(orchgpu.__file__).parents[1]
    if root.name == "site-packages":
        return {}
    return {"PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}

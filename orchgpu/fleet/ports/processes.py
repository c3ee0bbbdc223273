"""Hosts as processes of this machine: for the local system, and for tests of a whole fleet.

A folder has `processes.json` (`ProcessSettings`), and a folder for each group with one file for
each host. Its *holder* (`orchgpu.fleet.ports.holder`) keeps a lock on that file as long as it
lives, and runs the host's program, after the stated delay that stands for the boot of a machine.
The lock is taken before the holder starts and inherited by it, so that a fleet that is killed at
any moment leaves no host that its successor does not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from corekit.aio.files import replace_json
from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.names import name_problem
from orchgpu.fleet.ports.port import PortGroup, PortHost

SETTINGS = "processes.json"
#: A holder writes its process id at once; until then it cannot be stopped.
_PID_WITHIN_S, _LOOK_EVERY_S = 5.0, 0.02


class ProcessSettings(Value):
    """The start of the hosts of a folder."""

    #: Command of a host; the word `{host}` is its name, `{state}` a folder of its own.
    command: tuple[str, ...]
    delay_s: float = 0.0  #: before the command starts: the boot of a machine
    #: A file that is locked as long as hosts may live: that of the local system's supervisor.
    lifeline: str = ""


def write_settings(folder: Path, settings: ProcessSettings) -> None:
    """Make a folder of processes, or change it; running hosts stay as they are."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_json(folder / SETTINGS, encode(settings), private=True)


class ProcessFleet:
    """`FleetPort` of one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises INVALID for a folder without settings."""
        self._folder = folder
        try:
            data = (folder / SETTINGS).read_bytes()
        except OSError as error:
            raise invalid(f"{folder / SETTINGS}: {error.strerror}") from None
        self._settings = decode_json_known(ProcessSettings, data, SETTINGS)[0]

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        _reap()
        found = []
        for name in groups:
            hosts = tuple(PortHost(id=h, launched_s=at_s) for h, at_s in self._hosts(name))
            found.append(PortGroup(name=name, size=len(hosts), hosts=hosts))
        return tuple(found)

    async def grow(self, group: str, size: int) -> None:
        folder = self._of_group(group)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / "lock").open("a") as lock:  # two fleets count the same hosts
            fcntl.flock(lock, fcntl.LOCK_EX)
            for _ in range(size - sum(1 for _ in self._hosts(group))):
                self._start(group)

    async def withdraw(self, group: str) -> None:
        self._of_group(group)  # a host comes at once, so nothing is missing

    async def stop(self, group: str, host: str) -> None:
        file = self._of_group(group) / f"{host}.json"
        for _ in range(round(_PID_WITHIN_S / _LOOK_EVERY_S)):
            if not is_held(file):
                file.unlink(missing_ok=True)
                return
            if (pid := _record(file).get("pid")) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        raise AppError(ErrorCode.UNAVAILABLE, f"host {host} has not begun; try again")

    async def close(self) -> None:
        _reap()

    def _of_group(self, group: str) -> Path:
        if problem := name_problem(group):
            raise invalid(f"group {group!r} {problem}")
        return self._folder / "groups" / group.replace("/", "_")

    def _hosts(self, group: str) -> Iterator[tuple[str, float | None]]:
        """Living hosts with the time of their launch; files of others are removed."""
        folder = self._of_group(group)
        for file in sorted(folder.glob("*.json")):
            if is_held(file):
                launched_s = _record(file).get("launched_s")
                yield file.stem, None if launched_s is None else float(launched_s)
            else:
                file.unlink(missing_ok=True)

    def _start(self, group: str) -> None:
        host = f"{group}-{secrets.token_hex(3)}"
        folder = self._of_group(group)
        state = folder / "state" / host
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {"{host}": host, "{state}": str(state)}
        command = [names.get(one, one) for one in self._settings.command]
        file = folder / f"{host}.json"
        unlocked = file.with_suffix(".new")
        with unlocked.open("x") as record, (folder / f"{host}.log").open("ab") as log:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record.write(json.dumps({"launched_s": time.time()}))
            record.flush()
            unlocked.rename(file)  # no reader sees it without its lock
            _spawn(
                record.fileno(),
                log.fileno(),
                *(sys.executable, "-m", "orchgpu.fleet.ports.holder"),
                *(str(file), str(record.fileno()), str(self._settings.delay_s)),
                *(self._settings.lifeline, *command),
            )


#: Holders that this process started: it is their parent, whichever port started them.
_started: set[int] = set()


def _spawn(kept: int, log: int, *command: str) -> None:
    """Start a program in a session of its own: it outlives this process, as a machine does."""
    os.set_inheritable(kept, True)
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ),
        setsid=True,
    )
    _started.add(pid)


def _reap() -> None:
    """Collect the holders that have ended."""
    for pid in tuple(_started):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _started.discard(pid)


def is_held(file: Path) -> bool:
    """Whether a process holds the lock of the file."""
    try:
        with file.open() as record:
            fcntl.flock(record, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _record(file: Path) -> dict[str, float]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}  # its holder is just writing it
    return found if isinstance(found, dict) else {}

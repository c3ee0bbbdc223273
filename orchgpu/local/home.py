"""The folder of one local system: its files, and the lock of its supervisor.

The supervisor holds the lock as long as it runs, so the folder of a killed one can be recognised;
only the supervisor writes `system.json`.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import IO

from corekit.aio.files import replace_json
from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.local_system import LOCK, SYSTEM, is_supervised, local_folder
from corekit.values import Value


class ProgramState(StrEnum):
    """The supervisor's state of a program; a running one may still be unhealthy."""

    RUNNING = "running"
    RESTARTING = "restarting"
    GIVEN_UP = "given_up"  #: it died too often: `orchgpu down`, `orchgpu up`


class ProcessRecord(Value):
    """One running program as `system.json` knows it."""

    name: str
    pid: int
    birth: str  #: start time from /proc: a recycled pid is another process
    address: str | None  #: "host:port" that accepts connections while it is healthy
    log: str  #: path of its log file
    restarts: int = 0  #: how often it died and was started again
    state: str = ProgramState.RUNNING  #: a `ProgramState`, or that of another version


class SystemRecord(Value):
    """A running local system, as its supervisor describes it."""

    supervisor_pid: int
    cloud: str  #: one of `orchgpu.local.programs.CLOUDS`
    endpoint: str  #: URL of S3, SQS and Lambda; of `own`: of S3
    scheduler: str  #: "address:port" of ssgmd's socket endpoint
    scheduler_http: str  #: "address:port" of ssgmd's HTTP endpoint
    console: str = ""  #: URL of the web console; empty = of a version without one
    processes: tuple[ProcessRecord, ...]
    version: int = 1
    access_key: str = ""  #: of a cloud that verifies signatures; empty = it does not
    secret_key: str = ""
    weather: str = ""  #: of the embedded cloud: its name, scale and seed
    queues: str = ""  #: of `own`: the address of the database of queues

    def as_json(self) -> dict[str, object]:
        value: dict[str, object] = encode(self)
        return value


class Home:
    """Paths below one folder. Nothing is created before `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.system_file = self.path / SYSTEM
        self.lock_file = self.path / LOCK
        self.logs = self.path / "logs"
        self.ready = self.path / "ready"
        self.temporary = self.path / "tmp"
        self.supervisor_log = self.logs / "supervisor.log"
        self.addresses_file = self.path / "addresses.json"

    def create(self) -> None:
        """Make the folder, private to this user: it holds secrets of leases and journals."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.logs, self.ready, self.temporary):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def state(self, program: str) -> Path:
        """The folder of one program's state, which survives `down` and `up`."""
        return self.path / "state" / program

    @property
    def history(self) -> Path:
        """The file of the history, beside the journal's folder."""
        return self.state("history") / "history.sqlite"

    def lock(self) -> IO[str]:
        """Become the only supervisor of this folder; the lock ends with the process.

        Raises CONFLICT when another one runs.
        """
        try:
            handle = self.lock_file.open("a")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise AppError(
                ErrorCode.CONFLICT,
                f"a local system already runs in {self.path}; `orchgpu down` stops it",
            ) from None
        return handle

    def supervised(self) -> bool:
        """True while a supervisor holds the lock."""
        return is_supervised(self.path)

    def _unusable(self, error: OSError) -> AppError:
        return invalid(f"cannot use {self.path} for the local system: {error}")

    def write_system(self, system: SystemRecord) -> None:
        """Replace `system.json` atomically."""
        # it may hold the cloud's secret
        replace_json(self.system_file, system.as_json(), private=True)

    def keep_addresses(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        """Keep the addresses of each program, so that the next `up` can use the same ports."""
        replace_json(self.addresses_file, addresses)

    def last_addresses(self) -> dict[str, dict[str, str]]:
        """The addresses of the last system here, by program; empty when they are unknown."""
        try:
            value = json.loads(self.addresses_file.read_text())
            return {name: dict(found) for name, found in value.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def read_system(self) -> SystemRecord | None:
        """The running system; None when none runs, even if a killed one left its file."""
        if not self.supervised():
            return None
        try:
            return decode_json_known(SystemRecord, self.system_file.read_bytes(), "system.json")[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise invalid(f"{self.system_file} cannot be read: {error}") from error

    def forget_system(self) -> None:
        """Remove the files of a stopped system that describe it; state and logs stay."""
        self.system_file.unlink(missing_ok=True)
        for file in sorted(self.ready.glob("*.json")):
            file.unlink(missing_ok=True)


def default_home() -> Home:
    """`$ORCHGPU_HOME`, else `.orchgpu` in the working directory."""
    return Home(local_folder())

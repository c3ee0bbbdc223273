"""A handler's process that stays for the next job, on a host that keeps it (`host: {warm: true}`).

Its standard input is a socket: the runner sends one line for each job, its variables and its folder
as JSON, and `script.call` answers each by a line when the call has returned. It is started by
`script.process`, which ends it like any other process unless its call succeeded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The last argument of a command whose process stays.
STAYS = "stays"
_ANSWER_BYTES_MAX = 4096


@dataclass(kw_only=True)
class Resident:
    """A process that waits for its next job, or has one."""

    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: int  #: the pipe of its stdout and stderr
    calls: socket.socket
    loading_s: float = 0.0  #: by its word: until it could serve its first job

    def send(self, variables: Mapping[str, str], folder: Path) -> None:
        """Give it a job. Raises OSError when it has ended."""
        call = {"variables": dict(variables), "folder": str(folder)}
        self.calls.sendall(json.dumps(call).encode("ascii") + b"\n")

    def answered(self) -> bool:
        """Read its answer; False: it closed the socket, or answers what our code does not."""
        try:
            answer = json.loads(self.calls.recv(_ANSWER_BYTES_MAX))
            self.loading_s = max(0.0, float(answer["loading_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return math.isfinite(self.loading_s)

    @property
    def lives(self) -> bool:
        """False once it has ended. That reaps nothing: `end` still knows its group."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is None

    def end(self) -> None:
        """Kill it with its group, and release what it has."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.calls.close()
        os.close(self.output)


class Kept:
    """The process that this runner keeps; one at most, as a runner has one job at a time."""

    def __init__(self) -> None:
        self.wanted = False  #: whether the host keeps this runner
        self._resident: Resident | None = None

    def put(self, resident: Resident) -> None:
        """Keep a process whose call has succeeded."""
        self._resident = resident

    def take(self, command: Sequence[str]) -> Resident | None:
        """The process of a command, which is kept no more; None = there is none."""
        found, self._resident = self._resident, None
        if found is None:
            return None
        if found.lives and found.command == tuple(command):
            return found
        found.end()  # it died while it was idle
        return None

    @property
    def idle(self) -> Resident | None:
        """The process, if it lives."""
        found = self._resident
        return found if found is not None and found.lives else None


#: One per process by nature, like the S3 client.
KEPT = Kept()

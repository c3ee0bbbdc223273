"""A handler's process that stays for the next job, on a host that keeps it (`host: {warm: true}`).

Its standard input is a socket: the runner sends one line for each job, its variables and its folder
as JSON, and `script.call` answers each by a line when the call has returned; of an endpoint's call
also when it raised, and before that by the parts that it yields. It is started by `script.process`,
which ends it like any other process unless its call was answered.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lambda_functions.gpu_runner.script.reaper import RUNS

#: What it is to do: a job, which ends it when it raises; of an endpoint, to load, or a call.
Task: TypeAlias = Literal["job", "load", "call"]
#: The last argument of a command whose process stays.
STAYS = "stays"
_ANSWER_BYTES_MAX = 4096
#: Of one part of an answer; a longer one is sent in several.
PART_BYTES_MAX = 1 << 20


@dataclass(kw_only=True)
class Resident:
    """A process that waits for its next job, or has one."""

    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: int  #: the pipe of its stdout and stderr
    calls: socket.socket
    loading_s: float = 0.0  #: by its word: until it could serve its first job
    failed: bool = False  #: by its word: its last call raised
    on_part: Callable[[bytes], None] | None = None  #: gets what a call yields
    _unread: bytearray = field(default_factory=bytearray)

    def send(self, variables: Mapping[str, str], folder: Path, task: Task) -> None:
        """Give it its next task. Raises OSError when it has ended."""
        call = {"task": task, "variables": dict(variables), "folder": str(folder)}
        self.calls.sendall(json.dumps(call).encode("ascii") + b"\n")

    def answered(self) -> bool | None:
        """Read its answer; None: it has sent parts only, or none whole.

        False: it closed the socket, or answers what our code does not.
        """
        try:
            read = self.calls.recv(PART_BYTES_MAX)
            self._unread += read
            while (message := self._message()) is not None:
                if "part" not in message:
                    self.failed = message.get("failed") is True
                    self.loading_s = max(0.0, float(message["loading_s"]))
                    return math.isfinite(self.loading_s) and not self._unread
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        return None if read else False

    def _message(self) -> dict[str, Any] | None:
        """Take one message, and pass a part on; None: the next one is not whole yet."""
        line, found, rest = self._unread.partition(b"\n")
        if len(line) > _ANSWER_BYTES_MAX:
            raise ValueError("no line")
        if not found:
            return None
        message: dict[str, Any] = json.loads(line)
        size = message.get("part", 0)
        if not isinstance(size, int) or not 0 <= size <= PART_BYTES_MAX:
            raise ValueError("not the size of a part")
        if len(rest) < size:
            return None
        self._unread = rest[size:]
        if size and self.on_part is not None:
            self.on_part(bytes(rest[:size]))
        return message

    @property
    def lives(self) -> bool:
        """False once it has ended. That reaps nothing: `end` still knows its group."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is None

    def end(self) -> None:
        """Kill it with its group, and release what it has."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        RUNS.forget(self.process.pid)
        self.process.wait()
        self.calls.close()
        os.close(self.output)


class Kept:
    """A process that this runner keeps: one for its jobs, and of an endpoint one for each call at
    once. For one thread at a time."""

    def __init__(self) -> None:
        self.wanted = False  #: whether the process is to stay
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

    def end(self) -> None:
        """End the process, if there is one."""
        found, self._resident = self._resident, None
        if found is not None:
            found.end()

    @property
    def idle(self) -> Resident | None:
        """The process, if it lives."""
        found = self._resident
        return found if found is not None and found.lives else None


#: Of jobs; one per process by nature, like the S3 client.
KEPT = Kept()

"""One supervised program: start, ready file, death with the last lines of its log, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from corekit.aio.process import guarded
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import address_of
from corekit.values import Value

#: Period of the checks for the ready file and the end of a program; each costs microseconds.
LOOK_EVERY_S = 0.02
#: Looks between two reads of the log of a program that starts.
NEWS_EVERY_LOOKS = 25
#: Lines of a dead program's log that are shown: enough for a Python traceback.
LOG_TAIL_LINES = 15
_LOG_TAIL_BYTES = 16_384

Ready = Mapping[str, object]  #: the content of a ready file
LogLine = Mapping[str, object]  #: a line of a program that logs JSON


class Program(Value):
    """A program to start."""

    name: str
    command: tuple[str, ...]
    ready_file: Path
    log: Path
    environment: Mapping[str, str]
    address_key: str | None = None  #: key of its address in the ready file

    def address_in(self, ready: Ready) -> str | None:
        """`address:port` of a ready file; None for a program that does not listen."""
        if self.address_key is None:
            return None
        return address_of(str(ready[self.address_key]))


class Died(AppError):
    """A program ended that should run; `details` have its name and the tail of its log."""


class Child:
    """A started program in a process group of its own, which ends with this process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ready: Ready = {}
        program.ready_file.unlink(missing_ok=True)
        self._log_start = program.log.stat().st_size if program.log.exists() else 0
        self._news_at = self._log_start
        with program.log.open("ab") as log:
            self._process = subprocess.Popen(
                guarded(program.command, signal.SIGTERM),
                env=dict(program.environment),
                cwd=program.log.parent.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self.pid = self._process.pid

    @property
    def address(self) -> str | None:
        """The address at which it listens, once it is ready."""
        return self.program.address_in(self.ready)

    def exit_status(self) -> int | None:
        """None while it runs; negative = the signal that killed it."""
        return self._process.poll()

    async def wait_ready(self, limit_s: float, news: Callable[[LogLine], object] = bool) -> Ready:
        """Its ready file's content. Raises Died, or TIMEOUT after this long without news.

        `news` gets the lines of its log about the indexing of data, which may take minutes.
        """
        looks = most = max(1, round(limit_s / LOOK_EVERY_S))
        while looks > 0:
            looks -= 1
            if self.exit_status() is not None:
                raise self.death()
            if self.program.ready_file.exists():
                self.ready = self._read_ready()
                return self.ready
            if not looks % NEWS_EVERY_LOOKS:
                for line in self._news():
                    news(line)
                    looks = most
            await asyncio.sleep(LOOK_EVERY_S)
        raise AppError(
            ErrorCode.TIMEOUT,
            f"{self.program.name} was not ready after {limit_s:.0f} s; see {self.program.log}",
            log_tail=self.log_tail(),
        )

    def _news(self) -> list[LogLine]:
        try:
            with self.program.log.open("rb") as log:
                log.seek(self._news_at)
                whole, newline, _ = log.read(_LOG_TAIL_BYTES).rpartition(b"\n")
        except OSError:
            return []
        self._news_at += len(whole) + len(newline)
        found: list[LogLine] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line) if b'"indexing"' in line else None
                if isinstance(value, dict) and value.get("event") == "indexing":
                    found.append(value)
        return found

    def _read_ready(self) -> Ready:
        try:
            value = json.loads(self.program.ready_file.read_text())
            if self.program.address_key is not None:
                value[self.program.address_key]
        except (ValueError, KeyError, TypeError) as error:
            raise AppError(
                ErrorCode.INTERNAL, f"{self.program.name}: its ready file is not valid: {error!r}"
            ) from error
        return dict(value)

    def death(self) -> Died:
        """The error that reports its end."""
        status = self.exit_status()
        assert status is not None, f"{self.program.name} still runs"
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return Died(
            ErrorCode.UNAVAILABLE,
            f"{self.program.name} ended {how}; its log: {self.program.log}",
            program=self.program.name,
            log_tail=self.log_tail(),
        )

    def log_tail(self) -> list[str]:
        """The last lines this start of the program wrote."""
        try:
            with self.program.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - _LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError as error:
            return [f"(its log is not readable: {error})"]
        return text.splitlines()[-LOG_TAIL_LINES:]

    async def stop(self, limit_s: float) -> bool:
        """SIGTERM, then SIGKILL to its whole group after the limit. True = it ended in time."""
        self._signal(signal.SIGTERM, group=False)
        in_time = await self._ended_within(limit_s)
        self._signal(signal.SIGKILL, group=True)  # the rest of its group
        await self._ended_within(limit_s)
        self.program.ready_file.unlink(missing_ok=True)
        return in_time

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        try:
            if group:
                os.killpg(self.pid, number)
            elif self.exit_status() is None:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # it is gone, with its group

    async def _ended_within(self, limit_s: float) -> bool:
        for _ in range(max(1, round(limit_s / LOOK_EVERY_S))):
            if self.exit_status() is not None:
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return self.exit_status() is not None


def birth_of(pid: int) -> str:
    """The start time of a process in clock ticks since boot; "" for a dead process or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold any character
    return "" if fields[0] in "ZX" else fields[19]

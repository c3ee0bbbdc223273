"""A probe in a process of its own, because drivers hang and crash: neither may stop a revocation.

The child answers every line on its stdin by one JSON line: `{"devices": […], "usage": […]}` or
`{"error": "reason"}`. A child that does not answer in time is killed, and replaced at the next
poll. A child that cannot be killed, because it is blocked inside the driver, is left alone, and
every poll fails at once until it has ended: further children would hang too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.model import Device, Usage
from gpu_scheduler.monitor.ports import DeviceProcess

#: An answer: 256 devices at most, some 1 KiB each.
_LINE_BYTES_MAX = 2**20
#: SIGKILL takes milliseconds, except from a process that sleeps inside a driver.
_KILL_S_MAX = 2.0


class Seen(Value):
    """One answer of a child."""

    devices: tuple[Device, ...]
    usage: tuple[Usage, ...]
    processes: tuple[DeviceProcess, ...] = ()


class ChildProbe:
    """`Probe` by the child program `module`; `source` names its driver in messages."""

    def __init__(
        self, module: str, source: str, host: str, answer_s_max: float, *options: str
    ) -> None:
        """`options`: for the child, after the host's name."""
        self._command = ("-m", module, host, *options)
        self._source = source
        self._answer_s_max = answer_s_max
        self._child: asyncio.subprocess.Process | None = None
        self._killed: asyncio.subprocess.Process | None = None  # killed, but not known to be gone
        self._usage: tuple[Usage, ...] = ()
        self._processes: tuple[DeviceProcess, ...] = ()

    async def devices(self) -> tuple[Device, ...]:
        """Raises UNAVAILABLE without a driver or device, TIMEOUT when a driver does not answer."""
        self._usage, self._processes = (), ()
        line = await self._ask()
        try:
            value = json.loads(line)
        except ValueError:
            await self.close()
            text = f"the process that probes {self._source} ended"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        if "error" in value:
            raise AppError(ErrorCode.UNAVAILABLE, f"{self._source}: {value['error']}")
        seen = decode(Seen, value)
        self._usage, self._processes = seen.usage, seen.processes
        return seen.devices

    async def usage(self) -> tuple[Usage, ...]:
        """The usage that was read with the newest `devices`."""
        return self._usage

    async def processes(self) -> tuple[DeviceProcess, ...]:
        """The processes that were read with the newest `devices`."""
        return self._processes

    async def close(self) -> None:
        """End the child; returns within seconds even when it hangs in the driver."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        self._killed = child
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S_MAX):
                await child.communicate()  # to the end of its pipes, which close with it

    async def _ask(self) -> bytes:
        if self._killed is not None and self._killed.returncode is None:
            text = f"process {self._killed.pid} hangs in {self._source} and cannot be killed"
            raise AppError(ErrorCode.TIMEOUT, text)
        try:
            async with asyncio.timeout(self._answer_s_max):
                return await self._line()
        except TimeoutError:
            await self.close()
            text = f"{self._source} did not answer in {self._answer_s_max:g} s"
            raise AppError(ErrorCode.TIMEOUT, text) from None
        except (OSError, ValueError):  # the child ended, or wrote an endless line
            return b""

    async def _line(self) -> bytes:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                limit=_LINE_BYTES_MAX,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"\n")
        return await self._child.stdout.readline()


def answer_lines(poll: Callable[[], Seen | str]) -> None:
    """The main loop of a child: one poll per line on stdin. A str is an error message."""
    for _ in sys.stdin:
        seen = poll()
        value: dict[str, object] = {"error": seen} if isinstance(seen, str) else encode(seen)
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

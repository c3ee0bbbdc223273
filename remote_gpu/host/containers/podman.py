"""podman as a program: one call, one process; its own words are in the errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from corekit.aio.process import guarded
from corekit.errors import AppError, ErrorCode
from remote_gpu.host.containers.command import Runtime

#: Of gpud's own environment: where programs, storage and the operator's registries are.
_PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "REGISTRY_AUTH_FILE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_PREFIX = "CONTAINERS_"
_WORDS_MAX = 500  #: characters of podman's error in ours


class Podman:
    """Calls podman on this host's own store."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED or name.startswith(_PREFIX)
        }

    async def call(self, *words: str, limit_s: float, given: bytes = b"") -> str:
        """The standard output of one call. Raises AppError(UNAVAILABLE), also after `limit_s`."""
        process = await self._start(
            self.runtime.line(*words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, errors = await process.communicate(given)
        except TimeoutError:
            raise _failed(words, f"no end within {limit_s:.0f} s") from None
        finally:
            await stopped(process)
        if process.returncode:
            raise _failed(words, errors.decode("utf-8", "replace").strip())
        return output.decode("utf-8", "replace")

    async def start(self, words: list[str], output: int) -> asyncio.subprocess.Process:
        """Start a container; its output goes to that descriptor. Raises AppError(UNAVAILABLE).

        Dying with gpud, podman passes SIGTERM on to the container.
        """
        return await self._start(
            self.runtime.line(*words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    async def remove(self, name: str, limit_s: float) -> None:
        """Kill and remove a container, with its mounts and cgroup. Idempotent."""
        await self.call("rm", "--force", "--ignore", "--time=0", name, limit_s=limit_s)

    async def _start(
        self, line: list[str], *, stdin: int, stdout: int, stderr: int
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *guarded(line, signal.SIGTERM),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=self._variables,
                cwd=Path("/"),
                start_new_session=True,
            )
        except OSError as error:
            raise _failed(line[:1], str(error)) from None


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Kill the process if it runs, and wait for its end. Idempotent."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _failed(words: tuple[str, ...] | list[str], why: str) -> AppError:
    return AppError(ErrorCode.UNAVAILABLE, f"podman {words[0]}: {why[-_WORDS_MAX:]}")
